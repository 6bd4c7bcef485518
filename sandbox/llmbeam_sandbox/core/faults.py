"""Faults that a test queues for a method, and whose consumption it can check."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from llmbeam_sandbox.core.hold import Hold
from llmbeam_sandbox.core.methods import Method, Methods

FaultKind = Literal[
    "error",
    "rate-limit",
    "garbage",
    "garbage-json",
    "hang",
    "hold",
    "truncated",
    "drop",
    "disconnect",
    "stream-error",
    "abort",
    "stock-out",
    "quota",
    "operation-error",
    "slow",
]
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
_STATUS_KINDS = frozenset({"error", "stream-error", "operation-error", "stock-out"})
_TIMED_KINDS = frozenset({"operation-error", "slow", "stock-out"})


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A failure that the sandbox injects into a call.

    Kinds that answer before the model is called, so that nothing is billed: `error` (an error body of the
    service), `rate-limit` (429 with a delay), `garbage` and `garbage-json` (200 with an HTML page, declared as
    HTML or as JSON), `hang` (no answer until client or server closes).
    A kind that only delays: `hold` (the call waits until `until` is released, and is then answered as usual; a
    client that has closed the connection by then is not billed).
    Kinds that damage a computed answer, which *is* billed: `truncated` (JSON cut in the middle, a consistent
    `Content-Length`), `drop` (connection lost in the middle of the body), `disconnect` (connection lost before
    the first byte), `stream-error` (an error event after the first chunk; a plain error where the answer is not
    streamed).
    A kind that interrupts the work: `abort` (the connection is lost after half of an upload, and no object is
    created; a BigQuery job fails half-way with `backendError`, and no table is changed).
    Kinds of long-running operations: `operation-error` (the operation starts, and ends in an error), `slow` (it
    takes `after_seconds` instead of the usual time, or ends when `until` is released); for methods that request
    accelerators also `stock-out` (the operation fails because the location has none left) and `quota` (the call
    is refused because the quota of the project is too small).

    Attributes:
        kind: Kind of the fault, one of `FAULT_KINDS`.
        http_status: Status of the answer, 400 to 599; only for `error`, `stream-error` and `operation-error`,
            where None means 500, and for `stock-out`: 503 (also None) and 429, which have different messages.
        message: Message in place of the service's usual one; "" keeps the usual one.
        retry_delay_seconds: Delay that the answer names, in seconds, >= 0; only for `rate-limit`. None names no
            delay, as Vertex AI does.
        retry_after: Header `Retry-After` of an `error` of a model, as it is sent: seconds, or a date. None sends
            none.
        after_seconds: Duration of the operation, in seconds of the sandbox's clock, >= 0; only for
            `operation-error` and `stock-out`, where None means the usual duration, and for `slow`.
        until: Hold that delays the call (`hold`) or the operation (`slow`, in place of `after_seconds`).

    Raises:
        ValueError: A value is out of bounds, or does not belong to the kind.
    """

    kind: FaultKind
    http_status: int | None = None
    message: str = ""
    retry_delay_seconds: float | None = 1.0
    retry_after: str | None = None
    after_seconds: float | None = None
    until: Hold | None = None

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise ValueError(f"`kind` must be one of {', '.join(FAULT_KINDS)}; got {self.kind!r}.")
        if self.http_status is not None:
            self._check_http_status(self.http_status)
        if self.retry_delay_seconds is not None and not self.retry_delay_seconds >= 0:
            raise ValueError(f"`retry_delay_seconds` must be >= 0 or None; got {self.retry_delay_seconds!r}.")
        if self.retry_after is not None and self.kind != "error":
            raise ValueError(f"`retry_after` belongs to the kind error, not to {self.kind!r}.")
        self._check_until()
        self._check_after_seconds()

    def _check_until(self) -> None:
        if self.until is not None and self.kind not in ("hold", "slow"):
            raise ValueError(f"`until` belongs to the kinds hold, slow, not to {self.kind!r}.")
        if self.kind == "hold" and self.until is None:
            raise ValueError("A 'hold' needs `until`, which releases it; `Faults.hold` makes one.")
        if self.kind == "slow" and (self.after_seconds is None) == (self.until is None):
            raise ValueError("A 'slow' operation needs `after_seconds`, its duration, or `until`, and not both.")

    def _check_after_seconds(self) -> None:
        if self.after_seconds is None:
            return
        if self.kind not in _TIMED_KINDS:
            raise ValueError(
                f"`after_seconds` belongs to the kinds {', '.join(sorted(_TIMED_KINDS))}, not to {self.kind!r}."
            )
        if not self.after_seconds >= 0:
            raise ValueError(f"`after_seconds` must be >= 0; got {self.after_seconds!r}.")

    def _check_http_status(self, http_status: int) -> None:
        if self.kind not in _STATUS_KINDS:
            raise ValueError(
                f"`http_status` belongs to the kinds {', '.join(sorted(_STATUS_KINDS))}, not to {self.kind!r}."
            )
        if self.kind == "stock-out" and http_status not in (429, 503):
            raise ValueError(f"`http_status` of a 'stock-out' must be 429 or 503; got {http_status!r}.")
        if not 400 <= http_status <= 599:
            raise ValueError(f"`http_status` of a fault must be 400 to 599; got {http_status!r}.")


@dataclass(kw_only=True)
class _Every:
    n: int
    fault: Fault
    calls: int = 0

    def count_call(self) -> None:
        self.calls += 1

    def take(self, text: str) -> Fault | None:
        return self.fault if self.calls % self.n == 0 else None

    def left(self) -> int:
        return 0


