"""Provisions an endpoint through repeated polls."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_provider_llmbeam.endpoints.fault import Fault, is_refusal
from airflow_provider_llmbeam.endpoints.platform import (
    EndpointPlan,
    EndpointPlatform,
    PlatformFactory,
    SentRequests,
)
from airflow_provider_llmbeam.endpoints.provisioning import (
    TAKEN_OVER,
    Adopt,
    Create,
    ProbeModel,
    Provisioner,
    ProvisioningDecision,
    ProvisioningEnded,
    ProvisioningOutcome,
    Remove,
)
from airflow_provider_llmbeam.endpoints.resource import EndpointSnapshot
from airflow_provider_llmbeam.endpoints.teardown import removal_round, remove
from airflow_provider_llmbeam.exceptions import (
    CloudError,
    CloudUnavailableError,
    EndpointFailedError,
    JobSpecError,
    LLMBeamError,
)
from airflow_provider_llmbeam.polling.poller import PollResult, TaskLog, Wait
from airflow_provider_llmbeam.spec.endpoint.identity import TRY_LABEL

#: Time that `abandon` waits for a poll of another thread to finish, in seconds.
POLL_GRACE_SECONDS = 8.0
_ABANDONED = ProvisioningEnded("failed", "was abandoned.")
_ERRORS = {
    "stock_out": "StockOutError",
    "refused": "EndpointRefusedError",
    "failed": "EndpointFailedError",
    "still_billing": "StillBillingError",
}


@dataclass(frozen=True, slots=True)
class ProvisioningResult(PollResult):
    """Result of provisioning an endpoint.

    Attributes:
        outcome: `ready`, or the reason of the failure.
        location: The last location that was tried.
        model: Model spec of a job that uses the endpoint.
        cold_start_seconds: Time from the start to the first completion, in seconds.
        is_settled: Whether it is known what became of each create request of the run.
    """

    default_error: ClassVar[type[LLMBeamError]] = EndpointFailedError

    outcome: ProvisioningOutcome
    location: str
    model: dict[str, Any] | None = None
    cold_start_seconds: float = 0.0
    is_settled: bool = False


class EndpointMonitor:
    """Polls an endpoint and carries out the decisions of a provisioner. Blocks the calling thread.

    Args:
        connect: Function that returns the platform of a location; called at the first poll there.
        plan: Plan of the endpoint.
        provisioner: Provisioner that decides after each poll.
        log: Log that receives one line for each step.
        now: Function that returns the time in seconds since the Unix epoch.
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
        self._platforms: dict[str, EndpointPlatform] = {}
        self._snapshot = EndpointSnapshot()
        #: Reason and time limit of `abandon`, once it was called.
        self._abandonment: tuple[str, float] | None = None
        self._has_surveyed = False
        self._is_creating = False
        # Reentrant: a signal handler may call `abandon` during a poll of the same thread.
        self._busy = threading.RLock()

    @property
    def provisioner(self) -> Provisioner:
        """The provisioner; another process can continue from its history."""
        return self._provisioner

    def poll(self) -> Wait | ProvisioningResult:
        """Polls once, and carries out the decision of the provisioner.

        Returns:
            The wait until the next poll, or the result.
        """
        with self._busy:
            return self._poll()

    def _poll(self) -> Wait | ProvisioningResult:
        try:
            decision: ProvisioningDecision = _ABANDONED if self._abandonment else self._decide()
            while isinstance(decision, (Create, Adopt, ProbeModel, Remove)):
                decision = self._carry_out(decision)
        except JobSpecError as error:
            location = self._plan.spec.locations[0]
            return ProvisioningResult("refused", location, message=str(error), error_type="JobSpecError")
        except CloudError as error:
            decision = self._provisioner.on_error(error, self._now())
        except Exception as error:  # noqa: BLE001 - a GPU that boots would be removed if its trigger failed
            unknown = CloudUnavailableError(f"Polling failed with {type(error).__name__}: {error}.")
            decision = self._provisioner.on_error(unknown, self._now())
        if isinstance(decision, ProvisioningEnded):
            return self._result(decision)
        if decision.message:
            self._log.log(logging.INFO, "%s", decision.message)
        return decision

    def abandon(self, reason: str, *, within_seconds: float) -> bool:
        """Removes what this try created because its task has ended; logs what is still billing.

        Args:
            reason: Reason for the log, as a sentence.
            within_seconds: Time limit, in seconds; the teardown removes what is left then.

        Returns:
            Whether nothing is left.
        """
        deadline = self._now() + within_seconds
        # A poll of another thread may be about to send a create request: it must end first and start nothing more.
        self._abandonment = (reason, deadline)
        is_alone = self._busy.acquire(timeout=POLL_GRACE_SECONDS)
        try:
            if self._is_creating:  # its reply names what it creates, and `_create` then removes it
                self._log.log(logging.WARNING, "%s A create request is in progress: it is awaited first.", reason)
                return False
            return self._remove_all(reason, deadline)
        finally:
            if is_alone:
                self._busy.release()

    def _remove_all(self, reason: str, deadline: float) -> bool:
        left = []
        for location in self._present_location_first():
            try:
                message = remove(
                    self._platform(location),
                    self._plan.key,
                    attempt=self._plan.labels[TRY_LABEL],
                    within_seconds=deadline - self._now(),
                    log=self._log,
                    sent=self._sent_requests,
                )
            except CloudError as error:
                message = f"Endpoint {self._plan.key!r} in {location!r} may still be billing: {error}"
            left += [message] if message else []
        if left:
            message = f"{reason} {' '.join(left)} The removal was requested; teardown and sweeper repeat it."
            self._log.log(logging.ERROR, "%s", message)
        else:
            self._log.log(logging.WARNING, "%s Its resources were deleted: nothing bills.", reason)
        return not left

    def _decide(self) -> ProvisioningDecision:
        if not self._has_surveyed:
            if (unsure := self._survey()) is not None:
                return unsure
            self._has_surveyed = True
        location, history = self._provisioner.location, self._provisioner.history
        assert location is not None
        self._snapshot = self._platform(location).poll(self._plan, history.operation, history.lost)
        return self._provisioner.on_snapshot(self._snapshot, self._now())

    def _survey(self) -> Wait | ProvisioningEnded | None:
        before, locations = self._provisioner.location, self._plan.spec.locations
        if before is not None and len(locations) == 1:
            return None
        history = self._provisioner.history
        snapshots = [
            self._platform(location).poll(
                self._plan, history.operation if location == before else None, history.lost
            )
            for location in locations
        ]
        if (unsure := self._provisioner.on_survey(snapshots, self._now())) is not None:
            return unsure
        if before is None and all(snapshot.is_empty for snapshot in snapshots):
            for location in locations:
                self._platform(location).check(self._plan)
        if self._provisioner.location != before:
            self._log_step(
                "%s in location %r.", "starts" if before is None else "goes on", self._provisioner.location
            )
        return None

    def _carry_out(self, decision: Create | Adopt | ProbeModel | Remove) -> ProvisioningDecision:
        if self._abandonment:
            return _ABANDONED
        provisioner, plan = self._provisioner, self._plan
        platform = self._platform(provisioner.location or "")
        match decision:
            case Create(step):
                self._log_step("has no %s: requesting it in %r.", step, platform.location)
                return self._create(step, platform)
            case Adopt():
                self._log_step("exists in %r: this try uses it.", platform.location)
                return provisioner.on_adopted(done=platform.adopt(plan, self._snapshot))
            case ProbeModel():
                answer = platform.probe(plan, self._snapshot)
                return provisioner.on_answer(
                    answer.refusal, may_help_to_wait=answer.may_help_to_wait, now=self._now()
                )
            case Remove(reason):
                if reason:
                    self._log.log(logging.WARNING, "%s", reason)
                removal_round(platform, plan.key, self._log, sent=self._sent_requests)
                return Wait(provisioner.poll_interval_seconds)

    def _create(self, step: str, platform: EndpointPlatform) -> ProvisioningDecision:
        provisioner, since = self._provisioner, self._now()
        self._is_creating = True
        try:
            try:
                operation = platform.create(step, self._plan)
            except JobSpecError as error:  # e.g. a secret that was deleted after the check
                operation = Fault("refused", str(error))
            except BaseException as error:  # also one of a signal handler, such as Airflow's `execution_timeout`
                if not is_refusal(error):
                    provisioner.on_lost_reply(since, self._now())
                raise
            finally:
                self._is_creating = False
            if isinstance(operation, Fault):
                decision = provisioner.on_fault(operation, self._now())
            else:
                decision = provisioner.on_created(operation)
        finally:
            if self._abandonment:  # during the request: what it creates was not there yet
                self._remove_all(*self._abandonment)
        return _ABANDONED if self._abandonment else decision

    def _result(self, ended: ProvisioningEnded) -> ProvisioningResult:
        location = self._provisioner.location or self._plan.spec.locations[0]
        message = f"Endpoint {self._plan.key!r} {ended.reason}"
        is_settled = (
            ended.outcome != "still_billing"
            and ended not in (_ABANDONED, TAKEN_OVER)
            and (self._has_surveyed or self._provisioner.history.lost is None)
        )
        if ended.outcome != "ready":
            return ProvisioningResult(
                ended.outcome,
                location,
                is_settled=is_settled,
                message=message,
                error_type=_ERRORS[ended.outcome],
            )
        seconds = self._now() - self._provisioner.history.started_at
        model = self._platform(location).model_spec(self._plan, self._snapshot)
        message = f"{message} It took {seconds:.0f} s."
        return ProvisioningResult(
            ended.outcome, location, model, round(seconds, 1), is_settled=is_settled, message=message
        )

    def _present_location_first(self) -> list[str]:
        """Returns all locations, beginning with the one that is being tried."""
        present = self._provisioner.location
        return sorted(self._plan.spec.locations, key=lambda location: location != present)

    @property
    def _sent_requests(self) -> SentRequests:
        history = self._provisioner.history
        return SentRequests(self._plan.spec, history.operation, history.lost)

    def _platform(self, location: str) -> EndpointPlatform:
        if location not in self._platforms:
            self._platforms[location] = self._connect(location)
        return self._platforms[location]

    def _log_step(self, message: str, *values: object) -> None:
        self._log.log(logging.INFO, f"Endpoint %r {message}", self._plan.key, *values)
