"""Builds the graph of a job."""

from __future__ import annotations

import time
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.ml.inference.base import PredictionResult, RunInference

from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import FAILED, AnsweredRow, FailedRow, Origin, Request
from airflow_provider_llmbeam.pipeline.estimate.accuracy import estimate_accuracy
from airflow_provider_llmbeam.pipeline.lease.launcher import Launcher
from airflow_provider_llmbeam.pipeline.run_inference import handler_of_job
from airflow_provider_llmbeam.pipeline.sinks import check, staged_as
from airflow_provider_llmbeam.pipeline.transforms.account import TallyRows
from airflow_provider_llmbeam.pipeline.transforms.check_rows import after_row_check
from airflow_provider_llmbeam.pipeline.transforms.check_sink import after_sink_check
from airflow_provider_llmbeam.pipeline.transforms.identify_media import IdentifyMedia
from airflow_provider_llmbeam.pipeline.transforms.keys import unique
from airflow_provider_llmbeam.pipeline.transforms.publish import Publish
from airflow_provider_llmbeam.pipeline.transforms.read import TALLIES, ReadRows
from airflow_provider_llmbeam.pipeline.transforms.render import Render
from airflow_provider_llmbeam.pipeline.transforms.reuse import oldest_useful_at, reuse
from airflow_provider_llmbeam.pipeline.transforms.write import WriteStaged
from airflow_provider_llmbeam.spec.job import JobSpec


def build(
    root: beam.Pipeline, spec: JobSpec, progress_prefix: str | None = None, launcher: Launcher | None = None
) -> beam.PCollection:
    """Adds the steps of a job to a pipeline.

    Args:
        root: The pipeline.
        spec: The job.
        progress_prefix: See `CountingDoFn`.
        launcher: Process whose end ends the job, see `LLMModelHandler`.

    Returns:
        A collection with one element: the report as JSON text.

    Raises:
        JobSpecError: The source has nothing to read, or the sink cannot store the answers.
    """
    check(spec)
    started_at = time.time()
    source = root | "Read" >> ReadRows(spec, progress_prefix)
    rows, duplicate_keys, duplicates = unique(source["rows"], spec.source, progress_prefix)
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
        root, prompts, spec, duplicate_keys, oldest_at, started_at, progress_prefix
    )
    requests, *reused = after_row_check((requests, *reused), (source["rows"], source[FAILED]), spec)
    handler = handler_of_job(spec, oldest_at, started_at, progress_prefix=progress_prefix, launcher=launcher)
    inferred = (
        after_sink_check(root, requests, spec)
        | "RunInference" >> RunInference(handler)
        | "FanOut" >> beam.ParDo(FanOut()).with_outputs(FAILED, main="answered")
    )
    answered = (inferred["answered"], *reused)
    failures = (source[FAILED], *duplicates, *refused, *known_refusals, inferred[FAILED])
    failed = failures | "Failed" >> beam.Flatten()

    file_format, shards = staged_as(spec.sink)
    answer_files = answered | "WriteAnswers" >> WriteStaged(
        spec.staging_uri,
        "answers",
        file_format=file_format,
        shards=shards,
        columns=OutputColumns.of(spec),
    )
    failed_files = (failed,) | "WriteDeadLetter" >> WriteStaged(
        spec.staging_uri,
        "dead_letter",
        file_format="jsonl",
        is_private=True,  # it has all columns of the source
    )
    tallied = [
        rows | f"CountOut{number}" >> beam.ParDo(TallyRows(spec.batching.resolved_boundaries))
        for number, rows in enumerate((*answered, failed))
    ]
    tallies = (source[TALLIES], *tallied) | "Tallies" >> beam.Flatten()
    return (
        root
        | "Once" >> beam.Impulse()
        | "Publish"
        >> beam.ParDo(
            Publish(spec, started_at, estimate_accuracy),
            tallies=beam.pvalue.AsIter(tallies),
            answer_files=beam.pvalue.AsList(answer_files),
            failed_files=beam.pvalue.AsList(failed_files),
        )
    )


class FanOut(beam.DoFn):
    """Gives the answer, or the failure, of a request to each of its rows."""

    def process(self, result: PredictionResult) -> Iterator[AnsweredRow | beam.pvalue.TaggedOutput]:
        """Emits one element per row of a request."""
        request: Request = result.example
        for number, row in enumerate(request.rows):
            if isinstance(result.inference, Completion):
                first: Origin = "repaired" if result.inference.repairs else "fresh"
                yield AnsweredRow(row, request.fingerprint, result.inference, "duplicate" if number else first)
            else:
                yield beam.pvalue.TaggedOutput(
                    FAILED, FailedRow(row, result.inference, "duplicate" if number else "fresh")
                )
