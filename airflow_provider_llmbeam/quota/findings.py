"""What follows from each kind of evidence by itself. Pure: every decision takes `now`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from airflow_provider_llmbeam.probe.prober import Probe
from airflow_provider_llmbeam.quota.evidence import (
    STATED,
    Accelerators,
    Allowance,
    Dedicated,
    Serving,
    Situation,
    Traffic,
    Unit,
)

Verdict = Literal["healthy", "degraded", "exhausted", "unknown"]
#: The worst last. `unknown` is not among them: it says nothing, and what is known counts.
RANKS: tuple[Verdict, ...] = ("healthy", "degraded", "exhausted")

#: Evidence older than this says nothing. Metrics show 2.5 to 6 minutes late
#: (docs.cloud.google.com/monitoring/api/metrics_gcp), so half of that is left for a gap.
STALE_SECONDS = 900.0
#: Below so many invocations a share of them is chance: of 20, one rejected is 5 %.
MIN_SAMPLE = 20
#: Shares of requests that were rejected or failed: from the first on there is too little, from the second nothing.
DEGRADED_RATIO, EXHAUSTED_RATIO = 0.01, 0.5
#: Shares of a limit that are in use.
BUSY_RATIO, FULL_RATIO = 0.8, 0.98
#: Of what is free: the rest is for the neighbours' next busy minute.
MARGIN = 0.95
#: A first token that takes so many times as long as usual, and at least this much longer.
SLOW_FACTOR, SLOW_SECONDS = 2.0, 1.0
#: A few words that take longer than this are slow, whatever is usual.
SLOW_PROBE_SECONDS = 10.0
#: Accelerators that work so much of the time have no room for another job.
BUSY_DUTY_CYCLE = 0.95


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit per minute, and what is used of it; `None`: not known."""

    unit: Unit
    limit: float
    used: float | None = None

    @property
    def free(self) -> float:
        """What nobody is known to use."""
        return max(0.0, self.limit - (self.used or 0.0))

    @property
    def used_ratio(self) -> float:
        """0 to 1, or beyond."""
        return (self.used or 0.0) / self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one kind of evidence says.

    Attributes:
        verdict: By it alone.
        words: One sentence.
        rates: That may be sent per minute, by unit; empty: it does not say.
        rejected_ratio: Share of 429s; `None`: it does not say.
        sample_size: Requests that it rests on.
        age_seconds: Of the evidence; `None`: there is none.
        bound: The limit that it is about, if it is about one.
    """

    verdict: Verdict
    words: str
    rates: Mapping[Unit, float] = field(default_factory=dict)
    rejected_ratio: float | None = None
    sample_size: int = 0
    age_seconds: float | None = None
    bound: Bound | None = None


def traffic_finding(traffic: Traffic | None, situation: Situation, now: float) -> Finding:
    """What the requests of the last minutes say; without any, nothing."""
    if traffic is None or now - traffic.until > STALE_SECONDS:
        return Finding(
            verdict="unknown",
            words="Cloud Monitoring shows no request of this project in the last minutes, which says nothing.",
        )
    age, sample = now - traffic.until, traffic.invocations
    if sample < MIN_SAMPLE:
        return Finding(
            verdict="unknown",
            words=f"Cloud Monitoring shows {sample} request{'s'[: sample != 1]}, too few to judge by "
            f"({MIN_SAMPLE} are).",
            sample_size=sample,
            age_seconds=age,
        )
    rejected = traffic.rejected / sample
    verdict = _by_share(max(rejected, traffic.failed / sample))
    words = f"Of {sample:,} requests until {_ago(age)} ago {rejected:.1%} were rejected"
    words += f" and {traffic.failed / sample:.1%} failed." if traffic.failed else "."
    if drift := _drift(traffic):
        verdict, words = max(verdict, "degraded", key=RANKS.index), f"{words} {drift}"
    # A shared pool has no number. What it let through is proof of that much, and all there is once it rejects.
    has_room = verdict == "healthy" or situation != "shared_pool" or rejected < DEGRADED_RATIO
    return Finding(
        verdict=verdict,
        words=words,
        rates={} if has_room else {"requests": traffic.peak_requests_per_minute},
        rejected_ratio=rejected,
        sample_size=sample,
        age_seconds=age,
    )


def allowance_finding(allowance: Allowance, now: float) -> Finding:
    """What one limit per minute leaves."""
    unit, limit = allowance.unit, allowance.limit
    stated = "`limits`" if allowance.name == STATED else f"Quota {allowance.name!r}"
    name = unit.replace("_", " ")
    allows = f"{stated} allows {limit:,.0f} {name} per minute"
    if limit <= 0:
        words = f"{stated} allows no {name} at all: ask Google for more, as waiting changes nothing."
        return _bounded("exhausted", words, Bound(unit, 0.0), 0.0, None)
    age = None if allowance.until is None else now - allowance.until
    if allowance.used is None or (age is not None and age > STALE_SECONDS):
        words = f"{allows}; how many are used is not known."
        return _bounded("unknown", words, Bound(unit, limit), limit, None)
    bound, words = Bound(unit, limit, allowance.used), f"{allows}, of which {allowance.used / limit:.0%} are used"
    verdict: Verdict = "healthy"
    if bound.used_ratio >= FULL_RATIO:
        return _bounded("exhausted", f"{words}.", bound, 0.0, age)
    if allowance.exceeded:
        verdict = "degraded"
        words += f", and {allowance.exceeded:,} requests were rejected for it all the same: a burst"
    elif bound.used_ratio >= BUSY_RATIO:
        verdict = "degraded"
    return _bounded(verdict, f"{words}.", bound, MARGIN * bound.free, age)


def dedicated_finding(dedicated: Dedicated, now: float) -> Finding:
    """What Provisioned Throughput leaves."""
    limit, used = dedicated.limit_tokens_per_second, dedicated.used_tokens_per_second
    words = f"Provisioned Throughput is {limit:,.0f} tokens per second"
    age = None if dedicated.until is None else now - dedicated.until
    if used is None or (age is not None and age > STALE_SECONDS):
        words += "; how much is used is not known."
        return _bounded("unknown", words, Bound("tokens", 60 * limit), 60 * limit, None)
    bound, words = Bound("tokens", 60 * limit, 60 * used), f"{words}, of which {used / limit:.0%} are used"
    if dedicated.spilled_tokens:
        # An average below 100 % can hide it: cloud.google.com/vertex-ai/generative-ai/docs/provisioned-throughput
        words += f"; {dedicated.spilled_tokens:,.0f} tokens spilled over, and are billed as pay-as-you-go"
    if dedicated.spilled_tokens or bound.used_ratio >= FULL_RATIO:
        return _bounded("exhausted", f"{words}.", bound, 0.0, age)
    verdict: Verdict = "degraded" if bound.used_ratio >= BUSY_RATIO else "healthy"
    return _bounded(verdict, f"{words}.", bound, MARGIN * bound.free, age)


def _bounded(verdict: Verdict, words: str, bound: Bound, per_minute: float, age_seconds: float | None) -> Finding:
    return Finding(
        verdict=verdict,
        words=words,
        rates={bound.unit: per_minute},
        age_seconds=age_seconds,
        bound=bound,
    )


def serving_finding(serving: Serving | None, now: float) -> Finding:
    """How an endpoint of one's own is doing."""
    if serving is None or now - serving.until > STALE_SECONDS:
        return Finding(
            verdict="unknown",
            words="Cloud Monitoring shows nothing of the endpoint in the last minutes, which says nothing.",
        )
    replicas, target = serving.replicas, serving.target_replicas
    verdict: Verdict = "healthy"
    said = []
    if replicas is not None and target is not None:
        said.append(f"{replicas:.0f} of {target:.0f} replicas are up")
        if replicas < target:
            verdict = "degraded"
    if replicas == 0:
        verdict = "exhausted"
    ratio = None
    if serving.responses:
        ratio = serving.rejected / serving.responses
        failed = serving.failed / serving.responses
        rejected = f"{ratio:.1%} were 429 and " if serving.rejected else ""
        said.append(f"of {serving.responses:,} responses {rejected}{failed:.1%} failed (5xx)")
        if serving.responses >= MIN_SAMPLE:
            verdict = max(verdict, _by_share(max(ratio, failed)), key=RANKS.index)
    if serving.duty_cycle is not None:
        said.append(f"its accelerators work {serving.duty_cycle:.0%} of the time")
        if serving.duty_cycle >= BUSY_DUTY_CYCLE:
            verdict = max(verdict, "degraded", key=RANKS.index)
    return Finding(
        verdict=verdict if said else "unknown",
        words=f"Endpoint: {'; '.join(said) or 'nothing is known of it'}.",
        rejected_ratio=ratio,
        sample_size=serving.responses,
        age_seconds=now - serving.until,
    )


