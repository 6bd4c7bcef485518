"""The condition of the quota sensor: the quota of some location suffices for a job."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.google.authentication import ModelAuthentication
from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook
from airflow_provider_llmbeam.hooks.probe import Prober
from airflow_provider_llmbeam.polling.poller import TaskLog, Wait
from airflow_provider_llmbeam.quota.health import QuotaHealth
from airflow_provider_llmbeam.quota.hook import QuotaHook
from airflow_provider_llmbeam.quota.recommendation import Fit, best, fit, may_start, recommended_limits
from airflow_provider_llmbeam.spec.protocol.counts import hours
from airflow_provider_llmbeam.spec.quota_question import QuotaQuestion
from airflow_provider_llmbeam.spec.usage_tier import hours_by_tier, tier_name

#: Timeout of one request: a poll of two locations, with 8 requests each, ends within `sensors.base.GRACE_SECONDS`.
REPLY_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaAnswer:
    """Quota health of all locations, and the one to choose.

    Attributes:
        may_start: Whether a job should start now.
        health: Health of the chosen location.
        fit: Fit of the job into its window at that location.
        others: Health of the other locations.
    """

    may_start: bool
    health: QuotaHealth
    fit: Fit
    others: tuple[QuotaHealth, ...] = ()

    @property
    def sentence(self) -> str:
        """Verdict, evidence and duration, for people."""
        return f"{self.health.sentence} {self._finish()}".rstrip()

    def _finish(self) -> str:
        found, tiers = self.fit, self.fit.tier_seconds
        seconds, ratio, learned = found.seconds, found.ratio, found.learned_rate
        if seconds is None or not math.isfinite(seconds):
            return f"At the thresholds of Standard PayGo it would take {hours_by_tier(tiers)}." if tiers else ""
        rate = "the rate that is free"
        if learned is not None:
            rate = f"the rate that an earlier job has learned ({learned.words})"
        elif tiers:
            rate = f"{', '.join(map(tier_name, tiers))}, and the pool above it may admit more"
        window = "" if ratio is None or ratio >= 1 else f", and its window holds {ratio:.0%} of it"
        return f"The job would take {hours(seconds)} at {rate}{window}."


class QuotaCondition:
    """Free quota for a job, at any of its locations.

    Args:
        question: A `spec.quota_question.QuotaQuestion` as plain data.
        llmbeam_conn_id: Connection with key, base URL, project and location.
        gcp_conn_id: Connection with the credentials for metrics, quotas, and models of Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.
        now: Seconds of the Unix epoch.
    """

    _question: QuotaQuestion
    _hook: QuotaHook
    _environment: dict[str, str]
    _probers: dict[str, Prober]

    def __init__(
        self,
        question: Mapping[str, Any],
        *,
        llmbeam_conn_id: str = "llmbeam_default",
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._data = dict(question)
        self._llmbeam_conn_id = llmbeam_conn_id
        self._gcp_conn_id = gcp_conn_id
        self._chain = impersonation_chain
        self._now = now
        self._is_connected = False
        self._probe_usd = 0.0

    def check(self, log: TaskLog) -> Wait | dict[str, Any]:
        """Checks the quota of all locations.

        Args:
            log: Receives a sentence for each location that is not chosen.

        Returns:
            The return value of the sensor, for XCom.

        Raises:
            JobSpecError: Every location refuses every request, and waiting will not resolve this.
            LLMBeamError: There are no credentials, or no project.
        """
        if not self._is_connected:
            self._connect()
        self._is_connected = False  # after an error, the connections are read again: a key may have been changed
        answer = self._answer(log)
        self._is_connected = answer.health.verdict != "unknown"
        return self._result(self._question, answer) if answer.may_start else Wait(0.0, answer.sentence)

    def _connect(self) -> None:
        """Reads the Airflow connections, which complete the question."""
        data, self._environment, self._probers = {**self._data}, {}, {}
        if data.get("model") is not None:
            data, self._environment = LLMBeamHook(self._llmbeam_conn_id).complete(data)
        self._question = question = QuotaQuestion.parse(data)
        self._hook = QuotaHook(
            question.model,
            question.endpoint,
            question.limits,
            gcp_conn_id=self._gcp_conn_id,
            impersonation_chain=self._chain,
        )

    def _answer(self, log: TaskLog) -> QuotaAnswer:
        """Judges all locations, and chooses one."""
        question = self._question
        found = {place: self._health(question, place) for place in question.places}
        healths = [each for each in found.values() if isinstance(each, QuotaHealth)]
        if not healths:
            raise JobSpecError(f"{' '.join(map(str, found.values()))} Nothing of the job was sent or billed.")
        chosen = best(question, healths)
        for each in found.values():
            if each is not chosen:
                log.info("%s", each.sentence if isinstance(each, QuotaHealth) else each)
        return QuotaAnswer(
            may_start=may_start(question, chosen),
            health=chosen,
            fit=fit(question, chosen),
            others=tuple(health for health in healths if health is not chosen),
        )

    def _health(self, question: QuotaQuestion, place: str) -> QuotaHealth | str:
        """Judges a location; returns a message if its model refuses every request for good."""
        if question.model is None or not question.probe_requests or not question.max_probe_usd:
            return self._hook.health(place)
        remaining_usd = question.max_probe_usd - self._probe_usd
        probe = self._prober(question, place).probe(question.probe_requests, remaining_usd)
        self._probe_usd += probe.cost_usd or 0.0
        if (refusal := probe.refusal) is not None and refusal.is_final and not probe.answered:
            where = f" in {place!r}" if place else ""
            name = question.model.name
            return f"{name}{where} refuses every request, and waiting will not resolve this: {refusal.message}"
        return self._hook.health(place, probe)

    def _prober(self, question: QuotaQuestion, place: str) -> Prober:
        """Returns the prober of a location, which keeps its connections."""
        if place not in self._probers:
            model = question.model_at(place)
            assert model is not None
            self._probers[place] = Prober(
                model,
                authenticate=ModelAuthentication(
                    model, self._environment, gcp_conn_id=self._gcp_conn_id, impersonation_chain=self._chain
                ),
                embeds=question.asks_for_vectors,
                price=question.limits.price,
                reply_seconds=REPLY_SECONDS,
            )
        return self._probers[place]

    def _result(self, question: QuotaQuestion, answer: QuotaAnswer) -> dict[str, Any]:
        health = answer.health
        limits = recommended_limits(question, health)
        if "usage_tier" not in (self._data.get("limits") or {}):
            limits.pop("usage_tier", None)  # the job has its own connection
        return {
            **question.target_at(health.location),
            "limits": limits,
            "location": health.location,
            "verdict": health.verdict,
            "sentence": answer.sentence,
            "requests_per_minute": limits.get("requests_per_minute"),
            "tokens_per_minute": limits.get("tokens_per_minute"),
            "expected_seconds": answer.fit.seconds,
            "fit_ratio": answer.fit.ratio,
            "tier_seconds": {str(tier): seconds for tier, seconds in answer.fit.tier_seconds.items()},
            "learned_rate": None if answer.fit.learned_rate is None else answer.fit.learned_rate.model_dump(),
            "health": health.to_dict(),
            "others": [other.to_dict() for other in answer.others],
            "probe_usd": round(self._probe_usd, 6),
            "at": self._now(),
        }
