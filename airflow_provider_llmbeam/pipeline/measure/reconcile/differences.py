"""Where the cost that runs have reported differs from the bill, and why. Nothing is read here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

from airflow_provider_llmbeam.pipeline.measure.reconcile.billing_export import (
    BilledUsage,
    Kind,
    Labels,
    Sku,
    read_sku,
)
from airflow_provider_llmbeam.spec.model.price import Price
from airflow_provider_llmbeam.spec.protocol.counts import usd

Cause = Literal["other-calls", "cached-tokens", "price-change", "missing-day", "unexplained"]
CAUSES: tuple[Cause, ...] = get_args(Cause)
#: Returns the price of a model that was in force at a time.
PriceAt = Callable[[str, datetime], Price | None]
#: Number of tokens and their cost in US dollars.
_BySku = dict[Sku, tuple[float, float]]

#: Time until the rows of a day are complete: usually a day, sometimes more; nothing is guaranteed.
#: Source: docs.cloud.google.com/billing/docs/how-to/export-data-bigquery (2026-09)
_LATE = timedelta(days=2)
#: Relative difference of a unit price above which it is another price; amounts of the export are rounded.
_PRICE_TOLERANCE = 0.005
#: Differences below a hundredth of a cent are none, in US dollars.
_NOTHING_USD = 1e-4


class ReportedRun(BaseModel):
    """What the report of a run says of its cost.

    Attributes:
        name: Name of the job.
        labels: Labels of its requests, sorted.
        project: Project that is billed; `None` for a server other than Vertex AI.
        model: Name of the model.
        price: Price that the user gave; `None` for the list price.
        began_at: Begin of the run, with its batch inference.
        finished_at: Its end.
        cost_usd: Cost of its tokens, in US dollars; `None` if no price was known.
        tokens: Number of tokens by kind; those of `input` are without the cached ones.
        prepaid_rows: Number of answers of Provisioned Throughput, which cost 0: their tokens are in `tokens`, and
            on no bill.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    labels: Labels
    project: str | None
    model: str
    price: Price | None = None
    began_at: datetime
    finished_at: datetime
    cost_usd: float | None
    tokens: dict[Kind, int]
    prepaid_rows: int = 0

    def share_of(self, since: datetime, until: datetime) -> float:
        """Returns the share of the run that lies between two times, as if it had spent evenly."""
        duration = (self.finished_at - self.began_at).total_seconds()
        if duration <= 0:
            return float(since <= self.began_at < until)
        return max((min(until, self.finished_at) - max(since, self.began_at)).total_seconds(), 0.0) / duration


class Difference(BaseModel):
    """A part of a difference.

    Attributes:
        cause: Its cause.
        usd: What the bill has more than the reports, in US dollars.
        because: How the cause shows.
    """

    cause: Cause
    usd: float
    because: str


class Line(BaseModel):
    """The calls with the same labels.

    Attributes:
        labels: The labels; none for calls that carry none.
        runs: Names of the jobs that have reported them.
        reported_usd: Their reported cost, in US dollars.
        billed_usd: Their cost on the bill, before credits, in US dollars.
        credits_usd: Credits for them, in US dollars, which are not compared.
        differences: The parts of the difference, by cause.
    """

    labels: dict[str, str]
    runs: list[str]
    reported_usd: float
    billed_usd: float
    credits_usd: float
    differences: list[Difference]

    def __str__(self) -> str:
        name = " ".join(f"{key}={value}" for key, value in self.labels.items()) or "(no label)"
        gap = self.billed_usd - self.reported_usd
        lines = [f"{name}\n  reported {usd(self.reported_usd)}, billed {usd(self.billed_usd)}: {_signed(gap)}"]
        if self.credits_usd:
            lines.append(f"  credits        {_signed(self.credits_usd)}, not compared")
        lines += [f"  {each.cause:<14} {_signed(each.usd)}: {each.because}" for each in self.differences]
        return "\n".join(lines)


class Reconciliation(BaseModel):
    """The reported cost beside the bill.

    Attributes:
        since: Begin of the usage that is compared.
        until: Its end.
        lines: The calls by labels.
        not_compared: Runs whose calls carry no labels, and why.
        difference_ratio: Sum of all differences, without their signs and those that are ignored, over the larger
            one of reported and billed cost.
        max_difference_ratio: The bound.
    """

    since: datetime
    until: datetime
    lines: list[Line]
    not_compared: list[str]
    difference_ratio: float
    max_difference_ratio: float

    @property
    def agrees(self) -> bool:
        """Whether the difference is within the bound."""
        return self.difference_ratio <= self.max_difference_ratio

    def __str__(self) -> str:
        reported = sum(line.reported_usd for line in self.lines)
        billed = sum(line.billed_usd for line in self.lines)
        verdict = f"{'within' if self.agrees else 'above'} the bound of {self.max_difference_ratio:.1%}"
        return "\n".join(
            (
                f"{self.since:%Y-%m-%d %H:%M} to {self.until:%Y-%m-%d %H:%M} UTC",
                *map(str, self.lines),
                *self.not_compared,
                f"Reported {usd(reported)}, billed {usd(billed)}. "
                f"The difference of {self.difference_ratio:.1%} is {verdict}.",
            )
        )


