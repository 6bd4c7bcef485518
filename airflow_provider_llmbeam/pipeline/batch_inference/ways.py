"""Ways in which the prompts of a run may reach the model: what each costs, and when it is finished. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from airflow_provider_llmbeam.pipeline.batch_inference.decide import CANCEL_SECONDS, ONLINE_MARGIN, BatchPlan
from airflow_provider_llmbeam.spec.facts import ASSUMED_PRIORITY_RATIO, MAX_FLEX_SECONDS, TIER_RATIOS
from airflow_provider_llmbeam.spec.model.price import Price
from airflow_provider_llmbeam.spec.model.tier import OrdinaryTier, RequestedTier
from airflow_provider_llmbeam.spec.protocol.counts import usd

#: Time that one request takes at the flex tier, in seconds. Source: ai.google.dev/gemini-api/docs/flex-inference
TYPICAL_FLEX_SECONDS = 60.0
#: Share of the flex requests that are shed and sent at the standard tier. Assumed: no provider promises one.
FLEX_SHED_RATIO = 0.2

#: Expected price of a request over that of an ordinary one, by the tier that a job asks for.
FLEX_RATIOS: dict[RequestedTier, float] = {
    "standard": 1.0,
    "priority": 1.0,
    "flex": TIER_RATIOS["flex"],
    "flex_then_standard": TIER_RATIOS["flex"] * (1 - FLEX_SHED_RATIO) + FLEX_SHED_RATIO,
    "provisioned": 1.0,
    "provisioned_then_flex": TIER_RATIOS["flex"],  # how much is idle is not known
}

#: Turnaround of a batch-inference job in seconds, and weight. Providers say: target 24 h, usually much quicker
#: (Gemini), most within 1 h (Anthropic). Seen: 4 min for three rows on Vertex AI (litellm#37208); jobs that stay
#: queued for 48 h to 72 h until they expire (python-genai#1482, #2221).
PRIOR = ((300.0, 1.0), (1_200.0, 1.0), (3_600.0, 1.0), (10_800.0, 0.5), (86_400.0, 0.4), (172_800.0, 0.1))

WayTier = Literal["standard", "priority", "provisioned", "flex", "batch"]


@dataclass(frozen=True, slots=True)
class Turnaround:
    """Distribution of the turnaround of a job: pairs of seconds and weight, in ascending order."""

    points: tuple[tuple[float, float], ...] = PRIOR

    def quantile(self, share: float) -> float:
        """Returns the seconds within which a share of the jobs has ended; `share` is above 0 and at most 1."""
        least = share * math.fsum(weight for _, weight in self.points)
        total = 0.0
        for seconds, weight in self.points[:-1]:
            total += weight
            if total >= least:
                return seconds
        return self.points[-1][0]

    def chance(self, by_seconds: float) -> float:
        """Returns the probability that a job ends within a time."""
        ended = math.fsum(weight for seconds, weight in self.points if seconds <= by_seconds)
        return ended / math.fsum(weight for _, weight in self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The rows that have no answer yet.

    Attributes:
        rows: Number of rows.
        input_tokens: Input tokens of all rows.
        output_tokens: Output tokens of all rows.
        prefix_tokens: Input tokens of all rows that a prefix cache would hold; 0 if none can be stored.
        cached_tokens: Input tokens of all rows that the provider reads from its cache without a prefix cache.
        audio_tokens: Input tokens of all rows that are of audio and not from a cache.
        prefix_usd: Cost of making and storing the prefix cache, in US dollars.
    """

    rows: int
    input_tokens: int
    output_tokens: int
    prefix_tokens: int = 0
    cached_tokens: int = 0
    audio_tokens: int = 0
    prefix_usd: float = 0.0

    def cost_usd(self, price: Price | None, tier_ratio: float | None, prefix_cache: bool = False) -> float | None:
        """Returns the cost at a tier in US dollars, with what a prefix cache costs; `None` without a price."""
        if price is None or tier_ratio is None:
            return None
        cached = max(self.cached_tokens, self.prefix_tokens if prefix_cache else 0)
        rows = max(self.rows, 1)
        tokens = (self.input_tokens, self.output_tokens, cached, self.audio_tokens)
        cost = rows * price.cost_usd(*(count / rows for count in tokens), tier_ratio=tier_ratio)
        return cost + (self.prefix_usd if prefix_cache else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of asking.

    Attributes:
        tier: Tier of the requests.
        prefix_cache: Whether the constant beginning of the prompts is read from the provider's cache.
        cost_usd: Expected cost in US dollars, with what has to be sent at the ordinary tier; `None` if unknown.
        price_ratio: The same over the cost at the standard tier without a prefix cache, by the ratios of the tiers
            alone.
        expected_at: Unix time at which the answers are there in half of the cases; `None` if unknown.
        safe_at: Unix time at which they are there in nine of ten cases; `None` if unknown.
        is_in_time: Whether they are there by the deadline.
        has_deadline: Whether there is one.
    """

    tier: WayTier
    prefix_cache: bool
    cost_usd: float | None
    price_ratio: float
    expected_at: float | None
    safe_at: float | None
    is_in_time: bool
    has_deadline: bool = True

    def __str__(self) -> str:
        cost = "an unknown cost" if self.cost_usd is None else f"about {usd(self.cost_usd)}"
        tier = "online" if self.tier == "standard" else self.tier
        cached = " with a prefix cache" if self.prefix_cache else ""
        safe = rating = ""
        if self.expected_at is not None or self.safe_at is not None:
            safe = f", in 9 of 10 cases at {moment(self.safe_at)}"
        if self.has_deadline and self.safe_at is not None:
            rating = "; in time" if self.is_in_time else "; too late"
        return f"{tier}{cached}: {cost}, finished at {moment(self.expected_at)}{safe}{rating}"


def ways_of(
    work: Work,
    plan: BatchPlan,
    price: Price | None,
    now: float,
    *,
    has_flex: bool,
    ordinary: OrdinaryTier = "standard",
    turnaround: Turnaround = Turnaround(),
) -> tuple[Way, ...]:
    """Returns the ways that the provider offers.

    Args:
        work: The rows to answer.
        plan: Deadline, and the time that the rows take online.
        price: Price at the standard tier; `None` if it is not known.
        now: Unix time.
        has_flex: Whether the model has a flex tier.
        ordinary: Tier of the requests online, and of those that batch inference leaves to them.
        turnaround: Turnaround of a batch-inference job.
    """
    caches = (False, True) if work.prefix_tokens else (False,)
    online = [_online(ordinary, cache, work, plan, price, now) for cache in caches]
    flex = [_online("flex", cache, work, plan, price, now) for cache in caches] if has_flex else []
    return (*online, *flex, _batch(ordinary, work, plan, price, turnaround, now))


def choose(ways: Sequence[Way]) -> tuple[Way, str]:
    """Returns the way that `auto` takes, with the reason: the cheapest one in time, else the fastest one.

    Without a prefix cache batch inference is taken where it ends in time in 8 of 10 cases, or where flex would be
    too late: with a smaller chance, the standard tier for the rest costs more than flex for all.
    """
    in_time = [way for way in ways if way.is_in_time]
    if not in_time:
        fastest = next(way for way in ways if way.tier not in ("flex", "batch"))
        return fastest, "no way is finished by `inference.finish_by`; online is the fastest one"
    are_priced = all(way.cost_usd is not None for way in in_time)
    best = min(in_time, key=lambda way: (way.cost_usd or 0.0) if are_priced else way.price_ratio)
    cost = "its price is not known" if best.cost_usd is None else f"about {usd(best.cost_usd)}"
    cached = " with a prefix cache" if best.prefix_cache else ""
    return best, f"{best.tier}{cached} is the cheapest way that is finished in time: {cost}"


def flex_until(deadline_at: float, online_seconds: float | None) -> float:
    """Returns the Unix time from which on only the standard tier answers early enough, however little is answered.

    Args:
        deadline_at: Unix time by which the answers are needed.
        online_seconds: Time that all rows take at the standard tier, in seconds; `None` if it is not known, and
            then no row is sent at the flex tier.
    """
    if online_seconds is None:
        return 0.0
    return deadline_at - online_seconds * ONLINE_MARGIN - MAX_FLEX_SECONDS


def _online(
    tier: Literal["standard", "priority", "provisioned", "flex"],
    cache: bool,
    work: Work,
    plan: BatchPlan,
    price: Price | None,
    now: float,
) -> Way:
    shed = FLEX_SHED_RATIO if tier == "flex" else 0.0
    ratio = FLEX_RATIOS["flex_then_standard"] if tier == "flex" else _ratio(price, tier)
    expected = safe = None
    if plan.online_seconds is not None:
        extra, slow = (TYPICAL_FLEX_SECONDS, MAX_FLEX_SECONDS) if tier == "flex" else (0.0, 0.0)
        expected = now + plan.online_seconds * (1 + shed) + extra
        safe = now + plan.online_seconds * (1 + shed) * ONLINE_MARGIN + slow
    # Flex is not promised, so that it is refused where its time is not known.
    unknown = tier != "flex"
    return Way(
        tier=tier,
        prefix_cache=cache,
        cost_usd=work.cost_usd(price, ratio, cache),
        price_ratio=ASSUMED_PRIORITY_RATIO if ratio is None else ratio,
        expected_at=expected,
        safe_at=safe,
        is_in_time=plan.deadline_at is None or (unknown if safe is None else safe <= plan.deadline_at),
        has_deadline=plan.deadline_at is not None,
    )


def _ratio(price: Price | None, tier: OrdinaryTier) -> float | None:
    """Returns the price of a tier over that of the standard one; `None` if it is not known."""
    return (1.0 if tier == "standard" else None) if price is None else price.ratio_at(tier)


def _batch(
    ordinary: OrdinaryTier, work: Work, plan: BatchPlan, price: Price | None, turnaround: Turnaround, now: float
) -> Way:
    """Batch inference reads no stored prefix: Vertex AI refuses explicit caches in it."""
    wait = plan.switch_at(1.0) - now
    chance = turnaround.chance(wait)
    ratio = _ratio(price, ordinary)
    expected = TIER_RATIOS["batch"] * chance + (1 - chance) * (ASSUMED_PRIORITY_RATIO if ratio is None else ratio)
    # Where jobs are not finished at the switch, the rest is online by then and this time.
    rest = None if plan.online_seconds is None else wait + CANCEL_SECONDS + plan.online_seconds * ONLINE_MARGIN
    return Way(
        tier="batch",
        prefix_cache=False,
        cost_usd=work.cost_usd(price, None if ratio is None else expected, prefix_cache=False),
        price_ratio=expected,
        expected_at=_finish(turnaround.quantile(0.5), wait, rest, now),
        safe_at=_finish(turnaround.quantile(0.9), wait, rest, now),
        is_in_time=plan.pays(now),
        has_deadline=plan.deadline_at is not None,
    )


def moment(at: float | None) -> str:
    """Returns a Unix time as a person reads it."""
    return "an unknown time" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def _finish(seconds: float, wait: float, rest: float | None, now: float) -> float | None:
    if seconds <= wait:
        return now + seconds
    return None if rest is None else now + rest
