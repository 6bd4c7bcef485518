"""Bringing up an endpoint, one look after the other."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam import exceptions
from airflow_provider_llmbeam.endpoints.fault import Fault
from airflow_provider_llmbeam.endpoints.platform import EndpointPlan, EndpointPlatform, PlatformFactory
from airflow_provider_llmbeam.endpoints.provisioning import (
    Adopt,
    Ask,
    Make,
    Provisioner,
    ProvisioningDecision,
    ProvisioningEnded,
    ProvisioningOutcome,
    Remove,
)
from airflow_provider_llmbeam.endpoints.resource import EndpointSnapshot
from airflow_provider_llmbeam.endpoints.teardown import removal_round, remove
from airflow_provider_llmbeam.exceptions import CloudError, EndpointFailedError, JobSpecError, LLMBeamError
from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.polling.result import PollResult
from airflow_provider_llmbeam.polling.task_log import TaskLog
from airflow_provider_llmbeam.spec.endpoint.identity import TRY_LABEL

#: For a look of another thread to end.
LOOK_SECONDS = 8.0
_ABANDONED = ProvisioningEnded("failed", "was given up.")
_ERRORS = {
    "stock_out": "StockOutError",
    "refused": "EndpointRefusedError",
    "failed": "EndpointFailedError",
    "still_billing": "StillBillingError",
}


@dataclass(frozen=True, slots=True)
class ProvisioningResult(PollResult):
    """The end of waiting; plain enough to travel in the event of a trigger.

    Attributes:
        outcome: `ready`, or why not.
        message: For people.
        location: The last that was tried.
        model: A model spec for a job.
        cold_start_seconds: From the first look to the first answer.
        error_type: Class of `exceptions`; `None` where it is up.
    """

    outcome: ProvisioningOutcome
    message: str
    location: str
    model: dict[str, Any] | None = None
    cold_start_seconds: float = 0.0
    error_type: str | None = None

    @property
    def error(self) -> LLMBeamError | None:
        """What a task raises, or nothing."""
        if self.error_type is None:
            return None
        found = getattr(exceptions, self.error_type, EndpointFailedError)
        return found(self.message) if issubclass(found, LLMBeamError) else EndpointFailedError(self.message)


class EndpointMonitor:
    """Does one thing after the other until the endpoint answers, or cannot. Blocks, in the thread that calls.

    Args:
        connect: Makes the hook of a location, at the first look there: that reads the Airflow connection.
        plan: What is to come up.
        provisioner: Decides.
        log: Receives what happens.
        now: Seconds of the Unix epoch.
    """

    def __init__(
        self,
        connect: PlatformFactory,
        plan: EndpointPlan,
        *,
        provisioner: Provisioner,
        log: TaskLog,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._connect = connect
        self._plan = plan
        self._provisioner = provisioner
        self._log = log
        self._now = now
        self._sites: dict[str, EndpointPlatform] = {}
        self._seen = EndpointSnapshot()
        self._is_abandoned = False
        # Entered again by a signal's handler, in the middle of a look.
        self._busy = threading.RLock()

    @property
    def provisioner(self) -> Provisioner:
        """What decides; its memory is what another process needs to go on."""
        return self._provisioner

    def poll(self) -> Wait | ProvisioningResult:
        """Looks once, and does what follows.

        Returns:
            How long to wait for the next look, or the end.
        """
        with self._busy:
            return self._poll()

    def _poll(self) -> Wait | ProvisioningResult:
        try:
            decision: ProvisioningDecision = _ABANDONED if self._is_abandoned else self._decide()
            while isinstance(decision, (Make, Adopt, Ask, Remove)):
                decision = self._do(decision)
        except JobSpecError as error:
            return ProvisioningResult(
                "refused", str(error), self._plan.spec.locations[0], error_type="JobSpecError"
            )
        except CloudError as error:
            decision = self._provisioner.on_error(error, self._now())
        if isinstance(decision, ProvisioningEnded):
            return self._end(decision)
        if decision.message:
            self._log.log(logging.INFO, "%s", decision.message)
        return decision

    def abandon(self, why: str, *, within_seconds: float) -> None:
        """Removes what this try made, where nobody waits for it any more; says what still bills.

        Args:
            why: A sentence for the log.
            within_seconds: What is not gone by then is left to the teardown.
        """
        deadline = self._now() + within_seconds
        # A look of another thread may be about to ask for something: it ends first, and asks for nothing more.
        self._is_abandoned = True
        is_alone = self._busy.acquire(timeout=LOOK_SECONDS)
        try:
            self._remove_all(why, deadline)
        finally:
            if is_alone:
                self._busy.release()

    def _remove_all(self, why: str, deadline: float) -> None:
        left = []
        for location in self._places():
            try:
                said = remove(
                    self._site(location),
                    self._plan.key,
                    attempt=self._plan.labels[TRY_LABEL],
                    within_seconds=deadline - self._now(),
                    log=self._log,
                )
            except CloudError as error:
                said = f"Endpoint {self._plan.key!r} in {location!r} may still be billing: {error}"
            left += [said] if said else []
        if left:
            words = f"{why} {' '.join(left)} The removal was asked for; teardown and sweeper see to it, too."
            self._log.log(logging.ERROR, "%s", words)
        else:
            self._log.log(logging.WARNING, "%s What was made is deleted: nothing bills.", why)

    def _decide(self) -> ProvisioningDecision:
        location = self._provisioner.location
        if location is None:
            self._survey()
            location = self._provisioner.location
            assert location is not None
        memory = self._provisioner.memory
        self._seen = self._site(location).look(self._plan, memory.operation)
        return self._provisioner.on_seen(self._seen, self._now())

    def _survey(self) -> None:
        locations = self._plan.spec.locations
        seen = [self._site(location).look(self._plan, None) for location in locations]
        if all(one.is_empty for one in seen):
            for location in locations:
                self._site(location).check(self._plan)
        self._provisioner.on_survey(seen)
        self._say("is looked for in %r.", self._provisioner.location)

    def _do(self, decision: Make | Adopt | Ask | Remove) -> ProvisioningDecision:
        if self._is_abandoned:
            return _ABANDONED
        provisioner, plan = self._provisioner, self._plan
        site = self._site(provisioner.location or "")
        match decision:
            case Make(step):
                self._say("needs its %s: asking for it in %r.", step, site.location)
                made = self._made(step, site)
                if isinstance(made, Fault):
                    return provisioner.on_fault(made, self._now())
                return provisioner.on_made(made)
            case Adopt():
                self._say("of an earlier try is there in %r: taking it over.", site.location)
                return provisioner.on_adopted(done=site.adopt(plan, self._seen))
            case Ask():
                answer = site.ask(plan, self._seen)
                return provisioner.on_answer(
                    answer.refusal, may_help_to_wait=answer.may_help_to_wait, now=self._now()
                )
            case Remove(why):
                if why:
                    self._log.log(logging.WARNING, "%s", why)
                removal_round(site, plan.key, self._log)
                return Wait(provisioner.poll_interval_seconds)

    def _made(self, step: str, site: EndpointPlatform) -> str | Fault | None:
        try:
            return site.make(step, self._plan)
        except JobSpecError as error:  # a secret that was there before
            return Fault("refused", str(error))

    def _end(self, end: ProvisioningEnded) -> ProvisioningResult:
        location = self._provisioner.location or self._plan.spec.locations[0]
        message = f"Endpoint {self._plan.key!r} {end.reason}"
        if end.outcome != "ready":
            return ProvisioningResult(end.outcome, message, location, error_type=_ERRORS[end.outcome])
        seconds = self._now() - self._provisioner.memory.started_at
        model = self._site(location).model_spec(self._plan, self._seen)
        message = f"{message} It took {seconds:.0f} s."
        return ProvisioningResult(end.outcome, message, location, model, round(seconds, 1))

    def _places(self) -> list[str]:
        """Where there may be something: the location that is tried now, then the others."""
        now = self._provisioner.location
        return sorted(self._plan.spec.locations, key=lambda location: location != now)

    def _site(self, location: str) -> EndpointPlatform:
        if location not in self._sites:
            self._sites[location] = self._connect(location)
        return self._sites[location]

    def _say(self, words: str, *values: object) -> None:
        self._log.log(logging.INFO, f"Endpoint %r {words}", self._plan.key, *values)
