"""Compares a job with one that has another prompt, model or other parameters, on the same rows."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.compare_values import make_comparable, normalise
from airflow_provider_llmbeam.pipeline.measure.answers import (
    Answers,
    answer_rows,
    check_generates,
    check_models,
    keep_answers,
    online_latencies,
    render_rows,
)
from airflow_provider_llmbeam.pipeline.measure.evaluate import (
    case_lines,
    report_uris,
    say_cost,
    write_report,
)
from airflow_provider_llmbeam.pipeline.measure.judge import Preference, pair_job, prefer
from airflow_provider_llmbeam.pipeline.measure.metrics import Score, mean_score
from airflow_provider_llmbeam.pipeline.measure.rows import RowSample, sample_rows
from airflow_provider_llmbeam.pipeline.reporting.html import shorten
from airflow_provider_llmbeam.spec.conversation import refuse_conversation
from airflow_provider_llmbeam.spec.evaluation import Comparison
from airflow_provider_llmbeam.spec.job import JobSpec

#: Value of a preference for the other job.
_VALUES: Mapping[Preference, float] = {"job": 0.0, "other": 1.0, "tie": 0.5, "inconsistent": 0.5}


class Side(BaseModel):
    """One of the two jobs.

    Attributes:
        model: Type and name of its model.
        template: Template of its prompt.
        answered: Number of answered rows.
        failed: Number of the others by the kind of their failure.
        usd_per_thousand_rows: Cost of a thousand such rows without duplicates, in US dollars; `None` if no
            price is known.
        cost_usd: Cost of the requests that were sent now.
        output_tokens_per_row: Mean length of an answer, thoughts included.
        latency_p50_seconds: Median latency of an answer, in seconds; also of answers from the journal, but not
            of batch inference.
        latency_p95_seconds: The latency that 95 % of the answers do not exceed.
    """

    model: str
    template: str
    answered: int
    failed: dict[str, int]
    usd_per_thousand_rows: float | None
    cost_usd: float | None
    output_tokens_per_row: float
    latency_p50_seconds: float | None
    latency_p95_seconds: float | None

    def line(self) -> str:
        """Returns the job as a line of text."""
        failed = "".join(f", {count} {kind}" for kind, count in self.failed.items())
        latency = (
            "no latency"
            if self.latency_p50_seconds is None or self.latency_p95_seconds is None
            else f"latency {self.latency_p50_seconds:.2f} s, p95 {self.latency_p95_seconds:.2f} s"
        )
        return (
            f"{self.model}: {self.answered:,} answered{failed}; {say_cost(self.usd_per_thousand_rows)} per 1,000 "
            f"rows, {self.output_tokens_per_row:.0f} tokens out per row, {latency}"
        )


class Verdicts(BaseModel):
    """Verdicts of a judge, which saw each pair of different answers in both orders.

    Attributes:
        job: Number of rows whose answer of the job is better.
        other: Number of rows whose answer of the other job is better.
        tie: Number of rows whose answers are equally good.
        inconsistent: Number of rows for which the judge preferred the same place in both orders.
        equal: Number of rows with equal answers, about which it was not asked.
        preference: Mean over these rows: 1 for the other job, 0 for the job, 0.5 for neither. `None` without rows.
    """

    job: int
    other: int
    tie: int
    inconsistent: int
    equal: int
    preference: Score | None

    def line(self) -> str:
        """Returns the verdicts as a line of text."""
        preference = "" if self.preference is None else f"; preference for the other {self.preference}"
        return (
            f"job {self.job:,}, other {self.other:,}, tie {self.tie:,}, inconsistent {self.inconsistent:,}, equal "
            f"{self.equal:,}{preference}"
        )


class DifferingAnswers(BaseModel):
    """A row that the two jobs answer differently.

    Attributes:
        key: Key of the row, as JSON.
        job: Answer of the job, or in brackets why there is none.
        other: Answer of the other job, in the same form.
        verdict: Verdict of the judge; `None` without one.
        reason: Its reason.
    """

    key: str
    job: Any
    other: Any
    verdict: Preference | None
    reason: str

    def lines(self) -> Iterator[str]:
        """Yields the row as lines of text."""
        yield f"Row {self.key}"
        yield f"  job        {shorten(self.job)}"
        yield f"  other      {shorten(self.other)}"
        if self.verdict is not None:
            yield f"  verdict    {self.verdict}: {shorten(self.reason)}"


class ComparisonReport(BaseModel):
    """What a comparison has found.

    Attributes:
        version: Version of this format.
        name: Name of the job.
        made_at: Unix time of the comparison.
        job: The job.
        other: The other job.
        rows: Number of rows of the sample.
        read: Number of rows that the sample was taken from.
        is_partial: Whether the source is so large that only portions of it were read.
        both_answered: Number of rows that both have answered.
        agreement: Share of these rows with equal answers (`answer`), and with an equal value of each field; that
            of a field `answer` is `answer.answer`.
        verdicts: Verdicts of the judge; `None` without one.
        judge_cost_usd: Cost of the requests to the judge, in US dollars.
        requests: Number of requests that were sent now, those to the judge included.
        differences: Rows with different answers.
        difference_count: Number of all such rows.
    """

    version: int = 1
    name: str
    made_at: float
    job: Side
    other: Side
    rows: int
    read: int
    is_partial: bool
    both_answered: int
    agreement: dict[str, Score]
    verdicts: Verdicts | None
    judge_cost_usd: float | None
    requests: int
    differences: list[DifferingAnswers]
    difference_count: int

    def lines(self) -> Iterator[str]:
        """Yields the report as lines of text."""
        portions = " in portions of the source" if self.is_partial else ""
        yield f"Comparison of {self.name} on {self.rows:,} of {self.read:,} rows{portions}"
        yield f"Job        {self.job.line()}"
        yield f"Other      {self.other.line()}"
        for name, score in self.agreement.items():
            yield f"Agreement  {name}: {score}"
        if self.verdicts is not None:
            yield f"Judge      {self.verdicts.line()}"
        yield (
            f"Requests   {self.requests:,}, job {say_cost(self.job.cost_usd)}, other "
            f"{say_cost(self.other.cost_usd)}, judge {say_cost(self.judge_cost_usd)}"
        )
        yield from case_lines(self.differences, self.difference_count, "rows with different answers")

    def manifest(self, spec: JobSpec) -> dict[str, Any]:
        """Returns the summary for Airflow: the same without the differences, and the addresses of the files."""
        return self.model_dump(mode="json", exclude={"differences"}) | report_uris(spec, "comparison")


def compare(spec: JobSpec, comparison: Comparison) -> ComparisonReport:
    """Compares two jobs on a sample of the source, and writes `comparison.json` and `comparison.txt`.

    The answers go into the journal or the cache of the job; only what they do not hold is sent. Nothing is written
    to the sink.

    Args:
        spec: The job.
        comparison: What is different in the other job, the size of the sample and the judge.

    Raises:
        JobSpecError: The other job is not valid, or there is no row to send; nothing was sent.
        JobFailedError: A server left rows unanswered, or a disk is full; a retry sends only the rest.
        BudgetExceededError: The budget of a job or of the judge is spent.
    """
    check_generates(spec)
    refuse_conversation(spec, "a comparison")
    other = make_other_job(spec, comparison)
    judge = None if comparison.judge is None else pair_job(spec, comparison.judge)
    sample = sample_rows(spec, comparison.sample_size)
    prompts = render_rows(spec, sample.rows), render_rows(other, sample.rows)
    for found in prompts:
        failures = [prompt for prompt in found.values() if isinstance(prompt, Failure)]
        if len(failures) == len(found):
            raise JobSpecError(f"No row of the sample becomes a prompt, e.g.: {failures[0].message}.")
    check_models(spec, other, *filter(None, [judge]))
    with keep_answers(spec):
        answers = answer_rows(spec, prompts[0]), answer_rows(other, prompts[1])
        report = _report(spec, other, judge, comparison, sample, answers)
        write_report(spec, "comparison", report, report.lines())
    return report


def make_other_job(spec: JobSpec, comparison: Comparison) -> JobSpec:
    """Returns the other job of a comparison, with the journal of the job.

    Raises:
        JobSpecError: The parts do not fit together.
    """
    given = comparison.other.model_dump(mode="json", exclude_none=True)
    if "model" in given and "limits" not in given:  # whose price is that of the model of the job
        given["limits"] = spec.limits.model_dump(mode="json", exclude={"price"})
    return JobSpec.parse(spec.model_dump(mode="json") | {"cascade": None} | given)


def _report(
    spec: JobSpec,
    other: JobSpec,
    judge: JobSpec | None,
    comparison: Comparison,
    sample: RowSample,
    answers: tuple[Answers, Answers],
) -> ComparisonReport:
    unanswered = {key for side in answers for key, each in side.by_key.items() if isinstance(each, Failure)}
    mine, others = map(_answers_or_reasons, answers)
    both = {key: (mine[key], others[key]) for key in sample.rows if key not in unanswered}
    differing = {key: pair for key, pair in both.items() if not _is_equal(*pair)}
    found: Mapping[str, tuple[Preference, str]] = {}
    judged = Answers()
    if judge and differing:
        found, judged = prefer(judge, sample.rows, differing, answers)
    listed = [*sorted(unanswered), *sorted(differing)]
    return ComparisonReport(
        name=spec.name,
        made_at=time.time(),
        job=_side(spec, answers[0]),
        other=_side(other, answers[1]),
        rows=len(sample.rows),
        read=sample.read,
        is_partial=sample.is_partial,
        both_answered=len(both),
        agreement={
            name: mean_score([float(_is_equal(*pair)) for pair in pairs], comparison.seed)
            for name, pairs in _pairs_by_field(both).items()
        },
        verdicts=_verdicts(found, len(both) - len(differing), comparison.seed) if judge else None,
        judge_cost_usd=judged.cost_usd,
        requests=sum(len(each.sent) for each in (*answers, judged)),
        differences=[
            DifferingAnswers(
                key=key,
                job=mine[key],
                other=others[key],
                verdict=found[key][0] if key in found else None,
                reason=found[key][1] if key in found else "",
            )
            for key in listed[: comparison.max_cases]
        ],
        difference_count=len(listed),
    )


def _answers_or_reasons(side: Answers) -> dict[str, Any]:
    """Returns the answer of each row, or in brackets why there is none."""
    failures = {key: each for key, each in side.by_key.items() if isinstance(each, Failure)}
    return side.values() | {key: f"[{each.kind}: {each.message}]" for key, each in failures.items()}


def _is_equal(mine: Any, other: Any) -> bool:
    mine, other = make_comparable(mine, other)
    return normalise(mine, ignore_whitespace=True) == normalise(other, ignore_whitespace=True)


def _pairs_by_field(both: Mapping[str, tuple[Any, Any]]) -> dict[str, list[tuple[Any, Any]]]:
    """Returns pairs of whole answers, and of each field of answers that are objects."""
    if not both:
        return {}
    found = {"answer": [*both.values()]}
    objects = [pair for pair in both.values() if all(isinstance(each, dict) for each in pair)]
    if len(objects) == len(both):
        for name in dict.fromkeys(name for pair in objects for each in pair for name in each):
            of_field = "answer.answer" if name == "answer" else name
            found[of_field] = [(mine.get(name), other.get(name)) for mine, other in objects]
    return found


def _side(spec: JobSpec, answers: Answers) -> Side:
    completions = [each for each in answers.by_key.values() if isinstance(each, Completion)]
    latencies = sorted(online_latencies(completions))
    return Side(
        model=f"{spec.model.type}:{spec.model.name}",
        template=spec.prompt.template,
        answered=len(completions),
        failed=Counter(each.kind for each in answers.by_key.values() if isinstance(each, Failure)),
        usd_per_thousand_rows=answers.usd_per_thousand_rows,
        cost_usd=answers.cost_usd,
        output_tokens_per_row=sum(each.tokens.output for each in completions) / (len(completions) or 1),
        latency_p50_seconds=quantile(latencies, 0.5),
        latency_p95_seconds=quantile(latencies, 0.95),
    )


def quantile(ascending: list[float], share: float) -> float | None:
    """Returns the smallest value that this share of ascending values does not exceed; `None` without any."""
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)] if ascending else None


def _verdicts(found: Mapping[str, tuple[Preference, str]], equal: int, seed: int) -> Verdicts:
    counts = Counter(verdict for verdict, _ in found.values())
    values = [_VALUES[verdict] for verdict, _ in found.values()] + [0.5] * equal
    return Verdicts(
        **{verdict: counts[verdict] for verdict in _VALUES},
        equal=equal,
        preference=mean_score(values, seed) if values else None,
    )