@dataclass(kw_only=True)
class _When:
    contains: str
    fault: Fault
    times: int | None
    after: int = 0

    def count_call(self) -> None:
        pass

    def take(self, text: str) -> Fault | None:
        if self.times == 0 or self.contains not in text or self._is_released():
            return None
        if self.after:
            self.after -= 1
            return None
        if self.times is not None:
            self.times -= 1
        return self.fault

    def left(self) -> int:
        return self.times or 0

    def _is_released(self) -> bool:
        return self.fault.until is not None and self.fault.until.is_released


class Faults:
    """The faults of each method: a queue first, then rules in the order in which they were added.

    A call takes at most one fault, and only after it was authenticated, parsed and admitted by the quota, so
    that every fault that is taken becomes visible to a client. Safe to use from any thread.

    Args:
        methods: The methods that faults can be queued for.
    """

    def __init__(self, methods: Methods) -> None:
        self._methods = methods
        self._lock = threading.Lock()
        self._queues: dict[Method, deque[Fault]] = {method: deque() for method in methods.names}
        self._rules: dict[Method, list[_Every | _When]] = {method: [] for method in methods.names}
        self._holds: list[Hold] = []

    def queue(self, method: Method, *faults: Fault) -> None:
        """Appends `faults` to the queue of `method`; each call takes one.

        Raises:
            ValueError: `method` is unknown, or does not support such a fault.
        """
        self._methods.check(method)
        for fault in faults:
            self._check_supported(method, fault)
        with self._lock:
            self._queues[method].extend(faults)

    def every(self, method: Method, n: int, fault: Fault) -> None:
        """Applies `fault` to every `n`-th call of `method` from now on, n >= 1.

        Raises:
            ValueError: `method` is unknown or does not support such a fault, or `n` is below 1.
        """
        self._methods.check(method)
        self._check_supported(method, fault)
        _check_count("n", n)
        with self._lock:
            self._rules[method].append(_Every(n=n, fault=fault))

    def when(self, method: Method, contains: str, fault: Fault, times: int | None = None) -> None:
        """Applies `fault` to calls of `method` whose text contains a string.

        The text is prompt and system text of a model, bucket and object of a storage method, path and
        body of a BigQuery, Dataflow, Vertex AI or Cloud Run method, project and secret of a Secret Manager
        method, project of a Monitoring method, project, service and quota of a Quotas method.

        Args:
            method: Method of the calls.
            contains: String to search for, not empty.
            fault: Fault of such a call.
            times: Number of calls, >= 1; None means all.

        Raises:
            ValueError: `method` is unknown or does not support such a fault, `contains` is empty, or
                `times` is below 1.
        """
        self._methods.check(method)
        self._check_supported(method, fault)
        if not contains:
            raise ValueError("`contains` must not be empty; `every(method, 1, fault)` applies to each call.")
        if times is not None:
            _check_count("times", times)
        with self._lock:
            self._rules[method].append(_When(contains=contains, fault=fault, times=times))

    def hold(self, method: Method, contains: str = "", after: int = 0) -> Hold:
        """Makes calls of `method` wait until the returned hold is released.

        A call that starts a long-running operation (`Methods.operations`) is answered at once, and its operation
        waits. `reset`, `clear` and the end of the sandbox release all holds.

        Args:
            method: Method of the calls.
            contains: String that the text of a call must contain, as for `when`; "" holds all calls.
            after: Number of such calls that pass first, >= 0.

        Raises:
            ValueError: `method` is unknown, or `after` is negative.
        """
        self._methods.check(method)
        if after < 0:
            raise ValueError(f"`after` must be >= 0; got {after!r}.")
        hold = Hold()
        fault = Fault(kind="slow" if method in self._methods.operations else "hold", until=hold)
        with self._lock:
            self._rules[method].append(_When(contains=contains, fault=fault, times=None, after=after))
            self._holds.append(hold)
        return hold

    def _check_supported(self, method: Method, fault: Fault) -> None:
        for kinds, supporting in (
            (("stream-error",), self._methods.streaming),
            (("abort",), self._methods.abortable),
            (("stock-out", "quota"), self._methods.accelerators),
            (("operation-error", "slow"), self._methods.operations),
        ):
            if fault.kind in kinds and method not in supporting:
                article = "An" if fault.kind[0] in "ao" else "A"
                known = ", ".join(sorted(supporting))
                raise ValueError(f"{article} {fault.kind!r} needs one of {known}; got {method!r}.")

    def take(self, method: Method, text: str) -> Fault | None:
        """Returns the fault of this call of `method`, if any, and counts it as consumed."""
        with self._lock:
            for rule in self._rules[method]:
                rule.count_call()
            if self._queues[method]:
                return self._queues[method].popleft()
            return next((fault for rule in self._rules[method] if (fault := rule.take(text))), None)

    def left(self) -> dict[Method, int]:
        """Returns the number of queued and counted faults left per method, without methods that have none."""
        with self._lock:
            counts = {
                method: len(self._queues[method]) + sum(rule.left() for rule in self._rules[method])
                for method in self._methods.names
            }
        return {method: count for method, count in counts.items() if count}

    def assert_all_consumed(self) -> None:
        """Checks that every queued fault, and every `when` with `times`, was consumed by a call.

        Raises:
            AssertionError: Some are left; the message has their number per method.
        """
        left = self.left()
        if left:
            raise AssertionError(f"Faults that no call consumed: {', '.join(_describe(left.items()))}.")

    def clear(self) -> None:
        """Removes all faults and rules, and releases all holds."""
        with self._lock:
            for method in self._methods.names:
                self._queues[method].clear()
                self._rules[method].clear()
            holds, self._holds = self._holds, []
        for hold in holds:
            hold.release()


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"`{name}` must be >= 1; got {value!r}.")


def _describe(left: Iterable[tuple[str, int]]) -> list[str]:
    return [f"{count} for {method}" for method, count in left]
