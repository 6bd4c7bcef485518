"""What follows from a look at an endpoint that is to come up. One decision for the triggerer and for a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

from airflow_provider_llmbeam.endpoints.fault import Fault
from airflow_provider_llmbeam.endpoints.resource import EndpointSnapshot, still_billing
from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudError
from airflow_provider_llmbeam.polling.poller import Wait

#: Failed looks in a row, and their time, before waiting ends: whichever is later.
MAX_FAILURES = 10
MAX_FAILING_SECONDS = 600.0
#: Refusals for want of permission in a row.
MAX_DENIED = 3
#: Longest wait between two failed looks.
MAX_WAIT_SECONDS = 120.0
#: For what was made to be gone again.
MAX_REMOVING_SECONDS = 1_800.0
#: A permission that was just given, or a model that just loads, is refused for so long.
MAX_REFUSED_SECONDS = 300.0

ProvisioningOutcome = Literal["ready", "stock_out", "refused", "failed", "still_billing"]


@dataclass(frozen=True, slots=True)
class Make:
    """Ask for the next part, then look again."""

    step: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Label what an earlier try left as this one's, then look again."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the model for a few words."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove what there is, then look again; `why` is new for the log where it is given."""

    why: str | None = None


@dataclass(frozen=True, slots=True)
class ProvisioningEnded:
    """Waiting is over.

    Attributes:
        outcome: How it ended.
        reason: In words that go on from "Endpoint '…' ".
    """

    outcome: ProvisioningOutcome
    reason: str


_TAKEN_OVER = ProvisioningEnded("failed", "was taken over by another try.")

ProvisioningDecision = Wait | Make | Adopt | Ask | Remove | ProvisioningEnded


