"""The beginning of every graph: rows are read, rendered, and looked up in the journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import apache_beam as beam

from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.conversation.transform import make_conversations
from airflow_provider_llmbeam.pipeline.elements import FAILED
from airflow_provider_llmbeam.pipeline.feature import Feature, Prompts
from airflow_provider_llmbeam.pipeline.privacy.dlp.steps import mask_inspected_rows
from airflow_provider_llmbeam.pipeline.transforms.check_rows import wait_for_row_check
from airflow_provider_llmbeam.pipeline.transforms.check_sink import wait_for_sink_check
from airflow_provider_llmbeam.pipeline.transforms.keys import unique
from airflow_provider_llmbeam.pipeline.transforms.read import ReadRows
from airflow_provider_llmbeam.pipeline.transforms.reuse import reuse
from airflow_provider_llmbeam.pipeline.transforms.rows_to_prompts import TALLIES, Render
from airflow_provider_llmbeam.spec.job import JobSpec


@dataclass(frozen=True)
class Requests:
    """The requests of a job, and the rows that need none.

    Attributes:
        unanswered: One `Request` per prompt without an answer in the journal; or all `Conversation`s.
        reused: `AnsweredRow`s from the journal.
        replaced: `AnsweredRow`s with the replacement of an unsafe prompt, in zero or one collections.
        failed: `FailedRow`s: rows that become no prompt, and those whose refused answer is in the journal.
        tallies: `Tally`s of the rows read, and of what the features did.
    """

    unanswered: beam.PCollection
    reused: Sequence[beam.PCollection]
    replaced: Sequence[beam.PCollection]
    failed: Sequence[beam.PCollection]
    tallies: Sequence[beam.PCollection]


def read_requests(
    root: beam.Pipeline, spec: JobSpec, context: RunContext, features: Iterable[Feature]
) -> Requests:
    """Reads the rows, renders their prompts, and looks these up in the journal.

    Args:
        root: The pipeline.
        spec: The job.
        context: Its run.
        features: Its features.
    """
    source = root | "Read" >> ReadRows(spec, context)
    every, unreadable, tallies = source["rows"], source[FAILED], source[TALLIES]
    every, unreadable, inspections = mask_inspected_rows(every, unreadable, spec, context)
    rows, duplicate_keys, duplicates = unique(every, spec.source, context)
    rendered = rows | "Render" >> beam.ParDo(Render(spec, context)).with_outputs(FAILED, main="rows")

    def delay(requests: beam.PCollection) -> beam.PCollection:
        (requests,) = wait_for_row_check([requests], (every, unreadable), spec)
        return wait_for_sink_check(root, requests, spec, context)

    refused = [unreadable, *duplicates, rendered[FAILED]]
    prompts = Prompts(rendered["rows"], [], refused, [tallies, *inspections], delay, duplicate_keys)
    for feature in features:
        prompts = feature.change_prompts(prompts, context)
    look_up = reuse if spec.conversation is None else make_conversations
    requests, reused, refusals = look_up(root, prompts.rendered, spec, duplicate_keys, context)
    requests, *reused = wait_for_row_check((requests, *reused), (every, unreadable), spec)
    return Requests(requests, reused, prompts.replaced, [*prompts.failed, *refusals], prompts.tallies)
