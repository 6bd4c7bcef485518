"""The report of a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from airflow_provider_llmbeam.pipeline.measure.evaluation.judging import Verdict
from airflow_provider_llmbeam.pipeline.measure.evaluation.report import cases_lines, cost, shown
from airflow_provider_llmbeam.pipeline.measure.evaluation.scores import Score
from airflow_provider_llmbeam.spec.job import JobSpec


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
            f"{self.model}: {self.answered:,} answered{failed}; {cost(self.usd_per_thousand_rows)} per 1,000 "
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


class Difference(BaseModel):
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
    verdict: Verdict | None
    reason: str

    def lines(self) -> Iterator[str]:
        """Yields the difference as lines of text."""
        yield f"Row {self.key}"
        yield f"  job        {shown(self.job)}"
        yield f"  other      {shown(self.other)}"
        if self.verdict is not None:
            yield f"  verdict    {self.verdict}: {shown(self.reason)}"


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
    differences: list[Difference]
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
            found = self.verdicts
            preference = "" if found.preference is None else f"; preference for the other {found.preference}"
            yield (
                f"Judge      job {found.job:,}, other {found.other:,}, tie {found.tie:,}, inconsistent "
                f"{found.inconsistent:,}, equal {found.equal:,}{preference}"
            )
        yield (
            f"Requests   {self.requests:,}, job {cost(self.job.cost_usd)}, other {cost(self.other.cost_usd)}, "
            + (f"judge {cost(self.judge_cost_usd)}")
        )
        yield from cases_lines(self.differences, self.difference_count, "rows with different answers")

    def manifest(self, spec: JobSpec) -> dict[str, Any]:
        """Returns the summary for Airflow: the same without the differences, and the addresses of the files."""
        return self.model_dump(mode="json", exclude={"differences"}) | {
            "report_uri": f"{spec.paths.home_uri}comparison.json",
            "text_uri": f"{spec.paths.home_uri}comparison.txt",
        }
