"""Evaluates a job on a golden set: the scores of its answers, their report, and whether they are accepted."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.measure.answers import (
    Answers,
    answer_rows,
    check_generates,
    check_models,
    cost_usd,
    keep_answers,
    render_rows,
)
from airflow_provider_llmbeam.pipeline.measure.judge import grade, grading_job
from airflow_provider_llmbeam.pipeline.measure.metrics import (
    NO_ANSWER,
    Mark,
    Marker,
    Score,
    make_marker,
    score_marks,
)
from airflow_provider_llmbeam.pipeline.measure.rows import KeyedRows, read_golden
from airflow_provider_llmbeam.pipeline.reporting.html import shorten
from airflow_provider_llmbeam.pipeline.reporting.report import TracedRow
from airflow_provider_llmbeam.pipeline.reporting.traced_rows import RowTracer, TracedRows
from airflow_provider_llmbeam.pipeline.secrets import known_secrets
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.conversation import refuse_conversation
from airflow_provider_llmbeam.spec.evaluation import Evaluation, JudgeMetric
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import usd

_log = logging.getLogger("llmbeam")

#: Marks by metric, then by key.
Marks = Mapping[str, Mapping[str, Mark]]

#: Differences that floating-point numbers make are none.
_EPSILON = 1e-9


class WrongAnswer(BaseModel):
    """An answer that a metric does not score as right.

    Attributes:
        key: Key of its row, as JSON.
        answer: The answer; `None` without one.
        failure: Reason why there is none; empty if there is one.
        marks: Marks of the answer by metric, from 0 to 1.
        expected: Expected values by metric.
        notes: Reasons by metric, e.g. of a judge.
    """

    key: str
    answer: Any
    failure: str = ""
    marks: dict[str, float]
    expected: dict[str, Any] = {}
    notes: dict[str, str] = {}

    def lines(self) -> Iterator[str]:
        """Yields the case as lines of text."""
        yield f"Row {self.key}"
        yield f"  answered   {self.failure or shorten(self.answer)}"
        for name, mark in self.marks.items():
            if mark < 1:
                expected = f"expected {shorten(self.expected[name])}" if name in self.expected else f"{mark:.2f}"
                note = self.notes.get(name, "")
                yield f"  {name:<10} {expected}{note and f' ({shorten(note)})'}"


class EvaluationReport(BaseModel):
    """What an evaluation has found.

    Attributes:
        version: Version of this format.
        name: Name of the job.
        model: Type and name of its model.
        made_at: Unix time of the evaluation.
        golden: Digest of the golden set and the metrics: scores of equal ones can be compared.
        rows: Number of rows of the golden set.
        unanswered: Number of rows whose answer was refused; each metric scores them 0, a judge is not asked.
        scores: Scores by metric.
        faults: The scores that are not accepted, as sentences; none if the evaluation passed.
        on_failure: What follows if it did not pass, see `spec.evaluation.Evaluation`.
        accepted_at: Unix time of the evaluation whose scores these were compared with; `None` if with none.
        requests: Number of requests that were sent now, those to judges included.
        cost_usd: Their cost, in US dollars, without those to judges; `None` if no price is known.
        judge_cost_usd: Cost of the requests to judges.
        usd_per_thousand_rows: Cost of the answers to a thousand such rows, without duplicates.
        wrong: The wrong answers with the lowest marks.
        wrong_count: Number of all wrong answers.
        traced: Rows that a judge has graded, for the trace; of no file.
    """

    version: int = 1
    name: str
    model: str
    made_at: float
    golden: str
    rows: int
    unanswered: int
    scores: dict[str, Score]
    faults: list[str]
    on_failure: str
    accepted_at: float | None
    requests: int
    cost_usd: float | None
    judge_cost_usd: float | None
    usd_per_thousand_rows: float | None
    wrong: list[WrongAnswer]
    wrong_count: int
    traced: list[TracedRow] = Field(default=[], exclude=True)

    @property
    def passed(self) -> bool:
        """Whether all scores are accepted."""
        return not self.faults

    def lines(self) -> Iterator[str]:
        """Yields the report as lines of text."""
        yield f"Evaluation of {self.name}, {self.model}: {'passed' if self.passed else 'NOT passed'}"
        yield f"Rows       {self.rows:,}, of them {self.unanswered:,} without an answer"
        for name, score in self.scores.items():
            yield f"{name:<10} {score} of {score.rows:,} rows"
            for label, each in score.labels.items():
                yield (
                    f"           {shorten(label)}: F1 {each.f1:.3f}, precision {each.precision:.3f}, "
                    f"recall {each.recall:.3f} of {each.rows:,} rows"
                )
        yield f"Requests   {self.requests:,}, {say_cost(self.cost_usd)}, judges {say_cost(self.judge_cost_usd)}"
        for fault in self.faults:
            yield f"Refused    {fault}"
        yield from case_lines(self.wrong, self.wrong_count, "wrong answers")

    def manifest(self, spec: JobSpec) -> dict[str, Any]:
        """Returns the summary for Airflow: the same without cases and labels, and the addresses of the files."""
        fields = self.model_dump(mode="json", exclude={"wrong": True, "scores": {"__all__": {"labels"}}})
        traced = {"traced_rows": [row.model_dump(mode="json") for row in self.traced]}
        return fields | {"passed": self.passed} | report_uris(spec, "evaluation") | traced


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
    rows = read_golden(spec, evaluation.golden, evaluation.expected_columns)
    schema, metrics = spec.prompt.output_schema, evaluation.metrics
    markers = {name: make_marker(name, metric, rows, schema) for name, metric in metrics.items()}
    judges = {
        name: grading_job(spec, metric) for name, metric in metrics.items() if isinstance(metric, JudgeMetric)
    }
    prompts = render_rows(spec, rows)
    for key, prompt in prompts.items():
        if isinstance(prompt, Failure):
            raise JobSpecError(f"`golden`: no prompt could be made of row {key}: {prompt.message.rstrip('.')}.")
    check_models(spec, *judges.values())
    with keep_answers(spec):
        answers = answer_rows(spec, prompts)
        marks, judged = _mark(markers, judges, rows, answers)
        report = _report(spec, evaluation, rows, answers, marks, judged)
        write_report(spec, "evaluation", report, report.lines())
        if report.passed:
            storage.replace(spec.paths.accepted_uri, report.model_dump_json(indent=2).encode())
    return report


def faults(evaluation: Evaluation, scores: Mapping[str, Score], accepted: Mapping[str, Score] | None) -> list[str]:
    """Returns the scores that are not accepted, as sentences.

    Args:
        evaluation: The thresholds.
        scores: Scores by metric.
        accepted: Those of the last accepted evaluation of the same golden set; `None` without one.
    """
    found = [
        f"{name} is {scores[name]}, and `minimum` is {minimum:g}."
        for name, minimum in evaluation.minimum.items()
        if scores[name].score < minimum - _EPSILON
    ]
    drop = evaluation.max_drop
    found += [
        f"{name} is {scores[name]}, and the last accepted evaluation had {before.score:.3f}; "
        f"`max_drop` is {drop:g}."
        for name, before in (accepted or {}).items()
        if drop is not None and scores[name].score < before.score - drop - _EPSILON
    ]
    return found


def read_accepted(spec: JobSpec) -> EvaluationReport | None:
    """Reads the last accepted evaluation of a job; `None` if there is none that can be read."""
    uri = spec.paths.accepted_uri
    if not storage.exists(uri):
        return None
    try:
        return EvaluationReport.model_validate_json(storage.read(uri))
    except ValidationError as error:
        _log.warning("The last accepted evaluation %r cannot be read, and is not compared with: %s", uri, error)
        return None


def write_report(spec: JobSpec, name: str, report: BaseModel, lines: Iterator[str]) -> None:
    """Logs a report, and writes it below the state of a job: `name.json`, and its lines as `name.txt`."""
    text = list(lines)
    for line in text:
        _log.info("%s", line)
    uris = report_uris(spec, name)
    storage.replace(uris["report_uri"], report.model_dump_json(indent=2).encode())
    storage.replace(uris["text_uri"], "\n".join([*text, ""]).encode(errors="replace"))


def report_uris(spec: JobSpec, name: str) -> dict[str, str]:
    """Returns the addresses of a report and its text, as a manifest has them."""
    return {"report_uri": f"{spec.paths.home_uri}{name}.json", "text_uri": f"{spec.paths.home_uri}{name}.txt"}


def case_lines(cases: list[Any], count: int, title: str) -> Iterator[str]:
    """Yields some cases of a report as lines of text, after a line that says how many there are."""
    if count:
        yield f"{count:,} {title}{f', {len(cases):,} of them' if len(cases) < count else ''}:"
    for case in cases:
        yield from case.lines()


def say_cost(amount: float | None) -> str:
    """Returns an amount for people."""
    return "cost not known" if amount is None else usd(amount)


def _mark(
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
        grades, of_judge = grade(judges[name], rows, answers) if values else ({}, Answers())
        judged.append(of_judge)
        marks[name] = {key: Mark(0.0) for key in rows if key not in values} | grades
    return marks, judged


def _report(
    spec: JobSpec, evaluation: Evaluation, rows: KeyedRows, answers: Answers, marks: Marks, judged: list[Answers]
) -> EvaluationReport:
    scores = {name: score_marks([*found.values()], evaluation.seed) for name, found in marks.items()}
    digest = _digest(evaluation, rows)
    accepted = None if evaluation.max_drop is None else read_accepted(spec)
    if accepted is not None and accepted.golden != digest:
        _log.warning(
            "`max_drop` is not applied: the golden set or the metrics have changed since the last accepted "
            "evaluation."
        )
        accepted = None
    wrong = _wrong_answers(rows, answers, marks)
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
        judge_cost_usd=cost_usd(outcome for each in judged for outcome in each.sent),
        usd_per_thousand_rows=answers.usd_per_thousand_rows,
        wrong=wrong[: evaluation.max_cases],
        wrong_count=len(wrong),
        traced=_judged_rows(spec, evaluation, rows, answers, marks),
    )


def _judged_rows(
    spec: JobSpec, evaluation: Evaluation, rows: KeyedRows, answers: Answers, marks: Marks
) -> list[TracedRow]:
    """Returns the rows that a judge has graded, with all their marks, as the job's trace has them."""
    traced, tracer = TracedRows(), RowTracer(spec.traces, spec.source.key)
    judges = [name for name, metric in evaluation.metrics.items() if isinstance(metric, JudgeMetric)]
    sent = {*map(id, answers.sent)}  # equal outcomes of two rows are one value
    for key in {key: None for name in judges for key in marks[name]}:
        scores = {name: by_key[key].value for name, by_key in marks.items() if key in by_key}
        outcome = answers.by_key[key]
        tracer.keep(traced, "judged", rows[key], outcome, scores=scores, is_own=id(outcome) in sent)
    secrets = known_secrets(spec.secret_variables)
    return traced.rows(spec.traces.max_rows, lambda text: redact(text, secrets))


def _wrong_answers(rows: KeyedRows, answers: Answers, marks: Marks) -> list[WrongAnswer]:
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
