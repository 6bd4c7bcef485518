"""The beginning of every graph: rows are read, rendered, and looked up in the journal."""

from __future__ import annotations

from dataclasses import dataclass

import apache_beam as beam

from airflow_provider_llmbeam.pipeline.elements import FAILED
from airflow_provider_llmbeam.pipeline.transforms.check_rows import after_row_check
from airflow_provider_llmbeam.pipeline.transforms.identify_media import IdentifyMedia
from airflow_provider_llmbeam.pipeline.transforms.keys import unique
from airflow_provider_llmbeam.pipeline.transforms.personal_data import MaskRows
from airflow_provider_llmbeam.pipeline.transforms.read import TALLIES, ReadRows
from airflow_provider_llmbeam.pipeline.transforms.render import Render
from airflow_provider_llmbeam.pipeline.transforms.reuse import oldest_useful_at, reuse
from airflow_provider_llmbeam.spec.job import JobSpec


@dataclass(frozen=True)
class Prompts:
    """The prompts of a job, before any is sent.

    Attributes:
        unanswered: One `Request` per prompt without an answer in the journal.
        reused: `AnsweredRow`s from the journal.
        failed: `FailedRow`s: rows that become no prompt, and those whose refused answer is in the journal.
        rows_read: `Tally`s of the rows read.
        oldest_at: Unix time; older answers are requested again.
    """

    unanswered: beam.PCollection
    reused: list[beam.PCollection]
    failed: list[beam.PCollection]
    rows_read: beam.PCollection
    oldest_at: float


def read_prompts(
    root: beam.Pipeline,
    spec: JobSpec,
    started_at: float,
    progress_prefix: str | None = None,
    batch_since: float | None = None,
) -> Prompts:
    """Reads the rows, renders their prompts, and looks these up in the journal.

    Args:
        root: The pipeline.
        spec: The job.
        started_at: Unix time of the launch.
        progress_prefix: See `CountingDoFn`.
        batch_since: Unix time at which the batch inference of this run began; `None` without any.
    """
    source = root | "Read" >> ReadRows(spec, progress_prefix)
    every, unreadable = source["rows"], source[FAILED]
    if (privacy := spec.safety.privacy) is not None:
        mask = beam.ParDo(MaskRows(spec, privacy, progress_prefix)).with_outputs(FAILED, main="rows")
        masked = (every, unreadable) | "AllRows" >> beam.Flatten() | "MaskRows" >> mask
        every, unreadable = masked["rows"], masked[FAILED]
    rows, duplicate_keys, duplicates = unique(every, spec.source, progress_prefix)
    rendered = rows | "Render" >> beam.ParDo(Render(spec, progress_prefix)).with_outputs(FAILED, main="rows")
    prompts, refused = rendered["rows"], [rendered[FAILED]]
    if spec.prompt.media:
        identified = (
            prompts
            | "BatchMedia" >> beam.BatchElements(min_batch_size=16, max_batch_size=64)
            | "IdentifyMedia" >> beam.ParDo(IdentifyMedia(spec, progress_prefix)).with_outputs(FAILED, main="rows")
        )
        prompts, refused = identified["rows"], [*refused, identified[FAILED]]
    oldest_at = oldest_useful_at(spec, started_at)
    requests, reused, known_refusals = reuse(
        root, prompts, spec, duplicate_keys, oldest_at, started_at, progress_prefix, batch_since
    )
    requests, *reused = after_row_check((requests, *reused), (every, unreadable), spec)
    failed = [unreadable, *duplicates, *refused, *known_refusals]
    return Prompts(requests, reused, failed, source[TALLIES], oldest_at)