def reconcile(
    runs: Sequence[ReportedRun],
    billed: Sequence[BilledUsage],
    *,
    since: datetime,
    until: datetime,
    now: datetime,
    price_at: PriceAt,
    max_difference_ratio: float = 0.02,
    ignored: Collection[str] = (),
) -> Reconciliation:
    """Compares the reported cost with the bill, by labels, and finds the causes of the differences.

    Args:
        runs: Runs that lie in the time, or partly.
        billed: The rows of the export of this time.
        since: Begin of the time.
        until: Its end.
        now: Current time.
        price_at: Returns the list price of a model.
        max_difference_ratio: Bound of the difference.
        ignored: Causes that do not count for it.
    """
    known = {run.labels for run in runs if run.labels and run.project}
    of_labels: defaultdict[Labels, list[BilledUsage]] = defaultdict(list)
    for usage in billed:
        of_labels[_reported_labels(usage.labels, known)].append(usage)
    days = _days(since, until)
    lines = []
    for labels in sorted(known | of_labels.keys()):
        own = [run for run in runs if run.labels == labels and run.project]
        lines.append(_compare(labels, own, of_labels[labels], days, now, price_at))
    gap = sum(abs(each.usd) for line in lines for each in line.differences if each.cause not in ignored)
    whole = max(sum(line.reported_usd for line in lines), sum(line.billed_usd for line in lines))
    return Reconciliation(
        since=since,
        until=until,
        lines=lines,
        not_compared=[
            f"Not compared: {run.name}, {usd(run.cost_usd or 0.0)}. Its requests carry no labels."
            for run in runs
            if not (run.labels and run.project)
        ],
        difference_ratio=gap / whole if whole else 0.0,
        max_difference_ratio=max_difference_ratio,
    )


def _reported_labels(labels: Labels, known: Collection[Labels]) -> Labels:
    """Returns the labels of the reports that a row of the export belongs to; its own if it belongs to none.

    The row may carry others as well, e.g. of a batch-inference job.
    """
    return max((each for each in known if set(each) <= set(labels)), key=len, default=labels)


def _days(since: datetime, until: datetime) -> dict[date, tuple[datetime, datetime]]:
    """Returns the parts of a time by day, in UTC."""
    days: dict[date, tuple[datetime, datetime]] = {}
    while since < until:
        midnight = datetime.combine(since.date() + timedelta(days=1), datetime.min.time(), UTC)
        days[since.date()] = since, min(midnight, until)
        since = midnight
    return days


def _compare(
    labels: Labels,
    runs: Sequence[ReportedRun],
    billed: Sequence[BilledUsage],
    days: dict[date, tuple[datetime, datetime]],
    now: datetime,
    price_at: PriceAt,
) -> Line:
    costs: defaultdict[date, float] = defaultdict(float)
    tokens: defaultdict[tuple[date, Kind], float] = defaultdict(float)
    for run in runs:
        for day, (begin, end) in days.items():
            share = run.share_of(begin, end)
            costs[day] += share * (run.cost_usd or 0.0)
            for kind, count in run.tokens.items():
                tokens[day, kind] += share * count
    reported_usd = sum(costs.values())
    billed_usd = sum(each.cost_usd for each in billed)
    differences = []
    if not runs:
        because = "no report that was read has these labels" if labels else "calls without a label"
        differences = [Difference(cause="other-calls", usd=billed_usd, because=because)]
    else:
        there = {each.day for each in billed}
        missing = [day for day in days if day not in there and costs[day] > _NOTHING_USD]
        differences += [_missing_day(day, costs[day], days[day][1], now) for day in missing]
        present: defaultdict[Kind, float] = defaultdict(float)
        for (day, kind), number in tokens.items():
            present[kind] += number if day not in missing else 0.0
        skus = _tokens_by_sku(billed)
        differences += _of_tokens(present, runs, skus, price_at)
        rest = billed_usd - reported_usd - sum(each.usd for each in differences)
        differences.append(
            Difference(cause="unexplained", usd=rest, because=_rest_of(present, runs, billed, skus))
        )
    return Line(
        labels=dict(labels),
        runs=sorted({run.name for run in runs}),
        reported_usd=reported_usd,
        billed_usd=billed_usd,
        credits_usd=sum(each.credits_usd for each in billed),
        differences=[each for each in differences if abs(each.usd) > _NOTHING_USD],
    )


