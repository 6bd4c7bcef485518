"""What is done with a job in this process without running it: it is estimated, evaluated, compared and more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from airflow_provider_llmbeam.pipeline.job import importing_beam
from airflow_provider_llmbeam.pipeline.launch.client import check_guard, check_model, check_privacy
from airflow_provider_llmbeam.pipeline.launch.failure import preparation
from airflow_provider_llmbeam.spec.evaluation import (
    AnswerSample,
    Comparison,
    Evaluation,
    GoldenAddition,
    PreviewSample,
)
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety import RowsToForget


def estimate(spec: JobSpec, sample_size: int) -> dict[str, Any]:
    """Estimates a job; see `estimate.run.make_estimate`.

    Args:
        spec: The job.
        sample_size: Number of prompts sent to the model; the job keeps their answers.

    Raises:
        JobSpecError: There is nothing to estimate; nothing was sent.
        NothingAnsweredError: The model answered none of the prompts.
    """
    with _in_process(spec, sends=sample_size > 0):
        if sample_size > 0 and not spec.environment_secrets:
            check_guard(spec)
        from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate

        return make_estimate(spec, sample_size).model_dump(mode="json")


def evaluate(spec: JobSpec, evaluation: Evaluation) -> dict[str, Any]:
    """Evaluates a job on a golden set; see `evaluation.run.evaluate`.

    Returns:
        The manifest; `passed` says whether the scores are accepted.

    Raises:
        JobSpecError: The golden set or a metric does not fit; nothing was sent.
        JobFailedError: The server left rows unanswered; a retry sends only the rest.
    """
    with _in_process(spec):
        from airflow_provider_llmbeam.pipeline.measure.evaluation import run as evaluations

        return evaluations.evaluate(spec, evaluation).manifest(spec)


def compare(spec: JobSpec, comparison: Comparison) -> dict[str, Any]:
    """Compares a job with another one; see `evaluation.compare.compare`.

    Returns:
        The manifest.

    Raises:
        JobSpecError: The other job is not valid, or there is no row to send; nothing was sent.
        JobFailedError: A server left rows unanswered; a retry sends only the rest.
    """
    with _in_process(spec):
        from airflow_provider_llmbeam.pipeline.measure.evaluation import compare as comparisons

        return comparisons.compare(spec, comparison).manifest(spec)


def preview(spec: JobSpec, sample: PreviewSample) -> dict[str, Any]:
    """Previews a job; see `evaluation.preview.make_preview`.

    Returns:
        The preview as plain data, see `preview.Preview`.

    Raises:
        JobSpecError: There is no such row; nothing was sent.
        LLMBeamError: The prompts could not be sent.
    """
    with _in_process(spec, sends=sample.sends):
        from airflow_provider_llmbeam.pipeline.measure.evaluation.preview import make_preview

        return make_preview(spec, sample).plain()


def review(spec: JobSpec, step: AnswerSample | GoldenAddition) -> dict[str, Any]:
    """Selects answers for a review, or makes golden rows of its verdicts; see `review.sample` and `review.golden`.

    Returns:
        The manifest.

    Raises:
        JobSpecError: There is no such answer, or a verdict does not fit.
    """
    with _in_process(spec, sends=False):
        from airflow_provider_llmbeam.pipeline.measure.review.golden import add_golden_rows
        from airflow_provider_llmbeam.pipeline.measure.review.sample import sample_answers

        return sample_answers(spec, step) if isinstance(step, AnswerSample) else add_golden_rows(spec, step)


def diff(spec: JobSpec, old: JobSpec) -> dict[str, Any]:
    """Compares a spec with an earlier one, without a request; see `evaluation.difference.difference`.

    Returns:
        The difference as plain data, see `evaluation.difference.Difference`.

    Raises:
        JobSpecError: The source has no row to send.
    """
    with _in_process(spec, sends=False):
        from airflow_provider_llmbeam.pipeline.measure.evaluation.difference import difference

        return difference(old, spec).plain()


def forget(spec: JobSpec, rows: RowsToForget) -> dict[str, Any]:
    """Removes the answers of some rows; see `forget.run.forget`.

    Returns:
        What was removed as plain data, see `forget.outcome.Forgotten`.

    Raises:
        JobFailedError: The job is running.
    """
    with _in_process(spec, sends=False):
        from airflow_provider_llmbeam.pipeline.measure.forget import run as removal

        return removal.forget(spec, rows).model_dump(mode="json")


@contextmanager
def _in_process(spec: JobSpec, *, sends: bool = True) -> Iterator[None]:
    """Prepares for requests in this process, without a graph; an invalid job is rejected before.

    Args:
        spec: The job.
        sends: Whether any request is sent.
    """
    from airflow_provider_llmbeam.pipeline.launch.reachable import check_reachable

    check_reachable(spec)
    with importing_beam():
        from airflow_provider_llmbeam.pipeline import storage
        from airflow_provider_llmbeam.pipeline.audit.load import loaded
        from airflow_provider_llmbeam.pipeline.launch.writable import check_writable

    if not spec.environment_secrets:
        if sends:
            check_model(spec)
        check_privacy(spec)
    for uri in spec.paths.private_uris:
        storage.make_private(uri)
    if sends:
        check_writable(spec, publishes=False)
    with loaded(spec) if sends else nullcontext(), preparation(spec):
        yield
