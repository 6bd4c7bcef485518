"""Long-running operations: begun, polled, ended by the sandbox's clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_llmbeam.sandbox.core.faults import Fault
from airflow_provider_llmbeam.sandbox.core.rest import RestError
from airflow_provider_llmbeam.sandbox.core.timeline import Timeline

# HTTP status to google.rpc.Code. Source: google/rpc/code.proto, "HTTP Mapping" of each code.
CODES: Mapping[int, int] = {
    400: 9,
    401: 16,
    403: 7,
    404: 5,
    409: 6,
    429: 8,
    499: 1,
    500: 13,
    501: 12,
    503: 14,
    504: 4,
}
CANCELLED = {"code": 1, "message": "The operation was cancelled."}

Failure = dict[str, Any]


@dataclass(kw_only=True)
class Operation:
    """One operation.

    Attributes:
        name: In full.
        metadata: With its "@type".
        finish: Does what the operation is for, at its time in seconds since the epoch; returns its response,
            with its "@type".
        undo: Takes back what was begun, at such a time; called instead when the operation fails.
        failure: A `google.rpc.Status` that it is going to end in; None when it succeeds.
        response: Once it is done.
        error: Once it has failed.
    """

    name: str
    metadata: dict[str, Any]
    finish: Callable[[float], dict[str, Any]]
    undo: Callable[[float], None]
    failure: Failure | None
    response: dict[str, Any] | None = None
    error: Failure | None = None

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self.response is not None or self.error is not None

    def resource(self) -> dict[str, Any]:
        """Return it as the API shows it."""
        shown: dict[str, Any] = {"name": self.name, "metadata": self.metadata}
        if self.error is not None:
            return {**shown, "done": True, "error": self.error}
        if self.response is not None:
            return {**shown, "done": True, "response": self.response}
        return shown


@dataclass(kw_only=True)
class Operations:
    """The operations of one service.

    Attributes:
        timeline: When they end.
        seconds: How long one takes that no fault speaks of, by the sandbox's clock.
    """

    timeline: Timeline
    seconds: float
    _all: dict[str, Operation] = field(default_factory=dict)

    def start(
        self, operation: Operation, fault: Fault | None = None, *, seconds: float | None = None
    ) -> Operation:
        """Begin an operation.

        Args:
            operation: What it does.
            fault: What the call met that asked for it.
            seconds: How long it takes when no fault says so; None takes what is usual.
        """
        usual = self.seconds if seconds is None else seconds
        told = fault.after_seconds if fault is not None else None
        if fault is not None and fault.kind == "operation-error":
            operation.failure = failure(fault.http_status or 500, fault.message or "Internal error encountered.")
        with self.timeline.lock:
            self._all[operation.name] = operation
            if fault is not None and fault.until is not None:
                fault.until.on_release(lambda: self._end_now(operation))
            else:
                ends_at = self.timeline.now() + (usual if told is None else told)
                self.timeline.at(ends_at, lambda at: end(operation, at))
        return operation

    def get(self, name: str) -> Operation:
        """Return an operation.

        Raises:
            RestError: There is none of that name.
        """
        found = self._all.get(name)
        if found is None:
            raise RestError(404, f"Operation {name} not found.")
        return found

    def under(self, parent: str) -> list[Operation]:
        """Return the operations of a resource or of what lies below it, the newest first."""
        return [one for name, one in reversed(self._all.items()) if name.startswith(f"{parent}/")]

    def running(self, target: str) -> list[str]:
        """Return the names of the operations on a resource that have not ended."""
        return [one.name for one in self.under(f"{target}/operations") if not one.is_done]

    def forget(self, name: str) -> None:
        """Delete a record; the operation goes on."""
        self.get(name)
        del self._all[name]

    def cancel(self, name: str) -> None:
        """Have an operation end as cancelled, `seconds` from now or when it would have ended anyway."""
        operation = self.get(name)
        if not operation.is_done:
            operation.failure = dict(CANCELLED)
            self.timeline.at(self.timeline.now() + self.seconds, lambda at: end(operation, at))

    def _end_now(self, operation: Operation) -> None:
        self.timeline.at(self.timeline.now(), lambda at: end(operation, at))

    def clear(self) -> None:
        """Forget all of them."""
        self._all.clear()


def end(operation: Operation, at: float) -> None:
    """End an operation at a time in seconds since the epoch; does nothing when it has ended already."""
    if operation.is_done:
        return
    if operation.failure is not None:
        operation.undo(at)
        operation.error = operation.failure
    else:
        operation.response = operation.finish(at)


def failure(http_status: int, message: str) -> Failure:
    """Return the `google.rpc.Status` of an operation that fails."""
    return {"code": CODES.get(http_status, 2), "message": message}


def nothing(at: float) -> None:
    """Take nothing back."""
