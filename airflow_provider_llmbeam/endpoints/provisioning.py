"""Decides what follows from a poll of an endpoint: pure, and the same in the triggerer and in the worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self, cast

from airflow_provider_llmbeam.endpoints.fault import Fault, FaultKind
from airflow_provider_llmbeam.endpoints.resource import (
    OTHER_VERSION,
    EndpointSnapshot,
    LostReply,
    RunningOperation,
    still_billing,
)
from airflow_provider_llmbeam.exceptions import CloudError
from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.polling.schedule import ConsecutiveFailures

#: Limits on consecutive failed polls; waiting ends when both are reached.
MAX_FAILURES = 10
MAX_FAILING_SECONDS = 600.0
#: Limit on consecutive polls that are refused in the same way, e.g. by a 409 during another operation, or as a
#: permission does not apply yet.
MAX_REFUSED = 3
#: Longest wait between two failed polls, in seconds.
MAX_WAIT_SECONDS = 120.0
#: Time limit for a removal, in seconds.
MAX_REMOVING_SECONDS = 1_800.0
#: Time for which a ready endpoint may refuse to answer, in seconds: a new permission takes minutes to apply.
MAX_REFUSED_SECONDS = 300.0

ProvisioningOutcome = Literal["ready", "stock_out", "refused", "failed", "still_billing"]


@dataclass(frozen=True, slots=True)
class Create:
    """Request the missing resource, then poll again."""

    step: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Label the resources of an earlier try with this one, then poll again."""


@dataclass(frozen=True, slots=True)
class ProbeModel:
    """Send a small request to the model."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove all resources, then poll again; `reason` is set when it is new for the log."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ProvisioningEnded:
    """Provisioning has ended.

    Attributes:
        outcome: `ready`, or why it failed.
        reason: Rest of a sentence that begins with "Endpoint '…' ".
    """

    outcome: ProvisioningOutcome
    reason: str


#: End of a try whose resources a later one has labelled.
TAKEN_OVER = ProvisioningEnded("failed", "was taken over by another try.")

ProvisioningDecision = Wait | Create | Adopt | ProbeModel | Remove | ProvisioningEnded


@dataclass(frozen=True, slots=True)
class ProvisioningHistory:
    """State that one poll needs from those before it.

    Attributes:
        started_at: Start of provisioning, in seconds of the Unix epoch.
        location_index: Index of the present location; `None` before the first poll.
        operation: Name of the operation that this try started last.
        is_ours: Whether this try created or adopted resources in the present location.
        labelled: Whether a poll found the label of this try.
        leaving: Kind of the fault that the removal in progress follows.
        leaving_message: Message of that fault.
        leaving_since: Start of the removal, in seconds of the Unix epoch.
        faults: Location, kind and message of each fault so far.
        failures: Consecutive failed polls.
        refused_since: First refusal of the model, in seconds of the Unix epoch.
        lost: When a create request of this try, of an earlier one, or of another process of this try may have
            started an operation whose name is not known; `None` if every reply is known.
    """

    started_at: float
    location_index: int | None = None
    operation: str | None = None
    is_ours: bool = False
    labelled: bool = False
    leaving: FaultKind | None = None
    leaving_message: str = ""
    leaving_since: float = 0.0
    faults: tuple[tuple[str, str, str], ...] = ()
    failures: ConsecutiveFailures = field(default_factory=ConsecutiveFailures)
    refused_since: float | None = None
    lost: LostReply | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the history as plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Reads what `to_dict` returned."""
        faults = tuple((str(where), str(kind), str(text)) for where, kind, text in data.get("faults", ()))
        failures = ConsecutiveFailures(**data.get("failures", {}))
        lost = LostReply(**data["lost"]) if data.get("lost") else None
        return cls(**{**data, "faults": faults, "failures": failures, "lost": lost})

    def for_another_process(self, now: float) -> Self:
        """Returns the history for another process, whose own requests are not in it if it is read again."""
        return replace(self, lost=LostReply(now).unite(self.lost))

    def in_new_process(self, now: float) -> Self:
        """Returns the history in a process that has sent no request yet."""
        if self.lost is None or self.lost.until is not None:
            return self
        return replace(self, lost=LostReply(self.lost.since, now))


