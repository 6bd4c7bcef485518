"""The beginning of every graph: rows are read, rendered, and looked up in the journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import apache_beam as beam

from airflow_provider_llmbeam.pipeline.cascade.transform import ask_stages
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.conversation.transform import make_conversations
from airflow_provider_llmbeam.pipeline.elements import FAILED
from airflow_provider_llmbeam.pipeline.feature import Feature, Prompts, Results
from airflow_provider_llmbeam.pipeline.privacy.dlp.steps import mask_inspected_rows
from airflow_provider_llmbeam.pipeline.reporting.tally import TALLIES
from airflow_provider_llmbeam.pipeline.transforms.check_rows import wait_for_row_check
from airflow_provider_llmbeam.pipeline.transforms.check_sink import wait_for_sink_check
from airflow_provider_llmbeam.pipeline.transforms.keys import unique
from airflow_provider_llmbeam.pipeline.transforms.read import ReadRows
from airflow_provider_llmbeam.pipeline.transforms.reuse import reuse
from airflow_provider_llmbeam.pipeline.transforms.rows_to_prompts import Render
from airflow_provider_llmbeam.spec.job import JobSpec


def read_requests(
    root: beam.Pipeline, spec: JobSpec, context: RunContext, features: Iterable[Feature[Any]]
) -> tuple[beam.PCollection, Sequence[beam.PCollection], Results]:
    """Reads the rows, renders their prompts, and looks these up in the journal.

    Args:
        root: The pipeline.
        spec: The job.
        context: Its run.
        features: Its features.

    Returns:
        One `Request` per prompt without an answer in the journal, or all `Conversation`s; the `AnsweredRow`s with
        the replacement of a prompt that is not sent; and the outcomes so far: those of the journal, and the rows
        that become no prompt.
    """
    prompts, every_row = read_prompts(root, spec, context)
    for feature in features:
        prompts = feature.change_prompts(prompts, context)
    if context.cascade is not None and context.cascade.asked:
        asked = ask_stages(root, prompts, spec, context)
        requests, *answered = wait_for_row_check((asked.requests, *asked.answered), every_row, spec)
        failed, tallies = [*prompts.failed, *asked.failed], [*prompts.tallies, *asked.tallies]
        outcomes = Results(answered, failed, tallies, [asked.audited])
        return requests, prompts.replaced, outcomes
    look_up = reuse if spec.conversation is None else make_conversations
    requests, reused, refusals = look_up(root, prompts.rendered, spec, prompts.duplicate_keys, context)
    requests, *reused = wait_for_row_check((requests, *reused), every_row, spec)
    return requests, prompts.replaced, Results(reused, [*prompts.failed, *refusals], prompts.tallies)


def read_prompts(
    root: beam.Pipeline, spec: JobSpec, context: RunContext
) -> tuple[Prompts, Sequence[beam.PCollection]]:
    """Reads the rows and renders their prompts; returns also all rows, for `wait_for_row_check`.

    Args:
        root: The pipeline.
        spec: The job.
        context: Its run.
    """
    source = root | "Read" >> ReadRows(spec, context)
    every, unreadable, tallies = source["rows"], source[FAILED], source[TALLIES]
    every, unreadable, inspections = mask_inspected_rows(every, unreadable, spec, context)
    rows, duplicate_keys, duplicates, skipped = unique(every, spec.source, context)
    every_row = (rows, *duplicates, unreadable)
    rendered = rows | "Render" >> beam.ParDo(Render(spec, context)).with_outputs(FAILED, main="rows")

    def delay(requests: beam.PCollection) -> beam.PCollection:
        (requests,) = wait_for_row_check([requests], every_row, spec)
        return wait_for_sink_check(root, requests, spec, context)

    refused = [unreadable, *duplicates, rendered[FAILED]]
    tallies = [tallies, *inspections, *skipped]
    return Prompts(rendered["rows"], [], refused, tallies, delay, duplicate_keys), every_row
