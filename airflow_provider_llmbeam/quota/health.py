"""Quota health: one verdict from all evidence. Pure; `now` is an argument."""

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
    queue_finding,
    serving_finding,
    traffic_finding,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaHealth:
    """Quota health of one model, or of one planned endpoint, in one location.

    Attributes:
        verdict: `healthy`: there is headroom. `degraded`: there is little, or some requests are rejected.
            `exhausted`: there is none. `unknown`: there is no evidence; never treated as healthy.
        sentence: Verdict and evidence, for people.
        location: Google Cloud location; empty if there is none.
        rates: Free rates per minute, by unit; without units that have no known bound.
        limits: Limits per minute, by unit; empty if there are none, as under dynamic shared quota.
        usage: Usage in the busiest minute of the window, by unit; without units whose usage is not known.
        headroom: Limit less usage, per minute, by unit.
        rejected_ratio: Largest share of 429s in the evidence, 0 to 1; `None` if not known.
        sample_size: Number of requests in the evidence.
        age_seconds: Age of the oldest evidence that counted; `None` if there was none.
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
        """Returns the fields as plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Reads what `to_dict` returned."""
        return cls(**data)


def judge(evidence: Evidence, now: float) -> QuotaHealth:
    """Returns the health that follows from all evidence.

    The worst known verdict counts, with two exceptions. A probe request that was answered just now outweighs
    rejections of a shared pool some minutes ago, but not a measured limit, since a few requests often fit into a
    full minute. And without other evidence, a limit with unknown usage suffices if the probe was answered.

    Args:
        evidence: All evidence of one location.
        now: Seconds of the Unix epoch.
    """
    traffic = evidence.traffic
    usual = traffic.usual_first_token_seconds if traffic else None
    probe = probe_finding(evidence.probe, usual, now)
    metrics = [_soften(each, probe) for each in _metric_findings(evidence, now)]
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
            found_queue = [] if evidence.queue is None else [queue_finding(evidence.queue)]
            return [*found_queue, *(allowance_finding(each, now) for each in evidence.allowances)]
    known = [allowance_finding(each, now) for each in evidence.allowances]
    if evidence.dedicated is not None:
        known.append(dedicated_finding(evidence.dedicated, now))
    if not evidence.is_unread(evidence.traffic):
        known.insert(0, traffic_finding(evidence.traffic, evidence.situation, now))
    return known


def _soften(metric: Finding, probe: Finding) -> Finding:
    """Returns `degraded` for a pool that was exhausted some minutes ago if the probe was answered just now."""
    is_past = metric.verdict == "exhausted" and metric.sample_size > 0
    if not is_past or probe.verdict != "healthy":
        return metric
    # If the pool admitted nothing then, its present rate is not known.
    return replace(metric, verdict="degraded", rates={unit: rate for unit, rate in metric.rates.items() if rate})


def _sentence(evidence: Evidence, verdict: Verdict, findings: Sequence[Finding]) -> str:
    is_probed = evidence.probe is not None
    sentences = [each.sentence for each in findings if is_probed or each is not findings[-1]]
    return " ".join([f"{evidence.what} is {verdict}:", *sentences, *evidence.unreadable])


def _tightest(findings: Iterable[Finding]) -> dict[Unit, Bound]:
    """Returns the limit with the least headroom, by unit."""
    bounds = [each.bound for each in findings if each.bound is not None]
    return {bound.unit: bound for bound in sorted(bounds, key=lambda bound: -bound.free)}


def _least(rates: Iterable[Mapping[Unit, float]]) -> dict[Unit, float]:
    least: dict[Unit, float] = {}
    for each in rates:
        for unit, rate in each.items():
            least[unit] = min(rate, least.get(unit, rate))
    return least