@dataclass(frozen=True, slots=True)
class ProvisioningHistory:
    """What one look must know of those before it.

    Attributes:
        started_at: In seconds of the Unix epoch.
        place: Which of the locations is tried; `None` before the first look.
        operation: Name of the operation that this try started last.
        is_ours: Whether this try made something there, or took it over.
        labelled: Whether it was seen with the label of this try.
        leaving: Kind of the fault for which it is being removed.
        leaving_words: Those of the fault.
        leaving_since: In seconds of the Unix epoch.
        faults: Location, kind and words of each that failed.
        failures: Failed looks in a row.
        failing_since: When the first of them was.
        denials: Those for want of permission, in a row.
        refused_since: When the model first refused to answer.
    """

    started_at: float
    place: int | None = None
    operation: str | None = None
    is_ours: bool = False
    labelled: bool = False
    leaving: str | None = None
    leaving_words: str = ""
    leaving_since: float = 0.0
    faults: tuple[tuple[str, str, str], ...] = ()
    failures: int = 0
    failing_since: float | None = None
    denials: int = 0
    refused_since: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Reads what `to_dict` wrote."""
        faults = tuple((str(where), str(kind), str(words)) for where, kind, words in data.get("faults", ()))
        return cls(**{**data, "faults": faults})


class Provisioner:
    """Decides after each look.

    Args:
        locations: In the order in which they are tried.
        poll_interval_seconds: Between two looks.
        ready_within_seconds: From the first look to the first answer, over all locations.
        attempt: Value of the label `llmbeam-try`.
        memory: Of looks before.
    """

    def __init__(
        self,
        locations: Sequence[str],
        *,
        poll_interval_seconds: float,
        ready_within_seconds: float,
        attempt: str,
        memory: ProvisioningHistory,
    ) -> None:
        self._locations = tuple(locations)
        self.poll_interval_seconds = poll_interval_seconds
        self._ready_within = ready_within_seconds
        self._attempt = attempt
        self.memory = memory

    @property
    def location(self) -> str | None:
        """The one that is tried now; `None` before any."""
        return None if self.memory.place is None else self._locations[self.memory.place]

    def on_survey(self, seen: Sequence[EndpointSnapshot]) -> None:
        """After a first look at every location: goes where an earlier try was, or to the first.

        Args:
            seen: By location, in their order.
        """
        order = sorted(range(len(seen)), key=lambda place: (seen[place].is_empty, not seen[place].is_up, place))
        self.memory = replace(self.memory, place=order[0])

    def on_seen(self, seen: EndpointSnapshot, now: float) -> ProvisioningDecision:
        """After a look at the location.

        Args:
            seen: What is there.
            now: Seconds of the Unix epoch.
        """
        self.memory = memory = replace(self.memory, failures=0, failing_since=None, denials=0)
        if memory.leaving is not None:
            return self._on_leaving(seen, now)
        if now - memory.started_at > self._ready_within:
            return self._leave(Fault("late", self._late_words()), now)
        if seen.is_leaving:
            return Wait(self.poll_interval_seconds, "What an earlier try made is being deleted; waiting for that.")
        if seen.fault is not None:
            # What this try did not make says nothing of what it will be able to make.
            return self._leave(seen.fault if memory.is_ours else Fault("leftover", seen.fault.words), now)
        if strangers := seen.attempts - {self._attempt}:
            # A label that went away from ours was put there by a later try: it goes on with all of this.
            return _TAKEN_OVER if memory.labelled and any(strangers) else Adopt()
        if seen.attempts:
            self.memory = memory = replace(memory, labelled=True)
        if seen.running:
            return Wait(self.poll_interval_seconds)
        if seen.missing == "nothing usable":
            return self._leave(Fault("leftover", "It has no model, and none can be added to it."), now)
        if seen.missing is not None:
            return Make(seen.missing)
        return Ask() if seen.is_up else Wait(self.poll_interval_seconds)

    def on_made(self, operation: str | None) -> Wait:
        """After a part was asked for.

        Args:
            operation: Its name; `None` where somebody else was faster.
        """
        self.memory = replace(self.memory, operation=operation or self.memory.operation, is_ours=True)
        return Wait(self.poll_interval_seconds if operation else 1.0)

    def on_adopted(self, *, done: bool) -> Wait:
        """After what an earlier try left was to be labelled."""
        self.memory = replace(self.memory, is_ours=self.memory.is_ours or done)
        return Wait(0.0 if done else self.poll_interval_seconds)

    def on_fault(self, fault: Fault, now: float) -> ProvisioningDecision:
        """After a part was refused at once."""
        return self._leave(fault, now)

    def on_answer(self, refusal: str | None, *, may_help_to_wait: bool, now: float) -> ProvisioningDecision:
        """After the model was asked.

        Args:
            refusal: Why there was no answer; `None`: there was one.
            may_help_to_wait: Whether a server that still loads says so.
            now: Seconds of the Unix epoch.
        """
        if refusal is None:
            return ProvisioningEnded("ready", "answers.")
        if may_help_to_wait:
            self.memory = replace(self.memory, refused_since=None)
            return Wait(self.poll_interval_seconds, f"The model does not answer yet: {refusal}")
        since = now if self.memory.refused_since is None else self.memory.refused_since
        self.memory = replace(self.memory, refused_since=since)
        if now - since >= MAX_REFUSED_SECONDS:
            return self._leave(Fault("refused", f"It is up and refuses to answer: {refusal}"), now)
        return Wait(self.poll_interval_seconds, f"The model does not answer yet: {refusal}")

    def on_error(self, error: CloudError, now: float) -> Wait | ProvisioningEnded:
        """After a look that saw nothing, or a request that was not answered.

        Args:
            error: Why.
            now: Seconds of the Unix epoch.
        """
        memory = self.memory
        since = now if memory.failing_since is None else memory.failing_since
        denials = memory.denials + 1 if isinstance(error, AccessDeniedError) else 0
        self.memory = memory = replace(memory, failures=memory.failures + 1, failing_since=since, denials=denials)
        if memory.place is None and not error.retryable:
            return ProvisioningEnded("refused", f"could not be looked at: {error} Nothing was started or billed.")
        too_often = memory.failures >= MAX_FAILURES and now - since >= MAX_FAILING_SECONDS
        if too_often or denials >= MAX_DENIED or not (error.retryable or isinstance(error, AccessDeniedError)):
            if not error.retryable and memory.operation is None and not memory.is_ours:
                return ProvisioningEnded("refused", f"could not be looked at: {error} This try started nothing.")
            return ProvisioningEnded(
                "still_billing",
                f"could not be looked at {memory.failures} times in a row: {error} It may still be billing; its "
                "teardown and the sweeper remove it.",
            )
        wait = min(self.poll_interval_seconds * 2.0 ** min(memory.failures - 1, 30), MAX_WAIT_SECONDS)
        return Wait(
            max(wait, self.poll_interval_seconds), f"{error} Looking again (failure {memory.failures} in a row)."
        )

    def _leave(self, fault: Fault, now: float) -> ProvisioningDecision:
        self.memory = replace(
            self.memory, leaving=fault.kind, leaving_words=fault.words, leaving_since=now, refused_since=None
        )
        why = "What an earlier try left cannot be used" if fault.kind == "leftover" else "It did not come up"
        return Remove(f"{why} in {self.location!r}: {fault.words} Removing what is there.")

    def _on_leaving(self, seen: EndpointSnapshot, now: float) -> ProvisioningDecision:
        memory = self.memory
        if memory.labelled and any(seen.attempts - {self._attempt}):
            return _TAKEN_OVER
        if not seen.is_empty:
            if now - memory.leaving_since > MAX_REMOVING_SECONDS:
                minutes = MAX_REMOVING_SECONDS / 60
                left = still_billing(seen.parts, seen.running)
                return ProvisioningEnded(
                    "still_billing", f"{self._story()} It could not be removed in {minutes:.0f} min. {left}"
                )
            return Remove()
        fault = Fault(memory.leaving or "failed", memory.leaving_words)  # type: ignore[arg-type]
        self.memory = memory = replace(
            memory, leaving=None, leaving_words="", operation=None, is_ours=False, labelled=False
        )
        if fault.kind == "leftover":
            return Wait(0.0, "It is gone; beginning anew.")
        said = (*memory.faults, (self.location or "", fault.kind, fault.words))
        self.memory = memory = replace(memory, faults=said)
        if fault.falls_through and (memory.place or 0) + 1 < len(self._locations):
            self.memory = replace(memory, place=(memory.place or 0) + 1)
            return Wait(0.0, f"Going on with {self.location!r}.")
        outcomes: dict[str, ProvisioningOutcome] = {"refused": "refused", "denied": "refused", "late": "failed"}
        outcome = "stock_out" if fault.falls_through else outcomes.get(fault.kind, "failed")
        return ProvisioningEnded(outcome, f"{self._story()} What was made is deleted: nothing bills.")

    def _late_words(self) -> str:
        return f"It did not answer within {self._ready_within:.0f} s (`ready_within_seconds`)."

    def _story(self) -> str:
        """What each location said."""
        said = list(self.memory.faults)
        if self.memory.leaving:
            said.append((self.location or "", self.memory.leaving, self.memory.leaving_words))
        told = " ".join(f"{where} ({_NAMES.get(kind, kind)}): {words}" for where, kind, words in said)
        return f"did not come up. {told}"


_NAMES = {
    "stock_out": "no GPU is free",
    "quota": "the GPU quota of the project",
    "no_gpu": "no such GPU there",
    "denied": "permission",
    "refused": "refused",
    "late": "too slow",
    "failed": "failed",
}
