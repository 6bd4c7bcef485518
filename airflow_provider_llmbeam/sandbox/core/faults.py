"""Faults a test puts in front of a method, and sees consumed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from airflow_provider_llmbeam.sandbox.core.hold import Hold

Method = Literal[
    "gemini.generateContent",
    "gemini.streamGenerateContent",
    "gemini.countTokens",
    "gemini.batchEmbedContents",
    "gemini.embedContent",
    "gemini.predict",
    "openai.chatCompletions",
    "openai.embeddings",
    "openai.models",
    "storage.buckets.delete",
    "storage.buckets.get",
    "storage.buckets.insert",
    "storage.buckets.list",
    "storage.buckets.patch",
    "storage.objects.batch",
    "storage.objects.compose",
    "storage.objects.copy",
    "storage.objects.delete",
    "storage.objects.get",
    "storage.objects.insert",
    "storage.objects.list",
    "storage.objects.move",
    "storage.objects.patch",
    "storage.objects.rewrite",
    "storage.uploads.cancel",
    "storage.uploads.start",
    "bigquery.datasets.delete",
    "bigquery.datasets.get",
    "bigquery.datasets.insert",
    "bigquery.datasets.list",
    "bigquery.datasets.patch",
    "bigquery.jobs.cancel",
    "bigquery.jobs.delete",
    "bigquery.jobs.get",
    "bigquery.jobs.getQueryResults",
    "bigquery.jobs.insert",
    "bigquery.jobs.list",
    "bigquery.jobs.query",
    "bigquery.tabledata.insertAll",
    "bigquery.tabledata.list",
    "bigquery.tables.delete",
    "bigquery.tables.get",
    "bigquery.tables.insert",
    "bigquery.tables.list",
    "bigquery.tables.patch",
    "bigquery.uploads.start",
    "secretmanager.secrets.addVersion",
    "secretmanager.secrets.create",
    "secretmanager.secrets.get",
    "secretmanager.secrets.list",
    "secretmanager.versions.access",
    "secretmanager.versions.list",
    "dataflow.flexTemplates.launch",
    "dataflow.jobs.aggregated",
    "dataflow.jobs.create",
    "dataflow.jobs.get",
    "dataflow.jobs.getMetrics",
    "dataflow.jobs.list",
    "dataflow.jobs.messages.list",
    "dataflow.jobs.update",
    "vertex.chatCompletions",
    "vertex.predict",
    "vertex.rawPredict",
    "vertex.endpoints.create",
    "vertex.endpoints.delete",
    "vertex.endpoints.deployModel",
    "vertex.endpoints.get",
    "vertex.endpoints.list",
    "vertex.endpoints.patch",
    "vertex.endpoints.undeployModel",
    "vertex.modelGarden.deploy",
    "vertex.modelGarden.get",
    "vertex.models.delete",
    "vertex.models.get",
    "vertex.models.list",
    "vertex.models.patch",
    "vertex.models.upload",
    "vertex.operations.cancel",
    "vertex.operations.delete",
    "vertex.operations.get",
    "vertex.operations.list",
    "vertex.operations.wait",
    "run.services.create",
    "run.services.delete",
    "run.services.get",
    "run.services.getIamPolicy",
    "run.services.list",
    "run.services.patch",
    "run.services.setIamPolicy",
    "run.operations.delete",
    "run.operations.get",
    "run.operations.list",
    "run.operations.wait",
    "run.health",
    "run.models",
    "run.chatCompletions",
    "run.completions",
    "monitoring.timeSeries.list",
    "cloudquotas.quotaInfos.get",
    "cloudquotas.quotaInfos.list",
]
METHODS: tuple[Method, ...] = get_args(Method)

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
STREAMING_METHODS = frozenset(
    {
        "gemini.streamGenerateContent",
        "openai.chatCompletions",
        "run.chatCompletions",
        "run.completions",
        "vertex.chatCompletions",
        "vertex.rawPredict",
    }
)
GPU_METHODS = frozenset(
    {"vertex.endpoints.deployModel", "vertex.modelGarden.deploy", "run.services.create", "run.services.patch"}
)
"""Those that ask for accelerators: there may be none, or none for this project."""
OPERATION_METHODS = GPU_METHODS | {
    "vertex.endpoints.create",
    "vertex.endpoints.delete",
    "vertex.endpoints.undeployModel",
    "vertex.models.delete",
    "vertex.models.upload",
    "run.services.delete",
}
"""Those that begin a long-running operation."""
_STATUS_KINDS = frozenset({"error", "stream-error", "operation-error", "stock-out"})
_TIMED_KINDS = frozenset({"operation-error", "slow", "stock-out"})
ABORTED_METHODS = frozenset({"storage.objects.insert", "bigquery.jobs.insert", "bigquery.jobs.query"})


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that goes wrong with one call.

    Kinds that never reach the model, so nothing is billed: `error` (an error body of the service),
    `rate-limit` (429 with a delay), `garbage` and `garbage-json` (200 with an HTML page, declared
    as HTML or as JSON), `hang` (no answer until client or server closes).
    One kind changes nothing but the time: `hold` (the call waits until `until` is released, and is then
    answered as usual; a client that has closed the connection by then is not billed).
    Kinds that hit a computed answer, which *is* billed: `truncated` (JSON cut in the middle, a
    consistent `Content-Length`), `drop` (connection lost in the middle of the body), `disconnect`
    (connection lost before the first byte), `stream-error` (an error event after the first chunk;
    on an answer that is not streamed, a plain error).
    One kind ends the work itself: `abort` (half of an upload has arrived when the connection is lost, and
    no object is made; a BigQuery job fails half-way with `backendError`, and no table is changed).
    Kinds for what takes long: `operation-error` (the operation begins, and ends in an error), `slow` (it takes
    `after_seconds` rather than what the sandbox was told, or ends when `until` is released), and where
    accelerators are asked for `stock-out` (the operation ends because the location has none left) and `quota`
    (refused at once: the project has too few).

    Attributes:
        kind: One of `FAULT_KINDS`.
        http_status: 400 to 599; only for `error`, `stream-error` and `operation-error`, where None means 500, and
            for `stock-out`: 503 (also None) and 429 are worded differently.
        message: Replaces the service's usual message.
        retry_delay_seconds: Only for `rate-limit`, >= 0; None says no delay, as Vertex AI does.
        after_seconds: When the operation ends, >= 0, by the sandbox's clock; only for `operation-error`,
            `stock-out`, where None takes what the sandbox was told, and `slow`.
        until: What a `hold` waits for, and a `slow` operation instead of `after_seconds`.

    Raises:
        ValueError: A value is outside these bounds.
    """

    kind: FaultKind
    http_status: int | None = None
    message: str = ""
    retry_delay_seconds: float | None = 1.0
    after_seconds: float | None = None
    until: Hold | None = None

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise ValueError(f"`kind` must be one of {', '.join(FAULT_KINDS)}; got {self.kind!r}.")
        if self.http_status is not None:
            self._check_http_status(self.http_status)
        if self.retry_delay_seconds is not None and not self.retry_delay_seconds >= 0:
            raise ValueError(f"`retry_delay_seconds` must be >= 0 or None; got {self.retry_delay_seconds!r}.")
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
        if self.times == 0 or self.contains not in text:
            return None
        if self.after:
            self.after -= 1
            return None
        if self.times is not None:
            self.times -= 1
        return self.fault

    def left(self) -> int:
        return self.times or 0


