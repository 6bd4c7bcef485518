"""The estimate of a job: its figures, their text, its file, and how accurate it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.batch_inference.ways import Way
from airflow_provider_llmbeam.pipeline.measure.estimate.projection import LimitedBy
from airflow_provider_llmbeam.pipeline.reporting.report import ComparedFigure, EstimateAccuracy, RunUsage
from airflow_provider_llmbeam.pipeline.sinks.files import move_in
from airflow_provider_llmbeam.spec.demand import Demand
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.price import Price
from airflow_provider_llmbeam.spec.protocol.counts import duration, usd
from airflow_provider_llmbeam.spec.safety.privacy import inspection_usd
from airflow_provider_llmbeam.spec.usage_tier import hours_by_tier, tier_name

_log = logging.getLogger(__name__)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SampleUsage(_Part):
    """Requests of the estimate itself. Their answers are in the journal, and the job reuses them.

    Attributes:
        requests: Number of prompts sent now, without those that an earlier estimate or run has sent.
        failed: Number of these prompts without an answer.
        input_tokens: Billed input tokens.
        output_tokens: Billed output tokens.
        cost_usd: Cost in US dollars, at the price of the estimate.
        service_tiers: Answers by the tier that served them.
    """

    requests: int
    failed: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    service_tiers: dict[str, int] = {}


class GuardSide(_Part):
    """What the guard model is asked of the prompts, or of the answers.

    Attributes:
        requests: Number of distinct texts without a verdict.
        input_tokens: Input tokens that will be billed for them.
        output_tokens: Output tokens that will be billed for them.
    """

    requests: int
    input_tokens: int
    output_tokens: int


class GuardEstimate(_Part):
    """The estimate of the guard model of `safety.moderation`.

    Attributes:
        model: Type and name of the model.
        input: Its requests for prompts; `None` if it judges none.
        output: Its requests for answers; `None` if it judges none.
        cost_usd: Cost of both, in US dollars; `None` if its price is not known.
        exceeds_budget: Whether the cost is above `safety.moderation.limits.budget_usd`.
        output_is_upper_bound: Whether no verdict is known, so that each is assumed as long as
            `safety.moderation.generation.max_output_tokens` allows.
        sample: Numbers of its requests for the estimate itself by what was judged, e.g. `input.tokens.output`.
            Their verdicts are in the journal, and the job reuses them.
    """

    model: str
    input: GuardSide | None
    output: GuardSide | None
    cost_usd: float | None
    exceeds_budget: bool
    output_is_upper_bound: bool
    sample: dict[str, int] = {}

    def lines(self) -> Iterator[str]:
        """Yields the estimate as lines of text."""
        sides = {"prompts": self.input, "answers": self.output}
        found = {name: side for name, side in sides.items() if side is not None}
        requests = " + ".join(f"{side.requests:,} {name}" for name, side in found.items())
        tokens = (sum(side.input_tokens for side in found.values()), sum(s.output_tokens for s in found.values()))
        bound = "at most " if self.output_is_upper_bound else ""
        cost = "cost not known" if self.cost_usd is None else f"{bound}{usd(self.cost_usd)}"
        yield f"Guard     {requests} to judge, {tokens[0]:,} tokens in, {bound}{tokens[1]:,} out, {cost}"
        if sent := sum(number for name, number in self.sample.items() if name.endswith(".requests.sent")):
            yield f"          {sent:,} requests were sent for the sample, whose verdicts are kept, too"


class Estimate(_Part):
    """The estimate of a job. `rows` = `requests` + `duplicates` + `resumed` + `failed`.

    Attributes:
        version: Version of this format.
        name: Name of the job.
        model: Type and name of the model.
        made_at: Unix time of the estimate.
        rows: Number of rows in the source.
        requests: Number of prompts that the job will send.
        duplicates: Number of rows that share the answer of an equal prompt.
        resumed: Number of rows with an answer in the journal, including those of this estimate.
        failed: Number of rows for the dead letter: invalid lines, missing keys, template errors, missing files,
            and prompts that the model has refused, which the job does not send again.
        is_sampled: Whether only a part of the source was read. Equal prompts are then found only within that part,
            so there may be fewer requests.
        input_tokens: Input tokens that will be billed for `requests`.
        output_tokens: Output tokens that will be billed for `requests`, thoughts included.
        output_is_upper_bound: Whether no answer is known, so that each is assumed as long as
            `generation.max_output_tokens` allows.
        output_is_of_last_run: Whether it is assumed as long as the mean answer of the last run of the task.
        error_ratio: Half of the 95 % interval of the tokens, relative to them; `None` if fewer than two prompts
            were sent.
        cost_usd: Cost of these tokens online, in US dollars: at the priority tier if the job asks for it, else at
            the standard tier, with a prefix cache if the job makes one. `None` if that price is not known.
        cost_usd_range: 95 % interval of the cost, or the costs without output and with the longest output.
        standard_cost_usd: Cost of the same at the standard tier.
        batch_cost_usd: Cost of the same by batch inference, which has no prefix cache, and whose discount does not
            apply to tokens of the provider's own cache.
        planned_cost_usd: Cost of the same in the mode and at the tier of the job, e.g. at flex, with which the
            budget and the report of the job are compared.
        prefix_cache_usd: What `cost_usd` has for making and storing a prefix cache, in US dollars; 0 without one.
        total_cost_usd: `cost_usd` and that of the guard; `None` if one of them is not known.
        exceeds_budget: Whether the cost in the mode of the job is above `budget_usd`, or that of the guard above
            its own budget.
        cascade: Cost and time with the stages of a cascade and without, as a sentence; empty for a job without
            one. All other figures are those of `model` alone.
        cascade_cost_usd: Cost of `requests` with the stages, as the calibration has found; `None` before one.
        cascade_seconds: Duration with them, in seconds: one after the other, with the tokens of `model` and the
            latencies of the calibration; `None` if it is not known.
        budget_usd: What the job may spend, in US dollars: `limits.budget_usd`, or what is left of `limits.budget`
            if that is less; `None` without either.
        budget_left_usd: What is left of `limits.budget`, which other runs spend, too, in US dollars; `None`
            without it.
        duration_seconds: Duration until the last answer, in seconds, including the start, if no other job uses the
            quota; `None` if neither a quota nor the latency is known.
        limited_by: The limit that determines the duration.
        tier_seconds: Time of sending at the threshold of each usage tier of Standard PayGo, or of the one that is
            stated, in seconds; the pool may admit more. Empty where there is none, or a rate is stated.
        latency_seconds: Mean latency of an answer, in seconds.
        sample_usage: Usage of the estimate itself.
        keeper: What keeps the answers of the sample, for a sentence.
        price: Price that was used.
        demand: Demand of the job, for a quota sensor.
        ways: What the same prompts cost online and by batch inference, and when each is finished; none for a job
            that can only be run online.
        auto: The way that a job of the mode 'auto' takes, with the reason; '' for another mode, or without `ways`.
        guard: The requests of the guard model, which are not among the figures above; `None` without one.
        inspected_bytes: Size of the texts that a detector of type `dlp` inspects, in bytes, also of those that it
            has inspected already. `cost_usd` does not include their price.
    """

    version: int = 1
    name: str
    model: str
    made_at: float
    rows: int
    requests: int
    duplicates: int
    resumed: int
    failed: int
    is_sampled: bool
    input_tokens: int
    output_tokens: int
    output_is_upper_bound: bool
    output_is_of_last_run: bool = False
    error_ratio: float | None
    cost_usd: float | None
    cost_usd_range: tuple[float, float] | None
    standard_cost_usd: float | None = None
    batch_cost_usd: float | None = None
    planned_cost_usd: float | None = None
    prefix_cache_usd: float = 0.0
    total_cost_usd: float | None = None
    exceeds_budget: bool
    cascade: str = ""
    cascade_cost_usd: float | None = None
    cascade_seconds: float | None = None
    budget_usd: float | None = None
    budget_left_usd: float | None = None
    duration_seconds: float | None
    limited_by: LimitedBy | None
    tier_seconds: dict[int, float] = {}
    latency_seconds: float | None
    sample_usage: SampleUsage
    keeper: str = "the job keeps the answers"
    price: Price | None
    demand: Demand
    ways: tuple[Way, ...] = ()
    auto: str = ""
    inspected_bytes: int = 0
    guard: GuardEstimate | None = None

    def with_guard(self, guard: GuardEstimate) -> Estimate:
        """Returns the estimate with that of the guard, also in the total and in the check of the budgets."""
        known = self.cost_usd is not None and guard.cost_usd is not None
        return self.model_copy(
            update={
                "guard": guard,
                "total_cost_usd": round((self.cost_usd or 0.0) + (guard.cost_usd or 0.0), 6) if known else None,
                "exceeds_budget": self.exceeds_budget or guard.exceeds_budget,
            }
        )

    def lines(self) -> Iterator[str]:
        """Yields the estimate as lines of text."""
        about = "about " if self.is_sampled else ""
        yield (
            f"Rows      {about}{self.rows:,} = {self.requests:,} requests + {self.duplicates:,} duplicate + "
            f"{self.resumed:,} answered already + {self.failed:,} for the dead letter"
        )
        bound = "at most " if self.output_is_upper_bound else ""
        error = "" if self.error_ratio is None else f" (± {max(self.error_ratio, 0.01):.0%})"
        basis = " by the mean answer of the last run" if self.output_is_of_last_run else ""
        yield f"Tokens    {self.input_tokens:,} in, {bound}{self.output_tokens:,} out{basis}{error}"
        yield f"Cost      {self._cost()}"
        if self.planned_cost_usd is not None and self.planned_cost_usd != self.cost_usd:
            planned = f"{bound or 'about '}{usd(self.planned_cost_usd)}"
            yield f"Planned   {planned} in the mode and at the tier of the job"
        if self.cascade:
            yield f"Cascade   {self.cascade}"
        if self.budget_left_usd is not None:
            yield f"Left      {usd(self.budget_left_usd)} of the budget that the runs share"
        if self.guard is not None:
            yield from self.guard.lines()
            yield f"Total     {'not known' if self.total_cost_usd is None else usd(self.total_cost_usd)}"
        if self.inspected_bytes:
            price = usd(inspection_usd(self.inspected_bytes))
            yield f"Privacy   {about}{self.inspected_bytes:,} bytes to inspect once, {price} at list price"
        yield f"Time      {self._time()}"
        for way in self.ways:
            yield f"Way       {way}"
        if self.auto:
            yield f"Auto      {self.auto}"
        usage = self.sample_usage
        if not usage.requests:
            return
        cost = "" if usage.cost_usd is None else f", {usd(usage.cost_usd)}"
        failed = f", {usage.failed:,} without an answer" if usage.failed else ""
        yield (
            f"Sample    {usage.requests:,} requests, {usage.input_tokens:,} tokens in, {usage.output_tokens:,} "
            f"out{cost}{failed}; {self.keeper}"
        )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _cost(self) -> str:
        if self.cost_usd is None or self.price is None:
            lacks = "list price; `limits.price` sets" if self.price is None else _NO_PRIORITY_PRICE
            return f"not known: this model has no {lacks} one"
        between = ""
        if self.cost_usd_range is not None:
            low, high = self.cost_usd_range
            between = f" ({usd(low)} to {usd(high)})"
        bound = "at most " if self.output_is_upper_bound else ""
        rates = (
            f"{usd(self.price.input_usd_per_million_tokens)} and {usd(self.price.output_usd_per_million_tokens)} "
            "per million tokens in and out"
        )
        if self.standard_cost_usd is not None and self.cost_usd > self.standard_cost_usd:
            rates = f"{self.price.priority_ratio:g} times {rates} (priority)"
        cache = ", with a prefix cache" if self.prefix_cache_usd else ""
        return f"{bound}{usd(self.cost_usd)}{between} at {rates}{cache}"

    def _time(self) -> str:
        tiers = (
            f"; sending: {hours_by_tier(self.tier_seconds)}"
            if len(self.tier_seconds) > 1 and self.limited_by != "learned_rate"
            else ""
        )
        if self.duration_seconds is None:
            return f"not known: neither a quota (`limits`) nor the model's latency is{tiers}"
        words = duration(self.duration_seconds)
        if self.limited_by is None:
            return words
        if self.limited_by == "usage_tier":
            return f"{words} at {', '.join(map(tier_name, self.tier_seconds))}; the pool above it may admit more"
        learned = self.demand.learned_rate if self.limited_by == "learned_rate" else None
        rate = "" if learned is None else f" ({learned.words})"
        return f"{words}, as {_LIMITS[self.limited_by]}{rate} allows no more{tiers}"


_NO_PRIORITY_PRICE = "list price of the priority tier; `limits.price` with `priority_ratio` sets"
_LIMITS = {
    "requests_per_minute": "`limits.requests_per_minute`",
    "tokens_per_minute": "`limits.tokens_per_minute`",
    "in_flight": "`limits.max_in_flight`",
    "learned_rate": "the rate that an earlier run has learned",
}


def write_estimate(spec: JobSpec, estimate: Estimate) -> None:
    """Writes the estimate beside the report, replacing an existing one atomically."""
    staged, uri = f"{spec.paths.staging_uri}estimate.json", spec.paths.estimate_uri
    with storage.create(staged, is_private=True) as file:
        file.write(estimate.model_dump_json(indent=2).encode())
    move_in({staged: uri})


def read_estimate(spec: JobSpec) -> Estimate | None:
    """Reads the estimate of a job, or that of the same task and logical date from before its run; `None` for none.

    Raises:
        ValueError: The file is incomplete, or of another job.
    """
    planned = "" if spec.airflow_run is None else spec.airflow_run.planned_job
    names = [*filter(None, (spec.name, planned))]
    uris = dict.fromkeys(spec.model_copy(update={"name": name}).paths.estimate_uri for name in names)
    uri = next(filter(storage.exists, uris), None)
    if uri is None:
        return None
    found = Estimate.model_validate_json(storage.read(uri))
    if found.name not in names or found.model != f"{spec.model.type}:{spec.model.name}":
        raise ValueError(f"it is of job {found.name!r} with {found.model}")
    return found


def estimate_accuracy(spec: JobSpec, usage: RunUsage) -> EstimateAccuracy | None:
    """Compares the estimate of a job with a run.

    Args:
        spec: The job.
        usage: Usage of the run.

    Returns:
        `None` if the job has no estimate, or if it cannot be read: the report is complete without it.
    """
    try:
        estimate = read_estimate(spec)
    except Exception as error:  # noqa: BLE001 - a filesystem may raise anything, and the answers are worth more
        _log.warning(
            "%r is not compared with this run: %s", spec.paths.estimate_uri, str(error).partition("\n")[0]
        )
        return None
    if estimate is None:
        return None
    sent, prompts = estimate.requests, usage.prompts
    planned, paid = estimate.planned_cost_usd, usage.cost_usd

    def compare(estimated: float, actual: float) -> ComparedFigure:
        is_comparable = estimated and actual and prompts and sent
        ratio = round((actual / prompts) / (estimated / sent), 4) if is_comparable else None
        return ComparedFigure(estimated=estimated, actual=actual, ratio=ratio)

    return EstimateAccuracy(
        made_at=estimate.made_at,
        error_ratio=estimate.error_ratio,
        requests=ComparedFigure(estimated=sent, actual=prompts, ratio=None),
        input_tokens=compare(estimate.input_tokens, usage.input_tokens),
        output_tokens=compare(estimate.output_tokens, usage.output_tokens),
        cost_usd=None if planned is None or paid is None else compare(planned, paid),
    )