def accelerator_finding(accelerators: Accelerators, now: float, *, is_unread: bool) -> Finding:
    """Whether the quota of a location has room for an endpoint.

    Args:
        accelerators: The quota.
        now: Seconds of the Unix epoch.
        is_unread: Whether what is missing could not be read. Where it could, a project that never had one in the
            location has no series for it.
    """
    limit, used, wanted = accelerators.limit, accelerators.used, accelerators.wanted
    age = None if accelerators.until is None else now - accelerators.until
    if limit is None:
        return Finding(verdict="unknown", words=f"Quota {accelerators.name!r} is not known.")
    if math.isinf(limit):
        return Finding(verdict="healthy", words=f"Quota {accelerators.name!r} has no limit.")
    allows = f"Quota {accelerators.name!r} allows {limit:.0f}"
    if wanted > limit:
        words = f"{allows}, and {wanted} are asked for: ask Google for more, as waiting changes nothing."
        return Finding(verdict="exhausted", words=words, age_seconds=age)
    if used is None and is_unread:
        return Finding(verdict="unknown", words=f"{allows}; how many are used is not known.", age_seconds=age)
    if used is None:
        words = f"{allows}, none of them is shown as used; {wanted} asked for."
        return Finding(verdict="degraded", words=words, age_seconds=age)
    words = f"{allows}, of which {used:.0f} {'is' if used == 1 else 'are'} used; {wanted} asked for."
    if limit - used < wanted:
        return Finding(verdict="exhausted", words=words, age_seconds=age)
    return Finding(
        verdict="healthy", words=f"{words} Whether there is one free is another matter.", age_seconds=age
    )


