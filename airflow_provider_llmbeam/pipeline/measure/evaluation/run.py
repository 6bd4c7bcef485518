"""Evaluates a job on a golden set."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.measure.evaluation.answers import (
    Answers,
    answered,
    answers_are_kept,
    rendered,
)
from airflow_provider_llmbeam.pipeline.measure.evaluation.gate import faults
from airflow_provider_llmbeam.pipeline.measure.evaluation.judging import check_job, grades, grading_job
from airflow_provider_llmbeam.pipeline.measure.evaluation.marks import NO_ANSWER, Marker, marker_of
from airflow_provider_llmbeam.pipeline.measure.evaluation.report import (
    EvaluationReport,
    WrongAnswer,
    read_accepted,
    write_report,
)
from airflow_provider_llmbeam.pipeline.measure.evaluation.rows import KeyedRows, golden_rows
from airflow_provider_llmbeam.pipeline.measure.evaluation.scores import Mark, score_of
from airflow_provider_llmbeam.spec.conversation import refuse_conversation
from airflow_provider_llmbeam.spec.evaluation import Evaluation, JudgeMetric
from airflow_provider_llmbeam.spec.job import JobSpec

_log = logging.getLogger("llmbeam")

#: Marks by metric, then by key.
Marks = Mapping[str, Mapping[str, Mark]]


def evaluate(spec: JobSpec, evaluation: Evaluation) -> EvaluationReport:
    """Evaluates a job on a golden set, and writes `evaluation.json` and `evaluation.txt` below its state.

    The rows go through the prompt, the model and the parameters of the job, and its journal or cache: only what
    they do not hold is sent. Nothing is written to the sink. If the scores are accepted, `accepted.json` has them
    for the next evaluation.

    Args:
        spec: The job; its source is not read.
        evaluation: Golden set, metrics and thresholds.

    Raises:
        JobSpecError: The golden set or a metric does not fit; nothing was sent.
        JobFailedError: The server left rows unanswered, or the report cannot be written; a retry sends only the
            rest.
        BudgetExceededError: The budget of the job or of a judge is spent.
    """
    check_generates(spec)
    refuse_conversation(spec, "an evaluation")
    rows = golden_rows(spec, evaluation.golden, evaluation.expected_columns)
    schema = spec.prompt.output_schema
    markers = {name: marker_of(name, metric, rows, schema) for name, metric in evaluation.metrics.items()}
    judges = {
        name: grading_job(spec, metric)
        for name, metric in evaluation.metrics.items()
        if isinstance(metric, JudgeMetric)
    }
    prompts = rendered(spec, rows)
    for key, prompt in prompts.items():
        if isinstance(prompt, Failure):
            raise JobSpecError(
                f"`golden`: row {key} becomes no prompt: {prompt.message.rstrip('.')}. Nothing was sent or billed."
            )
    for job in (spec, *judges.values()):
        check_job(job)
    with answers_are_kept(spec):
        answers = answered(spec, prompts)
        marks, judged = _marks(markers, judges, rows, answers)
        report = _report(spec, evaluation, rows, answers, marks, judged)
        write_report(spec, "evaluation", report, report.lines())
        if report.passed:
            storage.replace(spec.paths.accepted_uri, report.model_dump_json(indent=2).encode())
    return report


def check_generates(spec: JobSpec) -> None:
    """Refuses a job that embeds.

    Raises:
        JobSpecError: Its answers are vectors.
    """
    if spec.embedding is not None:
        raise JobSpecError(
            "`task`: vectors cannot be compared with expected answers; expected 'generate', got 'embed'. Nothing "
            "was sent or billed."
        )


def _marks(
    markers: Mapping[str, Marker | None], judges: Mapping[str, JobSpec], rows: KeyedRows, answers: Answers
) -> tuple[dict[str, dict[str, Mark]], list[Answers]]:
    """Returns the marks by metric and key, and the answers of the judges."""
    values = answers.values()
    marks: dict[str, dict[str, Mark]] = {}
    judged = []
    for name, marker in markers.items():
        if marker is not None:
            marks[name] = {key: marker(row, values.get(key, NO_ANSWER)) for key, row in rows.items()}
            continue
        graded, of_judge = grades(judges[name], rows, answers) if values else ({}, Answers({}, ()))
        judged.append(of_judge)
        marks[name] = {key: Mark(0.0) for key in rows if key not in values} | graded
    return marks, judged


def _report(
    spec: JobSpec, evaluation: Evaluation, rows: KeyedRows, answers: Answers, marks: Marks, judged: list[Answers]
) -> EvaluationReport:
    scores = {name: score_of([*found.values()], evaluation.seed) for name, found in marks.items()}
    digest = _digest(evaluation, rows)
    accepted = None if evaluation.max_drop is None else read_accepted(spec)
    if accepted is not None and accepted.golden != digest:
        _log.warning(
            "`max_drop` is not applied: the golden set or the metrics have changed since the last accepted "
            "evaluation."
        )
        accepted = None
    wrong = _wrong(rows, answers, marks)
    costs = [each.cost_usd for each in judged]
    return EvaluationReport(
        name=spec.name,
        model=f"{spec.model.type}:{spec.model.name}",
        made_at=time.time(),
        golden=digest,
        rows=len(rows),
        unanswered=len(rows) - len(answers.values()),
        scores=scores,
        faults=faults(evaluation, scores, None if accepted is None else accepted.scores),
        on_failure=evaluation.on_failure,
        accepted_at=None if accepted is None else accepted.made_at,
        requests=sum(len(each.sent) for each in (answers, *judged)),
        cost_usd=answers.cost_usd,
        judge_cost_usd=None if None in costs else sum(filter(None, costs)),
        usd_per_thousand_rows=answers.usd_per_thousand_rows,
        wrong=wrong[: evaluation.max_cases],
        wrong_count=len(wrong),
    )


def _wrong(rows: KeyedRows, answers: Answers, marks: Marks) -> list[WrongAnswer]:
    """Returns the rows that a metric does not score as right, those with the lowest marks first."""
    values = answers.values()
    found = []
    for key in rows:
        of_row = {name: by_key[key] for name, by_key in marks.items() if key in by_key}
        if all(mark.value >= 1 for mark in of_row.values()):
            continue
        outcome = answers.by_key[key]
        found.append(
            WrongAnswer(
                key=key,
                answer=values.get(key),
                failure=f"{outcome.kind}: {outcome.message}" if isinstance(outcome, Failure) else "",
                marks={name: mark.value for name, mark in of_row.items()},
                expected={name: mark.expected for name, mark in of_row.items() if mark.expected is not None},
                notes={name: mark.note for name, mark in of_row.items() if mark.note},
            )
        )
    return sorted(found, key=lambda each: (sum(each.marks.values()) / len(each.marks), each.key))


def _digest(evaluation: Evaluation, rows: KeyedRows) -> str:
    """Returns the digest of a golden set and its metrics, in hexadecimal digits."""
    content: Any = [
        sorted(rows.items()),
        {name: metric.model_dump(mode="json") for name, metric in evaluation.metrics.items()},
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
