"""The beginning of every graph: rows are read, rendered, and looked up in the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import apache_beam as beam

from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.conversation.transform import conversations
from airflow_provider_llmbeam.pipeline.elements import FAILED
from airflow_provider_llmbeam.pipeline.transforms.check_rows import after_row_check
from airflow_provider_llmbeam.pipeline.transforms.check_sink import after_sink_check
from airflow_provider_llmbeam.pipeline.transforms.inspect_rows import inspected_rows
from airflow_provider_llmbeam.pipeline.transforms.keys import unique
from airflow_provider_llmbeam.pipeline.transforms.read import ReadRows
from airflow_provider_llmbeam.pipeline.transforms.reuse import reuse
from airflow_provider_llmbeam.pipeline.transforms.rows_to_prompts import (
    TALLIES,
    IdentifyMedia,
    MaskInspectedRows,
    Render,
)
from airflow_provider_llmbeam.spec.job import JobSpec


@dataclass(frozen=True)
class Prompts:
    """The prompts of a job, before any is sent.

    Attributes:
        unanswered: One `Request` per prompt without an answer in the journal; or all `Conversation`s.
        reused: `AnsweredRow`s from the journal.
        replaced: `AnsweredRow`s with the replacement of an unsafe prompt, in zero or one collections.
        failed: `FailedRow`s: rows that become no prompt, and those whose refused answer is in the journal.
        tallies: `Tally`s of the rows read, and of the moderation of their prompts.
    """

    unanswered: beam.PCollection
    reused: list[beam.PCollection]
    replaced: list[beam.PCollection]
    failed: list[beam.PCollection]
    tallies: list[beam.PCollection]


@dataclass(frozen=True)
class ModeratedPrompts:
    """The prompts of a job after their moderation.

    Attributes:
        passed: Those that may be sent, as `(fingerprint, RenderedRow)`.
        replaced: `AnsweredRow`s with the replacement.
        failed: `FailedRow`s.
        tallies: `Tally`s of the guard.
    """

    passed: beam.PCollection
    replaced: beam.PCollection
    failed: beam.PCollection
    tallies: beam.PCollection


#: Moderates `(fingerprint, RenderedRow)`. The second argument delays requests until the rows and the sink are
#: checked; the third one has the duplicate keys, which fail the job before anything is sent.
ModeratePrompts = Callable[
    [beam.PCollection, Callable[[beam.PCollection], beam.PCollection], beam.pvalue.AsList | None],
    ModeratedPrompts,
]


def read_prompts(
    root: beam.Pipeline, spec: JobSpec, context: RunContext, moderate: ModeratePrompts | None = None
) -> Prompts:
    """Reads the rows, renders their prompts, and looks these up in the journal.

    Args:
        root: The pipeline.
        spec: The job.
        context: Its run.
        moderate: Adds the moderation of the prompts; `None` for none.
    """
    source = root | "Read" >> ReadRows(spec, context)
    every, unreadable, tallies = source["rows"], source[FAILED], [source[TALLIES]]
    if (privacy := spec.safety.privacy) is not None and privacy.dlp is not None:
        read = (every, unreadable) | "AllRows" >> beam.Flatten()
        groups, inspections = inspected_rows(read, spec, privacy)
        mask = beam.ParDo(MaskInspectedRows(spec, context))
        masked = groups | "MaskRows" >> mask.with_outputs(FAILED, main="rows")
        every, unreadable, tallies = masked["rows"], masked[FAILED], [*tallies, inspections]
    rows, duplicate_keys, duplicates = unique(every, spec.source, context)
    rendered = rows | "Render" >> beam.ParDo(Render(spec, context)).with_outputs(FAILED, main="rows")
    prompts, refused = rendered["rows"], [rendered[FAILED]]
    if spec.prompt.media:
        identified = (
            prompts
            | "BatchMedia" >> beam.BatchElements(min_batch_size=16, max_batch_size=64)
            | "IdentifyMedia" >> beam.ParDo(IdentifyMedia(spec, context)).with_outputs(FAILED, main="rows")
        )
        prompts, refused = identified["rows"], [*refused, identified[FAILED]]
    replaced = list[beam.PCollection]()
    if moderate is not None:

        def checked(requests: beam.PCollection) -> beam.PCollection:
            (requests,) = after_row_check([requests], (every, unreadable), spec)
            return after_sink_check(root, requests, spec, context)

        judged = moderate(prompts, checked, duplicate_keys)
        prompts, replaced = judged.passed, [judged.replaced]
        refused, tallies = [*refused, judged.failed], [*tallies, judged.tallies]
    if spec.conversation is not None:
        requests, no_turns = conversations(root, prompts, spec, spec.conversation, duplicate_keys, context)
        reused, known_refusals = list[beam.PCollection](), [no_turns]
    else:
        requests, reused, known_refusals = reuse(root, prompts, spec, duplicate_keys, context)
    requests, *reused = after_row_check((requests, *reused), (every, unreadable), spec)
    failed = [unreadable, *duplicates, *refused, *known_refusals]
    return Prompts(requests, reused, replaced, failed, tallies)
