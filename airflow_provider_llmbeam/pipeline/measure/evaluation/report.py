"""The report of an evaluation, and the list of its wrong answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.measure.evaluation.scores import Score
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import usd

_log = logging.getLogger("llmbeam")

#: Maximum length of a value in a line of text, in characters.
_SHOWN = 300


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
        yield f"  answered   {self.failure or shown(self.answer)}"
        for name, mark in self.marks.items():
            if mark < 1:
                expected = f"expected {shown(self.expected[name])}" if name in self.expected else f"{mark:.2f}"
                note = self.notes.get(name, "")
                yield f"  {name:<10} {expected}{note and f' ({shown(note)})'}"


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
                    f"           {shown(label)}: F1 {each.f1:.3f}, precision {each.precision:.3f}, "
                    f"recall {each.recall:.3f} of {each.rows:,} rows"
                )
        yield f"Requests   {self.requests:,}, {cost(self.cost_usd)}, judges {cost(self.judge_cost_usd)}"
        for fault in self.faults:
            yield f"Refused    {fault}"
        yield from cases_lines(self.wrong, self.wrong_count, "wrong answers")

    def manifest(self, spec: JobSpec) -> dict[str, Any]:
        """Returns the summary for Airflow: the same without cases and labels, and the addresses of the files."""
        fields = self.model_dump(mode="json", exclude={"wrong"})
        for score in fields["scores"].values():
            del score["labels"]
        return fields | {
            "passed": self.passed,
            "report_uri": f"{spec.paths.home_uri}evaluation.json",
            "text_uri": f"{spec.paths.home_uri}evaluation.txt",
        }


def cases_lines(cases: list[Any], count: int, title: str) -> Iterator[str]:
    """Yields some cases of a report as lines of text, after a line that says how many there are."""
    if count:
        yield f"{count:,} {title}{f', {len(cases):,} of them' if len(cases) < count else ''}:"
    for case in cases:
        yield from case.lines()


def shown(value: Any) -> str:
    """Returns a value as one short line."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def cost(amount: float | None) -> str:
    """Returns an amount for people."""
    return "cost not known" if amount is None else usd(amount)


def write_report(spec: JobSpec, name: str, report: BaseModel, lines: Iterator[str]) -> None:
    """Logs a report, and writes it below the state of a job: `name.json`, and its lines as `name.txt`."""
    text = list(lines)
    for line in text:
        _log.info("%s", line)
    storage.replace(f"{spec.paths.home_uri}{name}.json", report.model_dump_json(indent=2).encode())
    storage.replace(f"{spec.paths.home_uri}{name}.txt", "\n".join([*text, ""]).encode(errors="replace"))


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
