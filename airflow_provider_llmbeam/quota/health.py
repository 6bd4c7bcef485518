"""Whether a model has room for a job: all evidence in one value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from airflow_provider_llmbeam.quota.evidence import Evidence, Unit
from airflow_provider_llmbeam.quota.findings import (
    RANKS,
    Bound,
    Finding,
    Verdict,
    accelerator_finding,
    allowance_finding,
    dedicated_finding,
    probe_finding,
    serving_finding,
    traffic_finding,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaHealth:
    """One model, or one endpoint that is to come, in one location.

    Attributes:
        verdict: `healthy`: there is room. `degraded`: some, or with rejections. `exhausted`: none. `unknown`:
            nothing was seen that would tell; never taken for healthy.
        sentence: For people: the verdict and what it rests on.
        location: Google Cloud's; empty where there is none.
        rates: That may be sent per minute, by unit; without those of which nobody knows a bound.
        limits: Per minute, by unit; empty where there is none, as under dynamic shared quota.
        usage: Per minute in the busiest minute lately, by unit; without what is not known.
        headroom: Limit less usage, per minute, by unit.
        rejected_ratio: Share of 429s, the largest of those seen; `None`: not known.
        sample_size: Requests that the verdict rests on.
        age_seconds: Of the oldest evidence that counted; `None`: there was none.
    """

    verdict: Verdict
    sentence: str
    location: str = ""
    rates: dict[Unit, float]
    limits: dict[Unit, float]
    usage: dict[Unit, float]
    headroom: dict[Unit, float]
    rejected_ratio: float | None = None
    sample_size: int = 0
    age_seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Reads what `to_dict` wrote."""
        return cls(**data)


def judge(evidence: Evidence, now: float) -> QuotaHealth:
    """Puts all evidence together.

    The worst that is known counts, but for two rules. A request of our own that was answered just now outweighs
    what a shared pool did some minutes ago; a measured limit it does not outweigh, as a few requests fit in many a
    full minute. And where nothing else is known, a limit with unknown use is enough if our own were answered.

    Args:
        evidence: Whatever is known.
        now: Seconds of the Unix epoch.
    """
    traffic = evidence.traffic
    usual = traffic.usual_first_token_seconds if traffic else None
    probe = probe_finding(evidence.probe, usual, now)
    metrics = [_softened(each, probe) for each in _metric_findings(evidence, now)]
    findings = [*metrics, probe]
    known = [each for each in findings if each.verdict != "unknown"]
    verdict: Verdict = max((each.verdict for each in known), key=RANKS.index) if known else "unknown"
    counted = known or findings
    tightest = _tightest(findings)
    ratios = [each.rejected_ratio for each in counted if each.rejected_ratio is not None]
    ages = [each.age_seconds for each in counted if each.age_seconds is not None]
    return QuotaHealth(
        verdict=verdict,
        sentence=_sentence(evidence, verdict, findings),
        location=evidence.location,
        rates=_least(each.rates for each in findings),
        limits={unit: each.limit for unit, each in tightest.items()},
        usage={unit: each.used for unit, each in tightest.items() if each.used is not None},
        headroom={unit: each.free for unit, each in tightest.items() if each.used is not None},
        rejected_ratio=max(ratios, default=None),
        sample_size=sum(each.sample_size for each in counted),
        age_seconds=max(ages, default=None),
    )


def _metric_findings(evidence: Evidence, now: float) -> list[Finding]:
    match evidence.situation:
        case "accelerators":
            is_unread = bool(evidence.unreadable)
            found = evidence.accelerators
            return [accelerator_finding(found, now, is_unread=is_unread)] if found else []
        case "own_endpoint":
            return [] if evidence.is_unread(evidence.serving) else [serving_finding(evidence.serving, now)]
        case "unpublished_quota":
            return [allowance_finding(each, now) for each in evidence.allowances]
    known = [allowance_finding(each, now) for each in evidence.allowances]
    if evidence.dedicated is not None:
        known.append(dedicated_finding(evidence.dedicated, now))
    if not evidence.is_unread(evidence.traffic):
        known.insert(0, traffic_finding(evidence.traffic, evidence.situation, now))
    return known


def _softened(metric: Finding, probe: Finding) -> Finding:
    """A pool that was exhausted some minutes ago, seen beside requests that were answered just now."""
    is_past = metric.verdict == "exhausted" and metric.rejected_ratio is not None
    if not is_past or probe.verdict != "healthy":
        return metric
    # Of a pool that let nothing through then, nobody knows what it has now.
    return replace(metric, verdict="degraded", rates={unit: rate for unit, rate in metric.rates.items() if rate})


def _sentence(evidence: Evidence, verdict: Verdict, findings: Sequence[Finding]) -> str:
    was_tried = evidence.probe is not None
    words = [each.words for each in findings if was_tried or each is not findings[-1]]
    return " ".join([f"{evidence.what} is {verdict}:", *words, *evidence.unreadable])


def _tightest(findings: Iterable[Finding]) -> dict[Unit, Bound]:
    """Of each unit the limit that leaves least."""
    bounds = [each.bound for each in findings if each.bound is not None]
    return {bound.unit: bound for bound in sorted(bounds, key=lambda bound: -bound.free)}


def _least(rates: Iterable[Mapping[Unit, float]]) -> dict[Unit, float]:
    least: dict[Unit, float] = {}
    for each in rates:
        for unit, rate in each.items():
            least[unit] = min(rate, least.get(unit, rate))
    return least
