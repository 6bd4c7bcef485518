"""The steps of `spec.protocol.steps`: what is done with a job in this process, without a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.audit.load import load_audit_around
from airflow_provider_llmbeam.pipeline.features import features_of
from airflow_provider_llmbeam.pipeline.launch.bucket_keys import check_bucket_keys
from airflow_provider_llmbeam.pipeline.launch.failure import preparation
from airflow_provider_llmbeam.pipeline.launch.keys import check_model
from airflow_provider_llmbeam.pipeline.launch.reachable import check_reachable
from airflow_provider_llmbeam.pipeline.launch.writable import check_writable, make_directories
from airflow_provider_llmbeam.pipeline.measure.pages import page_of
from airflow_provider_llmbeam.pipeline.privacy.masker import masker_of
from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.evaluation import (
    AnswerSample,
    Comparison,
    Evaluation,
    GoldenAddition,
    PreviewSample,
)
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.steps import STEPS, CascadeTable, EstimateSample
from airflow_provider_llmbeam.spec.safety import RowsToForget
from airflow_provider_llmbeam.spec.stream import StreamRun


def run_step(
    name: str,
    spec: JobSpec,
    given: SpecModel,
    *,
    alerts_path: Path | None = None,
    page_path: Path | None = None,
) -> dict[str, Any]:
    """Does a step of a job; an invalid job is rejected before.

    Args:
        name: Name of the step, a key of `STEPS`.
        spec: The job.
        given: What the step is asked for, of its input type.
        alerts_path: File to which a resident step adds a line for each alert; `None` for none.
        page_path: File to which it writes its page again and again; `None` for none.

    Returns:
        `result`, as plain data; of an estimate, an evaluation and a comparison `page`, see `page_of`; and of an
        estimate `log`, its lines.

    Raises:
        JobSpecError: The job or the input does not fit, e.g. there is no such row; nothing was sent.
        JobFailedError: The server left rows unanswered, so that a retry sends only the rest; or rows are to be
            forgotten while the job is running.
        NothingAnsweredError: The model answered none of the prompts.
    """
    storage.use_key(spec.kms_key_name)
    with _in_process(spec, sends=STEPS[name].sends(given)):
        is_resident = isinstance(given, StreamRun)
        return _FUNCTIONS[name](spec, given, *((alerts_path, page_path) if is_resident else ()))


def _estimate(spec: JobSpec, sample: EstimateSample) -> dict[str, Any]:
    from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate

    if sample.sample_size > 0 and not spec.environment_secrets:
        for feature in features_of(spec):
            feature.check_keys()
    estimate = make_estimate(spec, sample.sample_size)
    budget, uri = spec.limits.budget_usd, spec.paths.estimate_uri
    lines = [*estimate.lines()]
    page = page_of("estimate", spec, estimate, uri, lines=lines, budget_usd=budget)
    return {"result": estimate.model_dump(mode="json"), "page": page, "log": lines}


def _evaluate(spec: JobSpec, evaluation: Evaluation) -> dict[str, Any]:
    from airflow_provider_llmbeam.pipeline.measure.evaluate import evaluate

    report = evaluate(spec, evaluation)
    manifest = report.manifest(spec)
    return {"result": manifest, "page": page_of("evaluation", spec, report, manifest["text_uri"])}


def _compare(spec: JobSpec, comparison: Comparison) -> dict[str, Any]:
    from airflow_provider_llmbeam.pipeline.measure.compare import compare

    report = compare(spec, comparison)
    manifest = report.manifest(spec)
    return {"result": manifest, "page": page_of("comparison", spec, report, manifest["text_uri"])}


def _preview(spec: JobSpec, sample: PreviewSample) -> dict[str, Any]:
    from airflow_provider_llmbeam.pipeline.measure.preview import make_preview

    return {"result": make_preview(spec, sample).plain()}


def _check(spec: JobSpec, sample: PreviewSample) -> dict[str, Any]:
    from airflow_provider_llmbeam.pipeline.measure.check import check_job
    from airflow_provider_llmbeam.pipeline.prepared_job import check_keys, check_outputs

    check_keys(spec)
    check_outputs(spec)
    return {"result": check_job(spec, sample).model_dump(mode="json")}


def _try_cascade(spec: JobSpec, table: CascadeTable) -> dict[str, Any]:
    from airflow_provider_llmbeam.pipeline.cascade.trial import try_cascade
    from airflow_provider_llmbeam.pipeline.prepared_job import check_keys

    if not spec.environment_secrets:
        check_keys(spec)
    return {"result": try_cascade(spec, table).model_dump(mode="json")}


def _run_stream(spec: JobSpec, run: StreamRun, alerts_path: Path | None, page_path: Path | None) -> dict[str, Any]:
    from airflow_provider_llmbeam.pipeline.stream.run import run_stream

    return {"result": run_stream(spec, run, alerts_path, page_path)}


def _sample_answers(spec: JobSpec, sample: AnswerSample) -> dict[str, Any]:
    from airflow_provider_llmbeam.pipeline.measure.review import sample_answers

    return {"result": sample_answers(spec, sample)}


def _add_golden_rows(spec: JobSpec, addition: GoldenAddition) -> dict[str, Any]:
    from airflow_provider_llmbeam.pipeline.measure.review import add_golden_rows

    return {"result": add_golden_rows(spec, addition)}


def _diff(spec: JobSpec, old: JobSpec) -> dict[str, Any]:
    from airflow_provider_llmbeam.pipeline.measure.diff import diff_specs

    return {"result": diff_specs(old, spec).model_dump(mode="json")}


def _forget(spec: JobSpec, rows: RowsToForget) -> dict[str, Any]:
    from airflow_provider_llmbeam.pipeline.measure.forget.run import forget

    return {"result": forget(spec, rows).model_dump(mode="json")}


_FUNCTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "estimate": _estimate,
    "evaluate": _evaluate,
    "compare": _compare,
    "preview": _preview,
    "check": _check,
    "cascade": _try_cascade,
    "stream": _run_stream,
    "sample_answers": _sample_answers,
    "add_golden": _add_golden_rows,
    "diff": _diff,
    "forget": _forget,
}


@contextmanager
def _in_process(spec: JobSpec, *, sends: bool) -> Iterator[None]:
    """Prepares for requests in this process."""
    check_reachable(spec)
    if not spec.environment_secrets:
        if sends:
            check_model(spec)
        masker_of(spec)  # fails without the key of the placeholders; no step but the estimate needs a guard
    check_bucket_keys(spec)
    make_directories(spec)
    if sends:
        check_writable(spec, publishes=False)
    with load_audit_around(spec) if sends else nullcontext(), preparation(spec):
        yield