class Faults:
    """The faults in front of each method: a queue first, then rules in the order they were added.

    A call takes at most one fault, and only once it is authenticated, well-formed and admitted by
    the quota, so that no fault is used up unseen. Safe to use from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[Method, deque[Fault]] = {method: deque() for method in METHODS}
        self._rules: dict[Method, list[_Every | _When]] = {method: [] for method in METHODS}
        self._holds: list[Hold] = []

    def queue(self, method: Method, *faults: Fault) -> None:
        """Put `faults` at the end of the queue of `method`; each call takes one.

        Raises:
            ValueError: `method` is unknown, or cannot show such a fault.
        """
        check_method(method)
        for fault in faults:
            _check_fits(method, fault)
        with self._lock:
            self._queues[method].extend(faults)

    def every(self, method: Method, n: int, fault: Fault) -> None:
        """Give `fault` to every `n`-th call of `method` from now on, n >= 1.

        Raises:
            ValueError: `method` is unknown or cannot show such a fault, or `n` is below 1.
        """
        check_method(method)
        _check_fits(method, fault)
        _check_count("n", n)
        with self._lock:
            self._rules[method].append(_Every(n=n, fault=fault))

    def when(self, method: Method, contains: str, fault: Fault, times: int | None = None) -> None:
        """Give `fault` to calls of `method` whose text contains a string.

        The text is prompt and system text of a model, bucket and object of a storage method, path and
        body of a BigQuery, Dataflow, Vertex AI or Cloud Run method, project and secret of a Secret Manager
        method, project of a Monitoring method, project, service and quota of a Quotas method.

        Args:
            method: The method to watch.
            contains: Not empty.
            fault: What happens to such a call.
            times: How often, >= 1; None means always.

        Raises:
            ValueError: `method` is unknown or cannot show such a fault, `contains` is empty, or
                `times` is below 1.
        """
        check_method(method)
        _check_fits(method, fault)
        if not contains:
            raise ValueError("`contains` must not be empty; `every(method, 1, fault)` hits each call.")
        if times is not None:
            _check_count("times", times)
        with self._lock:
            self._rules[method].append(_When(contains=contains, fault=fault, times=times))

    def hold(self, method: Method, contains: str = "", after: int = 0) -> Hold:
        """Keep calls of `method` waiting until the hold that this returns is released.

        A call that begins a long-running operation (`OPERATION_METHODS`) is answered at once: its operation is
        what waits. `reset`, `clear` and the end of the sandbox release all holds.

        Args:
            method: The method to hold.
            contains: Only calls whose text contains this, see `when`; "" holds all of them.
            after: How many of those calls are let through first, >= 0.

        Raises:
            ValueError: `method` is unknown, or `after` is negative.
        """
        check_method(method)
        if after < 0:
            raise ValueError(f"`after` must be >= 0; got {after!r}.")
        hold = Hold()
        fault = Fault(kind="slow" if method in OPERATION_METHODS else "hold", until=hold)
        with self._lock:
            self._rules[method].append(_When(contains=contains, fault=fault, times=None, after=after))
            self._holds.append(hold)
        return hold

    def take(self, method: Method, text: str) -> Fault | None:
        """Return the fault that this call of `method` meets, if any, and count it as seen."""
        with self._lock:
            for rule in self._rules[method]:
                rule.count_call()
            if self._queues[method]:
                return self._queues[method].popleft()
            return next((fault for rule in self._rules[method] if (fault := rule.take(text))), None)

    def left(self) -> dict[Method, int]:
        """Return how many queued and counted faults each method still has, methods with none omitted."""
        with self._lock:
            counts = {
                method: len(self._queues[method]) + sum(rule.left() for rule in self._rules[method])
                for method in METHODS
            }
        return {method: count for method, count in counts.items() if count}

    def assert_all_consumed(self) -> None:
        """Check that every queued fault, and every `when` with `times`, was seen by a client.

        Raises:
            AssertionError: Names what is left, per method.
        """
        left = self.left()
        if left:
            raise AssertionError(f"Faults that no call has met: {', '.join(_describe(left.items()))}.")

    def clear(self) -> None:
        """Forget all faults and rules, and release all holds."""
        with self._lock:
            for method in METHODS:
                self._queues[method].clear()
                self._rules[method].clear()
            holds, self._holds = self._holds, []
        for hold in holds:
            hold.release()


def check_method(method: str) -> None:
    """Check that `method` is one the sandbox serves.

    Raises:
        ValueError: It is not; names those that are.
    """
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {', '.join(METHODS)}; got {method!r}.")


def _check_fits(method: Method, fault: Fault) -> None:
    if fault.kind == "stream-error" and method not in STREAMING_METHODS:
        raise ValueError(f"A 'stream-error' needs one of {', '.join(sorted(STREAMING_METHODS))}; got {method!r}.")
    if fault.kind == "abort" and method not in ABORTED_METHODS:
        raise ValueError(f"An 'abort' needs one of {', '.join(sorted(ABORTED_METHODS))}; got {method!r}.")
    if fault.kind in ("stock-out", "quota") and method not in GPU_METHODS:
        raise ValueError(f"A {fault.kind!r} needs one of {', '.join(sorted(GPU_METHODS))}; got {method!r}.")
    if fault.kind in ("operation-error", "slow") and method not in OPERATION_METHODS:
        raise ValueError(f"A {fault.kind!r} needs one of {', '.join(sorted(OPERATION_METHODS))}; got {method!r}.")


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"`{name}` must be >= 1; got {value!r}.")


def _describe(left: Iterable[tuple[str, int]]) -> list[str]:
    return [f"{count} for {method}" for method, count in left]
