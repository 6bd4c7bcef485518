"""Builds the graph of a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import apache_beam as beam
from apache_beam.ml.inference.base import PredictionResult, RunInference

from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.pipeline.cascade.comparer import CompareAudited
from airflow_provider_llmbeam.pipeline.cascade.transform import PairAudited
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.conversation.store import WriteHistory
from airflow_provider_llmbeam.pipeline.conversation.transform import HISTORY, ConversationHandler, FanOutTurns
from airflow_provider_llmbeam.pipeline.elements import FAILED, AnsweredRow, FailedRow, Origin, Request
from airflow_provider_llmbeam.pipeline.feature import Results
from airflow_provider_llmbeam.pipeline.features import features_of
from airflow_provider_llmbeam.pipeline.job_handler import JobHandler
from airflow_provider_llmbeam.pipeline.measure.estimate.estimate import estimate_accuracy
from airflow_provider_llmbeam.pipeline.measure.estimate.ways import deadline_at
from airflow_provider_llmbeam.pipeline.privacy.feature import restore_answers
from airflow_provider_llmbeam.pipeline.reporting.answer_profile import label_fields
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally, add_up
from airflow_provider_llmbeam.pipeline.sinks import staged_as
from airflow_provider_llmbeam.pipeline.transforms.account import TallyRows
from airflow_provider_llmbeam.pipeline.transforms.check_sink import wait_for_sink_check
from airflow_provider_llmbeam.pipeline.transforms.publish import Publish
from airflow_provider_llmbeam.pipeline.transforms.read_requests import read_requests
from airflow_provider_llmbeam.pipeline.transforms.write import WriteStaged, separate_misfits
from airflow_provider_llmbeam.pipeline.transforms.write_report import ReportWriter
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.sink import FilesSink

if TYPE_CHECKING:
    from airflow_provider_llmbeam.pipeline.batch_inference.manifest import BatchManifest
    from airflow_provider_llmbeam.pipeline.cascade.run import BegunCascade
    from airflow_provider_llmbeam.pipeline.prefix_cache import PrefixCache


def build(
    root: beam.Pipeline,
    spec: JobSpec,
    context: RunContext,
    batch: BatchManifest | None = None,
    cache: PrefixCache | None = None,
    cascade: BegunCascade | None = None,
) -> beam.PCollection:
    """Adds the steps of a job to a pipeline.

    Args:
        root: The pipeline.
        spec: The job.
        context: Its run.
        batch: The batch inference of this run, whose answers are in the journal; `None` without any.
        cache: What the provider has stored of the prompts; `None` for nothing.
        cascade: The calibrated cascade; `None` for a job without one.

    Returns:
        A collection with one element: the report as JSON text.

    Raises:
        JobSpecError: The source has nothing to read.
    """
    deadline = batch.deadline_at if batch is not None else deadline_at(spec, context.started_at)
    features = features_of(spec)
    requests, replaced, results = read_requests(root, spec, context, features)
    audited = results.audited
    handler = (JobHandler[Request] if spec.conversation is None else ConversationHandler)(spec, context)
    fan_out = FanOut() if spec.conversation is None else FanOutTurns()
    predictions = wait_for_sink_check(root, requests, spec, context) | "RunInference" >> RunInference(handler)
    inferred = predictions | "FanOut" >> beam.ParDo(fan_out).with_outputs(FAILED, HISTORY, main="answered")
    results = Results(
        [inferred["answered"], *results.answered], [*results.failed, inferred[FAILED]], results.tallies
    )
    for feature in features:
        results = feature.change_answers(results, context)
    fitting, misfits = separate_misfits(results.answered, spec)
    answered = (*fitting, *replaced)
    failed = (*results.failed, *misfits) | "Failed" >> beam.Flatten()

    file_format, shards = staged_as(spec.sink)
    # After all features, which see placeholders; it also counts what was masked.
    restored, sealed, masked = restore_answers(answered, failed, spec)
    answer_files = tuple(restored) | "WriteAnswers" >> WriteStaged(
        spec.paths.staging_uri,
        "answers",
        file_format=file_format,
        shards=shards,
        columns=OutputColumns.of(spec),
        keeps_rows=not isinstance(spec.sink, FilesSink),  # which stores any answer
    )
    failed_files = (sealed,) | "WriteDeadLetter" >> WriteStaged(
        spec.paths.staging_uri,
        "dead_letter",
        file_format="jsonl",
        is_private=True,  # it has all columns of the source
    )
    # `answered`, and not `restored`: samples and labels in the report stay masked.
    tallied = [
        rows
        | f"CountOut{number}"
        >> beam.ParDo(
            TallyRows(
                spec.batching.resolved_boundaries,
                spec.source.key,
                label_fields(spec.prompt.output_schema),
                spec.traces,
            )
        )
        for number, rows in enumerate((*answered, failed))
    ]
    if batch is not None:
        tallied.append(root | "BatchInference" >> beam.Create([batch.tally()]))
    if cascade is not None:
        # What was sent for the calibration is in the manifest of batch inference, if there is one.
        sampled = Tally() if batch is not None and batch.cascade else cascade.tally
        tallied += [
            root | "Calibration" >> beam.Create([sampled]),
            (*audited, predictions | "PairAudited" >> beam.ParDo(PairAudited(spec, context)))
            | "Audited" >> beam.Flatten()
            | "CompareAudited" >> CompareAudited(spec),
        ]
    every_tally = (*results.tallies, *masked, *tallied) | "Tallies" >> beam.Flatten()
    tally = every_tally | "AddUpTallies" >> beam.CombineGlobally(add_up).without_defaults()
    history = {}
    if spec.conversation is not None:
        history["history_files"] = beam.pvalue.AsList(inferred[HISTORY] | "WriteHistory" >> WriteHistory(spec))
    report = ReportWriter(spec, context.started_at, estimate_accuracy, batch, deadline, context.cascade)
    return (
        root
        | "Once" >> beam.Impulse()
        | "Publish"
        >> beam.ParDo(
            Publish(spec, report, features, cache),
            tally=beam.pvalue.AsSingleton(tally, Tally()),
            answer_files=beam.pvalue.AsList(answer_files),
            failed_files=beam.pvalue.AsList(failed_files),
            **history,
        )
    )


class FanOut(beam.DoFn):
    """Gives the answer, or the failure, of a request to each of its rows."""

    def process(self, result: PredictionResult) -> Iterator[AnsweredRow | beam.pvalue.TaggedOutput]:
        """Emits one element per row of a request."""
        request: Request = result.example
        outcome = result.inference
        if isinstance(outcome, Failure) and request.batch_error is not None:
            message = f"{outcome.message} Batch inference has failed it before: {request.batch_error}"
            outcome = replace(outcome, message=message)
        for number, row in enumerate(request.rows):
            if isinstance(outcome, Completion):
                first: Origin = "repaired" if outcome.repairs else "fresh"
                yield AnsweredRow(row, request.fingerprint, outcome, "duplicate" if number else first)
            else:
                yield beam.pvalue.TaggedOutput(FAILED, FailedRow(row, outcome, "duplicate" if number else "fresh"))