def _missing_day(day: date, cost_usd: float, end: datetime, now: datetime) -> Difference:
    is_late = now - end < _LATE
    advice = "its rows may still arrive: try again in a day" if is_late else "is the export complete?"
    because = f"{day} has no row with these labels; {advice}"
    return Difference(cause="missing-day", usd=-cost_usd, because=because)


def _of_tokens(
    reported: Mapping[Kind, float], runs: Sequence[ReportedRun], skus: _BySku, price_at: PriceAt
) -> Iterator[Difference]:
    """Yields the differences that tokens of a kind, and their prices, explain."""
    prices = {sku: _price_of(sku, runs, price_at) for sku in skus}
    for sku, (amount, cost_usd) in skus.items():
        counted = sku.usd_per_token(prices[sku])
        if counted and amount and abs(paid := cost_usd / amount / counted - 1) > _PRICE_TOLERANCE:
            million = f"{usd(cost_usd / amount * 1e6)} a million {sku.kind} tokens of {sku.model}, {sku.tier}"
            because = f"{million}; counted {usd(counted * 1e6)} ({paid:+.1%})"
            yield Difference(cause="price-change", usd=cost_usd - amount * counted, because=because)
    inputs = [sku for sku in skus if sku.kind != "output"]
    if not inputs or any(run.prepaid_rows for run in runs):  # the tokens of prepaid rows are on no bill
        return
    more_cached = _sum_of(skus, "cached") - reported["cached"]
    more_input = _sum_of(skus, "input") - reported["input"]
    # Tokens that are of one kind here and of the other there; more of both are others.
    moved = min(abs(more_cached), abs(more_input)) * (1 if more_cached > 0 else -1)
    main = max(inputs, key=lambda sku: skus[sku][0])
    rates = [Sku(main.model, kind, main.tier).usd_per_token(prices[main]) for kind in ("cached", "input")]
    if more_cached * more_input < 0 and rates[0] is not None and rates[1] is not None:
        because = (
            f"{_sum_of(skus, 'cached'):,.0f} cached tokens are billed, {reported['cached']:,.0f} were counted"
        )
        yield Difference(cause="cached-tokens", usd=moved * (rates[0] - rates[1]), because=because)


def _tokens_by_sku(billed: Sequence[BilledUsage]) -> _BySku:
    """Returns the number of tokens and their cost, by what they are."""
    found: _BySku = {}
    for usage in billed:
        if (sku := read_sku(usage.sku)) is not None:
            amount, cost = found.get(sku, (0.0, 0.0))
            found[sku] = amount + usage.amount, cost + usage.cost_usd
    return found


def _sum_of(skus: _BySku, kind: Kind) -> float:
    return sum(amount for sku, (amount, _) in skus.items() if sku.kind == kind)


def _price_of(sku: Sku, runs: Sequence[ReportedRun], price_at: PriceAt) -> Price | None:
    """Returns the price that the runs have counted for a model; a description may shorten its name."""
    began_at = runs[0].began_at
    if (asked := next((run for run in runs if run.model == sku.model), None)) is not None:
        return asked.price or price_at(asked.model, began_at)
    if (price := price_at(sku.model, began_at)) is not None:
        return price
    longer = next((run for run in runs if run.model.startswith(f"{sku.model}-")), None)
    return None if longer is None else longer.price or price_at(longer.model, began_at)


def _rest_of(
    reported: Mapping[Kind, float], runs: Sequence[ReportedRun], billed: Sequence[BilledUsage], skus: _BySku
) -> str:
    if any(run.cost_usd is None for run in runs):
        return "the price of a run was not known"
    if prepaid := sum(run.prepaid_rows for run in runs):
        return f"tokens cannot be compared: {prepaid:,} rows were prepaid, and have no row in the export"
    others = sorted({usage.sku for usage in billed if read_sku(usage.sku) is None})
    numbers = ", ".join(
        f"{_sum_of(skus, kind):,.0f} {kind} tokens where {reported[kind]:,.0f} were reported"
        for kind in get_args(Kind)
        if round(_sum_of(skus, kind)) != round(reported[kind])
    )
    return "; ".join(filter(None, (numbers and f"billed {numbers}", ", ".join(others)))) or "the tokens agree"


def _signed(amount: float) -> str:
    return f"{'-' if amount < 0 else '+'}{usd(abs(amount))}"