class Provisioner:
    """Decides after each poll.

    Args:
        locations: Regions, in the order in which they are tried.
        poll_interval_seconds: Interval between polls, in seconds.
        ready_within_seconds: Time limit from the start to the first completion, in all locations, in seconds.
        attempt: Value of the label `llmbeam-try`.
        history: State after the polls so far.
    """

    def __init__(
        self,
        locations: Sequence[str],
        *,
        poll_interval_seconds: float,
        ready_within_seconds: float,
        attempt: str,
        history: ProvisioningHistory,
    ) -> None:
        self._locations = tuple(locations)
        self.poll_interval_seconds = poll_interval_seconds
        self._ready_within_seconds = ready_within_seconds
        self._attempt = attempt
        self.history = history

    @property
    def location(self) -> str | None:
        """The present location; `None` before the first poll."""
        index = self.history.location_index
        return None if index is None else self._locations[index]

    def on_survey(self, snapshots: Sequence[EndpointSnapshot], now: float) -> Wait | ProvisioningEnded | None:
        """Chooses the location after a process has polled all of them.

        It is that of an earlier try, or the first. The history of a process that goes on with a try may be from
        before another process moved to the next location: then the resources are there.

        Args:
            snapshots: Snapshots, one per location, in their order.
            now: Seconds of the Unix epoch.

        Returns:
            `None` if a location was chosen; otherwise all locations have to be polled again, because an operation
            of unknown owner may create the endpoint in one of them.
        """
        present = self.history.location_index
        order = sorted(
            range(len(snapshots)), key=lambda index: (snapshots[index].is_empty, not snapshots[index].is_up, index)
        )
        is_empty = snapshots[order[0]].is_empty
        has_failed = present is not None and snapshots[present].fault is not None
        unsure = [one for snapshot in snapshots for one in snapshot.unsure]
        if unsure and (is_empty or has_failed):
            return self._end_unsure(unsure) if self._is_late(now) else self._wait_unsure(unsure)
        if present is None:
            self.history = replace(self.history, location_index=order[0])
        elif snapshots[present].is_empty and not is_empty:
            is_ours = self._attempt in snapshots[order[0]].attempts
            self.history = ProvisioningHistory(
                self.history.started_at, order[0], is_ours=is_ours, lost=self.history.lost
            )
        return None

    def on_snapshot(self, snapshot: EndpointSnapshot, now: float) -> ProvisioningDecision:
        """Decides after a poll of the present location.

        Args:
            snapshot: State of the endpoint there.
            now: Seconds of the Unix epoch.
        """
        self.history = history = replace(self.history, failures=ConsecutiveFailures())
        if history.leaving is not None:
            return self._on_leaving(snapshot, now)
        others = snapshot.attempts - {self._attempt}
        # If the label of this try was replaced, a later try has taken over all resources.
        if history.labelled and any(others):
            return TAKEN_OVER
        # One that is up is asked first: polls may have stopped for longer than the limit, e.g. with the triggerer.
        if self._is_late(now) and not snapshot.is_up:
            return self._leave_late(now)
        if snapshot.is_being_deleted:
            return Wait(
                self.poll_interval_seconds, "Waiting until the resources of an earlier try have been deleted."
            )
        if snapshot.fault is not None:
            # The fault of another try's resource does not predict the result of this try.
            fault = snapshot.fault if history.is_ours else Fault("leftover", snapshot.fault.message)
            return self._leave(fault, now)
        if others:
            return Adopt()
        if snapshot.attempts:
            self.history = history = replace(history, labelled=True)
        if snapshot.missing == OTHER_VERSION:
            return self._leave(Fault("leftover", "It serves another version of the model."), now)
        if snapshot.operations:
            return self._wait_unsure(snapshot.unsure) if snapshot.unsure else Wait(self.poll_interval_seconds)
        if snapshot.missing == "nothing usable":
            return self._leave(Fault("leftover", "It has no model, and none can be added to it."), now)
        if snapshot.missing is not None:
            return Create(snapshot.missing)
        return ProbeModel() if snapshot.is_up else Wait(self.poll_interval_seconds)

    def on_created(self, operation: str | None) -> Wait:
        """Decides after a create request.

        Args:
            operation: Name of the operation; `None` if the resource existed already.
        """
        self.history = replace(self.history, operation=operation or self.history.operation, is_ours=True)
        return Wait(self.poll_interval_seconds if operation else 1.0)

    def on_lost_reply(self, since: float, now: float) -> None:
        """Records that a create request got no reply, and may nevertheless have started an operation.

        Args:
            since: Time before the request, in seconds of the Unix epoch.
            now: Seconds of the Unix epoch.
        """
        self.history = replace(self.history, lost=LostReply(since, now).unite(self.history.lost))

    def on_adopted(self, *, done: bool) -> Wait:
        """Decides after the resources of an earlier try were to be labelled."""
        self.history = replace(self.history, is_ours=self.history.is_ours or done)
        return Wait(0.0 if done else self.poll_interval_seconds)

    def on_fault(self, fault: Fault, now: float) -> ProvisioningDecision:
        """Decides after a create request that was refused at once."""
        return self._leave(fault, now)

    def on_answer(self, refusal: str | None, *, may_help_to_wait: bool, now: float) -> ProvisioningDecision:
        """Decides after a request to the model.

        Args:
            refusal: Reason why there was no completion; `None` if there was one.
            may_help_to_wait: Whether the reply is that of a server which is still loading.
            now: Seconds of the Unix epoch.
        """
        if refusal is None:
            return ProvisioningEnded("ready", "is ready.")
        if self._is_late(now):
            return self._leave_late(now, refusal)
        if may_help_to_wait:
            self.history = replace(self.history, refused_since=None)
            return Wait(self.poll_interval_seconds, f"The model does not answer yet: {refusal}")
        since = now if self.history.refused_since is None else self.history.refused_since
        self.history = replace(self.history, refused_since=since)
        if now - since >= MAX_REFUSED_SECONDS:
            return self._leave(Fault("refused", f"It is up and refuses to answer: {refusal}"), now)
        return Wait(self.poll_interval_seconds, f"The model does not answer yet: {refusal}")

    def on_error(self, error: CloudError, now: float) -> Wait | ProvisioningEnded:
        """Decides after a poll, or a request, that failed.

        Args:
            error: Error of the poll.
            now: Seconds of the Unix epoch.
        """
        failures = self.history.failures.add(error, now)
        self.history = history = replace(self.history, failures=failures)
        if history.location_index is None and not error.retryable:
            return ProvisioningEnded("refused", f"could not be polled: {error} This try started nothing.")
        if failures.exceeds(MAX_FAILURES, MAX_FAILING_SECONDS, now) or (
            not error.retryable and failures.kind_count >= MAX_REFUSED
        ):
            if not error.retryable and history.operation is None and not history.is_ours:
                return ProvisioningEnded("refused", f"could not be polled: {error} This try started nothing.")
            return ProvisioningEnded(
                "still_billing",
                f"could not be polled {failures.count} times in a row: {error} It may still be billing; its "
                "teardown and the sweeper remove it.",
            )
        return Wait(
            failures.wait_seconds(self.poll_interval_seconds, MAX_WAIT_SECONDS),
            f"{error} Polling again (consecutive failures: {failures.count}).",
        )

    def _is_late(self, now: float) -> bool:
        return now - self.history.started_at > self._ready_within_seconds

    def _leave_late(self, now: float, refusal: str = "") -> ProvisioningDecision:
        limit = f"{self._ready_within_seconds:.0f} s (`ready_within_seconds`)"
        return self._leave(Fault("late", f"It did not answer within {limit}. {refusal}".strip()), now)

    def _leave(self, fault: Fault, now: float) -> ProvisioningDecision:
        self.history = replace(
            self.history,
            leaving=fault.kind,
            leaving_message=fault.message,
            leaving_since=now,
            refused_since=None,
        )
        what = (
            "The resources of an earlier try cannot be used"
            if fault.kind == "leftover"
            else "It could not be provisioned"
        )
        return Remove(f"{what} in {self.location!r}: {fault.message} Removing all resources there.")

    def _on_leaving(self, snapshot: EndpointSnapshot, now: float) -> ProvisioningDecision:
        history = self.history
        if history.labelled and any(snapshot.attempts - {self._attempt}):
            return TAKEN_OVER
        if not snapshot.is_empty:
            if now - history.leaving_since > MAX_REMOVING_SECONDS:
                minutes = MAX_REMOVING_SECONDS / 60
                left = still_billing(snapshot.resources, snapshot.operations)
                return ProvisioningEnded(
                    "still_billing", f"{self._summary()} It could not be removed in {minutes:.0f} min. {left}"
                )
            return Remove()
        if snapshot.unsure and history.leaving == "late":
            return self._end_unsure(snapshot.unsure)
        fault = Fault(cast(FaultKind, history.leaving), history.leaving_message)
        self.history = history = replace(
            history, leaving=None, leaving_message="", operation=None, is_ours=False, labelled=False
        )
        if fault.kind == "leftover":
            return Wait(0.0, "The resources of the earlier try are removed; starting again.")
        faults = (*history.faults, (self.location or "", fault.kind, fault.message))
        self.history = history = replace(history, faults=faults)
        next_index = (history.location_index or 0) + 1
        if fault.is_location_specific and next_index < len(self._locations):
            self.history = replace(history, location_index=next_index)
            return Wait(0.0, f"Trying the next location, {self.location!r}.")
        outcomes: dict[str, ProvisioningOutcome] = {"refused": "refused", "denied": "refused", "late": "failed"}
        outcome = "stock_out" if fault.is_location_specific else outcomes.get(fault.kind, "failed")
        return ProvisioningEnded(outcome, f"{self._summary()} Its resources were deleted: nothing bills.")

    def _wait_unsure(self, operations: Sequence[RunningOperation]) -> Wait:
        names = " and ".join(repr(one.name) for one in operations)
        return Wait(
            self.poll_interval_seconds,
            f"Waiting for {names}: the reply to a create request was lost, and this may be what it started. A "
            "second request might be a second GPU.",
        )

    def _end_unsure(self, operations: Sequence[RunningOperation]) -> ProvisioningEnded:
        limit = f"{self._ready_within_seconds:.0f} s (`ready_within_seconds`)"
        return ProvisioningEnded(
            "still_billing",
            f"was not found within {limit}. {still_billing((), operations)} This task did not request another "
            "one; its teardown waits for it.",
        )

    def _summary(self) -> str:
        """Lists the fault of each location."""
        faults = list(self.history.faults)
        if self.history.leaving:
            faults.append((self.location or "", self.history.leaving, self.history.leaving_message))
        listed = " ".join(f"{where} ({_FAULT_NAMES.get(kind, kind)}): {text}" for where, kind, text in faults)
        return f"could not be provisioned. {listed}"


_FAULT_NAMES = {
    "stock_out": "no GPU is free",
    "quota": "the GPU quota of the project",
    "no_gpu": "the location does not have this GPU",
    "denied": "permission",
    "refused": "refused",
    "late": "too slow",
    "failed": "failed",
}
