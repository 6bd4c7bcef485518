"""Waiting for room: one look at all locations, and what a job should do about it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, Self

from airflow_provider_llmbeam.exceptions import CloudUnavailableError, JobSpecError, LLMBeamError
from airflow_provider_llmbeam.hooks.probe import Probe
from airflow_provider_llmbeam.hooks.progress_log import Log
from airflow_provider_llmbeam.hooks.quota_health import QuotaHealth
from airflow_provider_llmbeam.hooks.quota_plan import Fit, best, fit, may_start, recommended_limits
from airflow_provider_llmbeam.hooks.wait import Wait
from airflow_provider_llmbeam.spec.quota_question import QuotaQuestion


class Evidence(Protocol):
    """What waiting needs of `hooks.quota.QuotaHook`."""

    def health(self, location: str = "", probe: Probe | None = None) -> QuotaHealth:
        """Judges one location."""


#: Sends so many requests in a location, for so much money at most.
Try = Callable[[str, int, float], Probe]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaAnswer:
    """What was seen of all locations, and the one to take.

    Attributes:
        may_start: Whether a job should start now.
        health: Of the location to take.
        fit: How the job and its window match there.
        others: Of the other locations.
        probe_usd: What trying has cost so far.
    """

    may_start: bool
    health: QuotaHealth
    fit: Fit
    others: tuple[QuotaHealth, ...] = ()
    probe_usd: float = 0.0

    @property
    def sentence(self) -> str:
        """What a person should read."""
        return f"{self.health.sentence} {self._finish()}".rstrip()

    def _finish(self) -> str:
        seconds, ratio = self.fit.seconds, self.fit.ratio
        if seconds is None:
            return ""
        if not math.isfinite(seconds):
            return "At that rate the job would never finish."
        words = f"The job would take {_hours(seconds)} at the rate that is free"
        return (
            f"{words}, and its window holds {ratio:.0%} of it." if ratio is not None and ratio < 1 else f"{words}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEnd:
    """Waiting is over.

    Attributes:
        outcome: Whether there is room, or a mistake that waiting does not mend.
        sentence: What was seen last.
        result: What becomes the XCom; empty where there is no room.
    """

    outcome: Literal["ready", "refused"]
    sentence: str
    result: dict[str, Any] = field(default_factory=dict)

    def to_event(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_event(cls, event: dict[str, Any]) -> Self:
        """Reads what `to_event` wrote."""
        return cls(**event)


class QuotaWatch:
    """Looks at all locations of a question. Blocks, in the thread that it is called from.

    Args:
        question: What is waited for.
        connect: Makes what reads the evidence, at the first look: that reads the Airflow connection.
        attempt: Sends requests to try.
        wait_seconds: Until the look of a number, from 1 on.
        log: Receives a sentence for each location of each look.
        probe_usd: What trying has cost before.
        now: Seconds of the Unix epoch.
    """

    def __init__(
        self,
        question: QuotaQuestion,
        connect: Callable[[], Evidence],
        attempt: Try,
        *,
        wait_seconds: Callable[[int], float],
        log: Log,
        probe_usd: float = 0.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._question = question
        self._connect = connect
        self._attempt = attempt
        self._wait_seconds = wait_seconds
        self._log = log
        self._now = now
        self._hook: Evidence | None = None
        self._looks = 0
        self.probe_usd = probe_usd

    def look(self) -> Wait | QuotaEnd:
        """Looks once.

        Returns:
            How long to wait for the next look, or the end.
        """
        self._looks += 1
        try:
            answer = self.ask()
        except LLMBeamError as error:
            if isinstance(error, CloudUnavailableError):
                return Wait(self._wait_seconds(self._looks), str(error))
            return QuotaEnd(outcome="refused", sentence=str(error))
        if not answer.may_start:
            return Wait(self._wait_seconds(self._looks), answer.sentence)
        return QuotaEnd(outcome="ready", sentence=answer.sentence, result=self._result(answer))

    def ask(self) -> QuotaAnswer:
        """Reads the evidence of all locations.

        Raises:
            JobSpecError: Every location refuses every request, for a reason that waiting does not mend.
            LLMBeamError: There are no credentials, or no project.
        """
        if self._hook is None:
            self._hook = self._connect()
        question = self._question
        found = {place: self._health(self._hook, place) for place in question.places}
        healths = [each for each in found.values() if isinstance(each, QuotaHealth)]
        for each in found.values():
            self._log.log(logging.INFO, "%s", each.sentence if isinstance(each, QuotaHealth) else each)
        if not healths:
            raise JobSpecError(f"{' '.join(map(str, found.values()))} Nothing of the job was sent or billed.")
        chosen = best(healths, question.demand, question.window_seconds)
        match = fit(chosen, question.demand, question.window_seconds)
        return QuotaAnswer(
            may_start=may_start(chosen, match, question.min_fit_ratio),
            health=chosen,
            fit=match,
            others=tuple(health for health in healths if health is not chosen),
            probe_usd=self.probe_usd,
        )

    def _health(self, hook: Evidence, place: str) -> QuotaHealth | str:
        """Judges a location; or says why its model refuses every request, which waiting does not mend."""
        question = self._question
        left = question.max_probe_usd - self.probe_usd
        if question.model is None or not question.probe_requests or left < 0:
            return hook.health(place)
        probe = self._attempt(place, question.probe_requests, left)
        self.probe_usd += probe.cost_usd or 0.0
        if (refusal := probe.refusal) is not None and refusal.is_final and not probe.answered:
            where = f" in {place!r}" if place else ""
            return (
                f"{question.model.name}{where} refuses every request, and waiting mends nothing: {refusal.words}"
            )
        return hook.health(place, probe)

    def _result(self, answer: QuotaAnswer) -> dict[str, Any]:
        question, health = self._question, answer.health
        limits = recommended_limits(question.limits.model_dump(mode="json", exclude_unset=True), health)
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
            "health": health.to_dict(),
            "others": [other.to_dict() for other in answer.others],
            "probe_usd": round(answer.probe_usd, 6),
            "at": self._now(),
        }


def _hours(seconds: float) -> str:
    if seconds < 7200:
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
