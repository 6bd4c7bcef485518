"""Builds the graph of a job."""

from __future__ import annotations

import time
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.ml.inference.base import PredictionResult, RunInference

from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.pipeline.elements import FAILED, AnsweredRow, FailedRow, Origin, Request
from airflow_provider_llmbeam.pipeline.estimate.accuracy import estimate_accuracy
from airflow_provider_llmbeam.pipeline.run_inference import handler_of_job
from airflow_provider_llmbeam.pipeline.sinks import check, staged_as
from airflow_provider_llmbeam.pipeline.transforms.account import CountRows, TallyRows
from airflow_provider_llmbeam.pipeline.transforms.check_sink import after_sink_check
from airflow_provider_llmbeam.pipeline.transforms.keys import unique
from airflow_provider_llmbeam.pipeline.transforms.publish import Publish
from airflow_provider_llmbeam.pipeline.transforms.read import ReadRows
from airflow_provider_llmbeam.pipeline.transforms.render import Render
from airflow_provider_llmbeam.pipeline.transforms.reuse import oldest_useful_at, reuse
from airflow_provider_llmbeam.pipeline.transforms.write import WriteStaged
from airflow_provider_llmbeam.spec.job import JobSpec


def build(root: beam.Pipeline, spec: JobSpec) -> beam.PCollection:
    """Adds the steps of a job to a pipeline.

    Returns:
        A collection with one element: the report as JSON text.

    Raises:
        JobSpecError: The source has nothing to read, or the sink cannot store the answers.
    """
    check(spec)
    source = root | "Read" >> ReadRows(spec)
    rows, duplicate_keys, duplicates = unique(source["rows"], spec.source)
    rendered = rows | "Render" >> beam.ParDo(Render(spec)).with_outputs(FAILED, main="rows")
    oldest_at = oldest_useful_at(spec, time.time())
    requests, reused = reuse(root, rendered["rows"], spec, duplicate_keys, oldest_at)
    inferred = (
        after_sink_check(root, requests, spec)
        | "RunInference" >> RunInference(handler_of_job(spec, oldest_at))
        | "FanOut" >> beam.ParDo(FanOut()).with_outputs(FAILED, main="answered")
    )
    answered = (inferred["answered"], *reused)
    failed = (source[FAILED], *duplicates, rendered[FAILED], inferred[FAILED]) | "Failed" >> beam.Flatten()

    file_format, shards = staged_as(spec.sink)
    answer_files = answered | "WriteAnswers" >> WriteStaged(
        spec.staging_uri,
        "answers",
        file_format=file_format,
        shards=shards,
        key=spec.source.key,
        has_vectors=spec.embedding is not None,
    )
    failed_files = (failed,) | "WriteDeadLetter" >> WriteStaged(
        spec.staging_uri, "dead_letter", file_format="jsonl"
    )
    counted = [
        rows | f"CountIn{number}" >> beam.ParDo(CountRows())
        for number, rows in enumerate((source["rows"], source[FAILED]))
    ]
    tallied = [
        rows | f"CountOut{number}" >> beam.ParDo(TallyRows(spec.batching.resolved_boundaries))
        for number, rows in enumerate((*answered, failed))
    ]
    tallies = (*counted, *tallied) | "Tallies" >> beam.Flatten()
    return (
        root
        | "Once" >> beam.Impulse()
        | "Publish"
        >> beam.ParDo(
            Publish(spec, time.time(), estimate_accuracy),
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
                yield beam.pvalue.TaggedOutput(FAILED, FailedRow(row, result.inference, is_duplicate=number > 0))
