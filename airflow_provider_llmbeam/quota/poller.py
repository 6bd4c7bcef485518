"""Polls the quota of all locations until it suffices for a job."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.google.authentication import ModelAuthentication
from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook
from airflow_provider_llmbeam.polling.poller import PollResult, TaskLog, Wait
from airflow_provider_llmbeam.probe.prober import Prober
from airflow_provider_llmbeam.quota.health import QuotaHealth
from airflow_provider_llmbeam.quota.hook import QuotaHook
from airflow_provider_llmbeam.quota.recommendation import Fit, best, fit, may_start, recommended_limits
from airflow_provider_llmbeam.spec.quota_question import QuotaQuestion

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
        seconds, ratio = self.fit.seconds, self.fit.ratio
        if seconds is None or not math.isfinite(seconds):
            return ""
        learned = self.fit.learned_rate
        rate = "that is free" if learned is None else f"that an earlier job has learned ({learned.words})"
        sentence = f"The job would take {_hours(seconds)} at the rate {rate}"
        return (
            f"{sentence}, and its window holds {ratio:.0%} of it."
            if ratio is not None and ratio < 1
            else f"{sentence}."
        )


@dataclass(frozen=True, slots=True)
class QuotaResult(PollResult):
    """The quota suffices for the job.

    Attributes:
        result: Return value of the sensor, for XCom.
    """

    result: dict[str, Any]


class QuotaPoller:
    """Polls the quota of all locations of a question. Blocks the calling thread.

    Args:
        question: A `spec.QuotaQuestion` as plain data; it is completed at the first poll, when the Airflow
            connections are read.
        llmbeam_conn_id: Connection with key, base URL, project and location.
        gcp_conn_id: Connection with the credentials for metrics, quotas, and models of Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.
        log: Receives a sentence for each location that is not chosen.
        now: Seconds of the Unix epoch.
    """

    def __init__(
        self,
        question: Mapping[str, Any],
        *,
        llmbeam_conn_id: str,
        gcp_conn_id: str,
        impersonation_chain: str | Sequence[str] | None,
        log: TaskLog,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._question = question
        self._llmbeam_conn_id = llmbeam_conn_id
        self._gcp_conn_id = gcp_conn_id
        self._chain = impersonation_chain
        self._log = log
        self._now = now
        self._connected: tuple[QuotaQuestion, QuotaHook] | None = None
        self._environment: dict[str, str] = {}
        self._probers: dict[str, Prober] = {}
        self._probe_usd = 0.0

    def poll(self) -> Wait | QuotaResult:
        """Polls once.

        Raises:
            JobSpecError: Every location refuses every request, and waiting will not resolve this.
            LLMBeamError: There are no credentials, or no project.
        """
        connected, self._connected = self._connected or self._connect(), None
        question, hook = connected
        answer = self._answer(question, hook)
        if answer.health.verdict != "unknown":
            self._connected = connected  # otherwise they are read again: a key may have been changed meanwhile
        if not answer.may_start:
            return Wait(0.0, answer.sentence)
        return QuotaResult(self._result(question, answer))

    def _connect(self) -> tuple[QuotaQuestion, QuotaHook]:
        """Reads the connections, and returns the complete question, and the hook that answers it."""
        data = dict(self._question)
        if data.get("model") is not None:
            data["model"], self._environment = LLMBeamHook(self._llmbeam_conn_id).complete_model({**data["model"]})
        question = QuotaQuestion.parse(data)
        self._probers = {}
        return question, QuotaHook(
            question.model,
            question.endpoint,
            question.limits,
            gcp_conn_id=self._gcp_conn_id,
            impersonation_chain=self._chain,
        )

    def _prober(self, question: QuotaQuestion, place: str) -> Prober:
        """Returns the prober of a location, made once."""
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

    def _answer(self, question: QuotaQuestion, hook: QuotaHook) -> QuotaAnswer:
        """Judges all locations, and chooses one."""
        found = {place: self._health(question, hook, place) for place in question.places}
        healths = [each for each in found.values() if isinstance(each, QuotaHealth)]
        if not healths:
            raise JobSpecError(f"{' '.join(map(str, found.values()))} Nothing of the job was sent or billed.")
        chosen = best(question, healths)
        for each in found.values():
            if each is not chosen:
                self._log.log(logging.INFO, "%s", each.sentence if isinstance(each, QuotaHealth) else each)
        return QuotaAnswer(
            may_start=may_start(question, chosen),
            health=chosen,
            fit=fit(question, chosen),
            others=tuple(health for health in healths if health is not chosen),
        )

    def _health(self, question: QuotaQuestion, hook: QuotaHook, place: str) -> QuotaHealth | str:
        """Judges a location; returns a message if its model refuses every request for good."""
        if question.model is None or not question.probe_requests or not question.max_probe_usd:
            return hook.health(place)
        max_usd = question.max_probe_usd - self._probe_usd
        probe = self._prober(question, place).probe(question.probe_requests, max_usd)
        self._probe_usd += probe.cost_usd or 0.0
        if (refusal := probe.refusal) is not None and refusal.is_final and not probe.answered:
            where = f" in {place!r}" if place else ""
            name = question.model.name
            return f"{name}{where} refuses every request, and waiting will not resolve this: {refusal.message}"
        return hook.health(place, probe)

    def _result(self, question: QuotaQuestion, answer: QuotaAnswer) -> dict[str, Any]:
        health = answer.health
        limits = recommended_limits(question, health)
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
            "learned_rate": None if answer.fit.learned_rate is None else answer.fit.learned_rate.model_dump(),
            "health": health.to_dict(),
            "others": [other.to_dict() for other in answer.others],
            "probe_usd": round(self._probe_usd, 6),
            "at": self._now(),
        }


def _hours(seconds: float) -> str:
    if seconds < 7200:
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
