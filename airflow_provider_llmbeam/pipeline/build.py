"""The whole graph on one screen."""

from __future__ import annotations

import time
from collections.abc import Iterator

import apache_beam as beam
from apache_beam.ml.inference.base import PredictionResult, RunInference

from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.pipeline.elements import DEAD, AnsweredRow, FailedRow, Origin, Request
from airflow_provider_llmbeam.pipeline.run_inference import LLMModelHandler
from airflow_provider_llmbeam.pipeline.sinks import check, staged_as
from airflow_provider_llmbeam.pipeline.transforms.account import CountRows, TallyRows
from airflow_provider_llmbeam.pipeline.transforms.check_sink import once_the_sink_is_checked
from airflow_provider_llmbeam.pipeline.transforms.keys import unique
from airflow_provider_llmbeam.pipeline.transforms.publish import Publish
from airflow_provider_llmbeam.pipeline.transforms.read import ReadRows
from airflow_provider_llmbeam.pipeline.transforms.render import Render
from airflow_provider_llmbeam.pipeline.transforms.reuse import oldest_useful_at, reuse
from airflow_provider_llmbeam.pipeline.transforms.write import WriteAside
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner.workers import limits_of_a_worker


def build(root: beam.Pipeline, spec: JobSpec) -> beam.PCollection:
    """Adds a job to a pipeline.

    Returns:
        One element: the report as JSON text.

    Raises:
        JobSpecError: The source has nothing to read, or the sink cannot take the answers.
    """
    check(spec)
    source = root | "Read" >> ReadRows(spec)
    rows, duplicate_keys, extra = unique(source["rows"], spec.source)
    rendered = rows | "Render" >> beam.ParDo(Render(spec)).with_outputs(DEAD, main="rows")
    oldest_at = oldest_useful_at(spec, time.time())
    requests, reused = reuse(root, rendered["rows"], spec, duplicate_keys, oldest_at)
    inferred = (
        once_the_sink_is_checked(root, requests, spec)
        | "RunInference" >> RunInference(handler_of(spec, oldest_at))
        | "FanOut" >> beam.ParDo(FanOut()).with_outputs(DEAD, main="answered")
    )
    answered = (inferred["answered"], *reused)
    dead = (source[DEAD], *extra, rendered[DEAD], inferred[DEAD]) | "Dead" >> beam.Flatten()

    file_format, shards = staged_as(spec.sink)
    answer_files = answered | "WriteAnswers" >> WriteAside(
        spec.staging_uri,
        "answers",
        file_format=file_format,
        shards=shards,
        key=spec.source.key,
        has_vectors=spec.embedding is not None,
    )
    dead_files = (dead,) | "WriteDeadLetter" >> WriteAside(spec.staging_uri, "dead_letter", file_format="jsonl")
    counted = [
        rows | f"CountIn{number}" >> beam.ParDo(CountRows())
        for number, rows in enumerate((source["rows"], source[DEAD]))
    ]
    tallied = [
        rows | f"CountOut{number}" >> beam.ParDo(TallyRows(spec.batching.resolved_boundaries))
        for number, rows in enumerate((*answered, dead))
    ]
    tallies = (*counted, *tallied) | "Tallies" >> beam.Flatten()
    return (
        root
        | "Once" >> beam.Impulse()
        | "Publish"
        >> beam.ParDo(
            Publish(spec, time.time()),
            tallies=beam.pvalue.AsIter(tallies),
            answer_files=beam.pvalue.AsList(answer_files),
            dead_files=beam.pvalue.AsList(dead_files),
        )
    )


class FanOut(beam.DoFn):
    """Hands one answer, or one failure, to every row that asked."""

    def process(self, result: PredictionResult) -> Iterator[AnsweredRow | beam.pvalue.TaggedOutput]:
        """Splits one prediction."""
        request: Request = result.example
        for number, row in enumerate(request.rows):
            if isinstance(result.inference, Completion):
                first: Origin = "repaired" if result.inference.repairs else "fresh"
                yield AnsweredRow(row, request.fingerprint, result.inference, "duplicate" if number else first)
            else:
                yield beam.pvalue.TaggedOutput(DEAD, FailedRow(row, result.inference, is_duplicate=number > 0))


def handler_of(spec: JobSpec, oldest_at: float) -> LLMModelHandler[Request]:
    """The engine of a job, with its limits and its journal."""
    return LLMModelHandler(
        spec.model,
        generation=spec.generation,
        limits=limits_of_a_worker(spec),
        batching=spec.batching,
        output_schema=spec.prompt.output_schema,
        embedding=spec.embedding,
        journal_uri=spec.journal_uri,
        oldest_at=oldest_at,
        prompt_of=lambda request: request.prompt,
        fingerprint_of=lambda request: request.fingerprint,
        job=spec.name,
        max_repairs=spec.prompt.max_repairs,
        environment_secrets=spec.environment_secrets,
    )
