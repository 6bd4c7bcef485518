"""Long-running operations, which end by the sandbox's clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmbeam_sandbox.core.clock import Timeline
from llmbeam_sandbox.core.faults import Fault
from llmbeam_sandbox.core.rest import RestError

# `google.rpc.Code` by HTTP status. Source: google/rpc/code.proto, "HTTP Mapping" of each code.
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
        name: Full name.
        metadata: Metadata with its "@type".
        finish: Completes the work at a time in seconds since the epoch; returns the response with its "@type".
        undo: Reverts the work at such a time; called instead of `finish` when the operation fails.
        failure: The `google.rpc.Status` in which it will end; None when it will succeed.
        response: Response after a success.
        error: Error after a failure.
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
        """Whether the operation has ended."""
        return self.response is not None or self.error is not None

    def resource(self) -> dict[str, Any]:
        """Returns the operation as the API returns it."""
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
        timeline: Scheduler of their ends.
        seconds: Duration of an operation without a fault, in seconds of the sandbox's clock.
    """

    timeline: Timeline
    seconds: float
    _all: dict[str, Operation] = field(default_factory=dict)

    def start(
        self, operation: Operation, fault: Fault | None = None, *, seconds: float | None = None
    ) -> Operation:
        """Starts an operation.

        Args:
            operation: The operation.
            fault: Fault of the call that requested it.
            seconds: Duration without a fault, in seconds; None is `self.seconds`.
        """
        duration = self.seconds if seconds is None else seconds
        if fault is not None and fault.after_seconds is not None:
            duration = fault.after_seconds
        if fault is not None and fault.kind == "operation-error":
            operation.failure = failure(fault.http_status or 500, fault.message or "Internal error encountered.")
        with self.timeline.lock:
            self._all[operation.name] = operation
            if fault is not None and fault.until is not None:
                fault.until.on_release(lambda: self._end_now(operation))
            else:
                self.timeline.at(self.timeline.now() + duration, lambda at: end(operation, at))
        return operation

    def get(self, name: str) -> Operation:
        """Returns an operation.

        Raises:
            RestError: There is none of that name.
        """
        found = self._all.get(name)
        if found is None:
            raise RestError(404, f"Operation {name} not found.")
        return found

    def under(self, parent: str) -> list[Operation]:
        """Returns the operations whose names begin with `parent`, the newest first."""
        return [one for name, one in reversed(self._all.items()) if name.startswith(f"{parent}/")]

    def running(self, target: str) -> list[str]:
        """Returns the names of the operations on a resource that have not ended."""
        return [one.name for one in self.under(f"{target}/operations") if not one.is_done]

    def forget(self, name: str) -> None:
        """Deletes the record of an operation, which continues."""
        self.get(name)
        del self._all[name]

    def cancel(self, name: str) -> None:
        """Makes an operation end as cancelled, `seconds` from now or at its own end if that is earlier."""
        operation = self.get(name)
        if not operation.is_done:
            operation.failure = dict(CANCELLED)
            self.timeline.at(self.timeline.now() + self.seconds, lambda at: end(operation, at))

    def _end_now(self, operation: Operation) -> None:
        self.timeline.at(self.timeline.now(), lambda at: end(operation, at))

    def clear(self) -> None:
        """Removes all operations."""
        self._all.clear()


def end(operation: Operation, at: float) -> None:
    """Ends an operation at a time in seconds since the epoch; does nothing when it has ended already."""
    if operation.is_done:
        return
    if operation.failure is not None:
        operation.undo(at)
        operation.error = operation.failure
    else:
        operation.response = operation.finish(at)


def failure(http_status: int, message: str) -> Failure:
    """Returns the `google.rpc.Status` of an operation that fails."""
    return {"code": CODES.get(http_status, 2), "message": message}