def probe_finding(probe: Probe | None, usual_first_token_seconds: float | None, now: float) -> Finding:
    """What a few requests of our own say."""
    if probe is None or not probe.sent:
        return Finding(verdict="unknown", words="No request was sent to try: `max_probe_usd` is used up.")
    sent, age = probe.sent, now - probe.at
    last = next((reply.message for reply in reversed(probe.replies) if reply.message), "")
    if any(reply.is_daily for reply in probe.replies):
        words = f"The quota of the day is used up: {last}"
        return Finding(verdict="exhausted", words=words, rejected_ratio=1.0, sample_size=sent, age_seconds=age)
    if probe.failed == sent:
        words = f"{_tried(sent)} {'it' if sent == 1 else 'all'} failed: {last}"
        return Finding(verdict="unknown", words=words, sample_size=sent, age_seconds=age)
    ratio = probe.rejected / sent
    words = f"{_tried(sent)} {probe.answered} {'was' if probe.answered == 1 else 'were'} answered"
    words += f", {probe.rejected} rejected" if probe.rejected else ""
    words += f", {probe.failed} failed" if probe.failed else ""
    verdict: Verdict = "exhausted" if not probe.answered else "degraded" if probe.answered < sent else "healthy"
    if is_slow := _is_slow(probe, usual_first_token_seconds):
        verdict = max(verdict, "degraded", key=RANKS.index)
    seconds = probe.median_seconds
    if seconds is None:
        words += f": {last}"
    else:
        words += f" in {seconds:.1f} s{' each, which is slow' if is_slow else ''}."
    return Finding(
        verdict=verdict,
        words=words,
        rates={"requests": _proven_rate(probe)} if probe.rejected else {},
        rejected_ratio=ratio,
        sample_size=sent,
        age_seconds=age,
    )


def _proven_rate(probe: Probe) -> float:
    """What was answered, over the time that it took: that much gets through, and nobody knows of more."""
    seconds = sum(reply.seconds for reply in probe.replies)
    return 60 * probe.answered / max(1.0, seconds)


def _is_slow(probe: Probe, usual_seconds: float | None) -> bool:
    if probe.median_seconds is None:
        return False
    usual = SLOW_PROBE_SECONDS if usual_seconds is None else max(SLOW_FACTOR * usual_seconds, SLOW_SECONDS)
    return probe.median_seconds > min(usual, SLOW_PROBE_SECONDS)


def _drift(traffic: Traffic) -> str:
    """Says that first tokens take longer than usual, if they do."""
    now, usual = traffic.first_token_seconds, traffic.usual_first_token_seconds
    if now is None or usual is None or now < SLOW_FACTOR * usual or now - usual < SLOW_SECONDS:
        return ""
    return f"The first token takes {now:.1f} s (95th percentile) where {usual:.1f} s were usual the day before."


def _by_share(ratio: float) -> Verdict:
    return "exhausted" if ratio >= EXHAUSTED_RATIO else "degraded" if ratio >= DEGRADED_RATIO else "healthy"


def _tried(sent: int) -> str:
    return f"Of {sent} small requests sent to try,"


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
