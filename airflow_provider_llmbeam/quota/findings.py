"""Findings: what each kind of evidence shows by itself. Pure; `now` is an argument."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from airflow_provider_llmbeam.hooks.probe import Probe
from airflow_provider_llmbeam.quota.evidence import (
    SERVER,
    STATED,
    Accelerators,
    Allowance,
    Dedicated,
    ServerQueue,
    Serving,
    Situation,
    Traffic,
    Unit,
)

Verdict = Literal["healthy", "degraded", "exhausted", "unknown"]
#: Verdicts, the worst last. `unknown` is not among them: it is no evidence, and known verdicts count.
RANKS: tuple[Verdict, ...] = ("healthy", "degraded", "exhausted")

#: Evidence older than this does not count. Metrics are 2.5 to 6 minutes late
#: (docs.cloud.google.com/monitoring/api/metrics_gcp), so half of that is left for a gap.
STALE_SECONDS = 900.0
#: With fewer invocations their share of rejections is chance: of 20, one rejection is 5 %.
MIN_SAMPLE = 20
#: Shares of rejected or failed requests from which on a model is `degraded` or `exhausted`.
DEGRADED_RATIO, EXHAUSTED_RATIO = 0.01, 0.5
#: Used shares of a limit from which on it is `degraded` or `exhausted`.
BUSY_RATIO, FULL_RATIO = 0.8, 0.98
#: Share of the headroom that is recommended; the rest is left for the next busy minute of other users.
MARGIN = 0.95
#: A first token is slow if it takes this many times as long as usual, and at least this much longer.
SLOW_FACTOR, SLOW_SECONDS = 2.0, 1.0
#: A probe reply that takes longer than this is slow, whatever is usual.
SLOW_PROBE_SECONDS = 10.0
#: Duty cycle from which on accelerators have no capacity for another job.
BUSY_DUTY_CYCLE = 0.95


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit per minute, and its usage; `None` if the usage is not known."""

    unit: Unit
    limit: float
    used: float | None = None

    @property
    def free(self) -> float:
        """Limit less known usage, per minute."""
        return max(0.0, self.limit - (self.used or 0.0))

    @property
    def used_ratio(self) -> float:
        """Usage over limit; may exceed 1."""
        return (self.used or 0.0) / self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one kind of evidence.

    Attributes:
        verdict: Verdict by this evidence alone.
        sentence: Description for people.
        rates: Free rates per minute, by unit; empty if the evidence has none.
        rejected_ratio: Share of 429s, 0 to 1; `None` if not known.
        sample_size: Number of requests in the evidence.
        age_seconds: Age of the evidence; `None` if there is none.
        bound: Limit that the evidence describes; `None` if there is none.
    """

    verdict: Verdict
    sentence: str
    rates: Mapping[Unit, float] = field(default_factory=dict)
    rejected_ratio: float | None = None
    sample_size: int = 0
    age_seconds: float | None = None
    bound: Bound | None = None


def traffic_finding(traffic: Traffic | None, situation: Situation, now: float) -> Finding:
    """Judges the requests of the last minutes; `unknown` without requests."""
    if traffic is None or now - traffic.until > STALE_SECONDS:
        return Finding(
            verdict="unknown",
            sentence="Cloud Monitoring shows no requests of this project in the last minutes: no evidence.",
        )
    age, sample = now - traffic.until, traffic.invocations
    if sample < MIN_SAMPLE:
        return Finding(
            verdict="unknown",
            sentence=f"Cloud Monitoring shows {sample} request{'s'[: sample != 1]}, too few to judge "
            f"({MIN_SAMPLE} are needed).",
            sample_size=sample,
            age_seconds=age,
        )
    rejected = traffic.rejected / sample
    verdict = _by_share(max(rejected, traffic.failed / sample))
    sentence = f"Of {sample:,} requests until {_ago(age)} ago {rejected:.1%} were rejected"
    sentence += f" and {traffic.failed / sample:.1%} failed." if traffic.failed else "."
    if drift := _drift(traffic):
        verdict, sentence = max(verdict, "degraded", key=RANKS.index), f"{sentence} {drift}"
    # A shared pool has no published limit. Once it rejects, the rate that it admitted is all that is known.
    has_room = verdict == "healthy" or situation != "shared_pool" or rejected < DEGRADED_RATIO
    return Finding(
        verdict=verdict,
        sentence=sentence,
        rates={} if has_room else {"requests": traffic.peak_requests_per_minute},
        rejected_ratio=rejected,
        sample_size=sample,
        age_seconds=age,
    )


def allowance_finding(allowance: Allowance, now: float) -> Finding:
    """Judges the headroom of one limit per minute."""
    unit, limit = allowance.unit, allowance.limit
    source = {STATED: "`limits`", SERVER: "The server"}.get(allowance.name, f"Quota {allowance.name!r}")
    name = unit.replace("_", " ")
    allows = f"{source} allows {limit:,.0f} {name} per minute"
    if limit <= 0:
        sentence = (
            f"{source} allows no {name} at all: request an increase from Google, as waiting will not resolve this."
        )
        return _judge_bound("exhausted", sentence, Bound(unit, 0.0), 0.0, None)
    age = None if allowance.until is None else now - allowance.until
    if allowance.used is None or (age is not None and age > STALE_SECONDS):
        sentence = f"{allows}; its usage is not known."
        return _judge_bound("unknown", sentence, Bound(unit, limit), limit, None)
    bound, sentence = (
        Bound(unit, limit, allowance.used),
        f"{allows}, of which {allowance.used / limit:.0%} are used",
    )
    verdict: Verdict = "healthy"
    if bound.used_ratio >= FULL_RATIO:
        return _judge_bound("exhausted", f"{sentence}.", bound, 0.0, age)
    if allowance.exceeded:
        verdict = "degraded"
        sentence += f", and {allowance.exceeded:,} requests were rejected for it nevertheless: a burst"
    elif bound.used_ratio >= BUSY_RATIO:
        verdict = "degraded"
    return _judge_bound(verdict, f"{sentence}.", bound, MARGIN * bound.free, age)


def dedicated_finding(dedicated: Dedicated, now: float) -> Finding:
    """Judges the headroom of Provisioned Throughput."""
    limit, used = dedicated.limit_tokens_per_second, dedicated.used_tokens_per_second
    sentence = f"Provisioned Throughput is {limit:,.0f} tokens per second"
    age = None if dedicated.until is None else now - dedicated.until
    if used is None or (age is not None and age > STALE_SECONDS):
        sentence += "; its usage is not known."
        return _judge_bound("unknown", sentence, Bound("tokens", 60 * limit), 60 * limit, None)
    bound, sentence = Bound("tokens", 60 * limit, 60 * used), f"{sentence}, of which {used / limit:.0%} are used"
    if dedicated.spilled_tokens:
        # An average below 100 % can hide it: cloud.google.com/vertex-ai/generative-ai/docs/provisioned-throughput
        sentence += f"; {dedicated.spilled_tokens:,.0f} tokens spilled over, and are billed as pay-as-you-go"
    if dedicated.spilled_tokens or bound.used_ratio >= FULL_RATIO:
        return _judge_bound("exhausted", f"{sentence}.", bound, 0.0, age)
    verdict: Verdict = "degraded" if bound.used_ratio >= BUSY_RATIO else "healthy"
    return _judge_bound(verdict, f"{sentence}.", bound, MARGIN * bound.free, age)


def _judge_bound(
    verdict: Verdict, sentence: str, bound: Bound, per_minute: float, age_seconds: float | None
) -> Finding:
    return Finding(
        verdict=verdict,
        sentence=sentence,
        rates={bound.unit: per_minute},
        age_seconds=age_seconds,
        bound=bound,
    )


def serving_finding(serving: Serving | None, now: float) -> Finding:
    """Judges an endpoint of the project."""
    if serving is None or now - serving.until > STALE_SECONDS:
        return Finding(
            verdict="unknown",
            sentence="Cloud Monitoring shows no data of the endpoint in the last minutes: no evidence.",
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
        failed, refused = serving.failed / serving.responses, serving.refused / serving.responses
        said.append(f"of {serving.responses:,} responses {failed:.1%} failed (5xx)")
        if serving.refused:
            said[-1] += (
                f" and {refused:.1%} were refused (4xx): by a 429 or for their form, the metric does not show"
            )
        else:
            ratio = 0.0
        if serving.responses >= MIN_SAMPLE:
            # What was refused may be the form of another client's requests, which says nothing of the capacity.
            verdict = max(
                verdict, _by_share(failed), min("degraded", _by_share(refused), key=RANKS.index), key=RANKS.index
            )
    if serving.duty_cycle is not None:
        said.append(f"its accelerators work {serving.duty_cycle:.0%} of the time")
        if serving.duty_cycle >= BUSY_DUTY_CYCLE:
            verdict = max(verdict, "degraded", key=RANKS.index)
    if serving.waiting is not None:
        said.append(f"{serving.waiting:.0f} requests wait in its queue")
        if serving.waiting >= 1:
            verdict = max(verdict, "degraded", key=RANKS.index)
    return Finding(
        verdict=verdict if said else "unknown",
        sentence=f"Endpoint: {'; '.join(said) or 'no data'}.",
        rejected_ratio=ratio,
        sample_size=serving.responses,
        age_seconds=now - serving.until,
    )


def queue_finding(queue: ServerQueue) -> Finding:
    """Judges the queue of a vLLM server."""
    cache = "" if queue.cache_ratio is None else f", and its KV cache is {queue.cache_ratio:.0%} full"
    return Finding(
        verdict="degraded" if queue.waiting >= 1 else "healthy",
        sentence=f"vLLM: {queue.waiting:.0f} requests wait in its queue{cache}.",
        age_seconds=0.0,
    )


def accelerator_finding(accelerators: Accelerators, now: float, *, is_unread: bool) -> Finding:
    """Judges whether the accelerator quota of a location suffices for an endpoint.

    Args:
        accelerators: Quota, usage and need.
        now: Seconds of the Unix epoch.
        is_unread: Whether missing usage is due to a failed read; otherwise the project has never had such an
            accelerator in the location, and there is no time series.
    """
    limit, used, wanted = accelerators.limit, accelerators.used, accelerators.wanted
    age = None if accelerators.until is None else now - accelerators.until
    if limit is None:
        return Finding(verdict="unknown", sentence=f"Quota {accelerators.name!r} is not known.")
    if math.isinf(limit):
        return Finding(verdict="healthy", sentence=f"Quota {accelerators.name!r} has no limit.")
    allows = f"Quota {accelerators.name!r} allows {limit:.0f}"
    if wanted > limit:
        sentence = (
            f"{allows}, and {wanted} are asked for: request an increase from Google, as waiting will not resolve "
            "this."
        )
        return Finding(verdict="exhausted", sentence=sentence, age_seconds=age)
    if used is None and is_unread:
        return Finding(verdict="unknown", sentence=f"{allows}; its usage is not known.", age_seconds=age)
    if used is None:
        sentence = f"{allows}, none of them is shown as used; {wanted} asked for."
        return Finding(verdict="degraded", sentence=sentence, age_seconds=age)
    sentence = f"{allows}, of which {used:.0f} {'is' if used == 1 else 'are'} used; {wanted} asked for."
    if limit - used < wanted:
        return Finding(verdict="exhausted", sentence=sentence, age_seconds=age)
    return Finding(
        verdict="healthy", sentence=f"{sentence} A quota does not guarantee free capacity.", age_seconds=age
    )


def probe_finding(probe: Probe | None, usual_first_token_seconds: float | None, now: float) -> Finding:
    """Judges the replies to our own probe requests."""
    if probe is None or not probe.sent:
        return Finding(verdict="unknown", sentence="No probe request was sent: `max_probe_usd` is used up.")
    sent, age = probe.sent, now - probe.at
    message = next((reply.message for reply in reversed(probe.replies) if reply.message), "")
    if any(reply.is_daily for reply in probe.replies):
        sentence = f"The daily quota is used up: {message}"
        return Finding(
            verdict="exhausted", sentence=sentence, rejected_ratio=1.0, sample_size=sent, age_seconds=age
        )
    if probe.failed == sent:
        sentence = f"{_sent(sent)} {'it' if sent == 1 else 'all'} failed: {message}"
        return Finding(verdict="unknown", sentence=sentence, sample_size=sent, age_seconds=age)
    ratio = probe.rejected / sent
    sentence = f"{_sent(sent)} {probe.answered} {'was' if probe.answered == 1 else 'were'} answered"
    sentence += f", {probe.rejected} rejected" if probe.rejected else ""
    sentence += f", {probe.failed} failed" if probe.failed else ""
    verdict: Verdict = "exhausted" if not probe.answered else "degraded" if probe.answered < sent else "healthy"
    if is_slow := _is_slow(probe, usual_first_token_seconds):
        verdict = max(verdict, "degraded", key=RANKS.index)
    seconds = probe.median_seconds
    if seconds is None:
        sentence += f": {message}"
    else:
        sentence += f" in {seconds:.1f} s{' each, which is slow' if is_slow else ''}."
    return Finding(
        verdict=verdict,
        sentence=sentence,
        rates={"requests": _proven_rate(probe)} if probe.rejected else {},
        rejected_ratio=ratio,
        sample_size=sent,
        age_seconds=age,
    )


def _proven_rate(probe: Probe) -> float:
    """Returns the answered requests per minute of the probe: the highest rate that is known to be admitted."""
    seconds = sum(reply.seconds for reply in probe.replies)
    return 60 * probe.answered / max(1.0, seconds)


def _is_slow(probe: Probe, usual_seconds: float | None) -> bool:
    if probe.median_seconds is None:
        return False
    usual = SLOW_PROBE_SECONDS if usual_seconds is None else max(SLOW_FACTOR * usual_seconds, SLOW_SECONDS)
    return probe.median_seconds > min(usual, SLOW_PROBE_SECONDS)


def _drift(traffic: Traffic) -> str:
    """Returns a sentence if first tokens take longer than usual; empty otherwise."""
    now, usual = traffic.first_token_seconds, traffic.usual_first_token_seconds
    if now is None or usual is None or now < SLOW_FACTOR * usual or now - usual < SLOW_SECONDS:
        return ""
    return f"The first token takes {now:.1f} s (95th percentile) where {usual:.1f} s were usual the day before."


def _by_share(ratio: float) -> Verdict:
    return "exhausted" if ratio >= EXHAUSTED_RATIO else "degraded" if ratio >= DEGRADED_RATIO else "healthy"


def _sent(sent: int) -> str:
    return f"Of {sent} probe requests,"


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
