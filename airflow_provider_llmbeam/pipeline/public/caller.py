"""The engine as a `Caller` of Beam's `RequestResponseIO`."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from apache_beam.io.requestresponse import (
    DEFAULT_TIMEOUT_SECS,
    Caller,
    UserCodeExecutionException,
    UserCodeQuotaException,
    UserCodeTimeoutException,
)
from apache_beam.ml.inference.base import PredictionResult

from airflow_provider_llmbeam.engine.outcome import Failure, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError
from airflow_provider_llmbeam.pipeline.engine_thread import EngineThread
from airflow_provider_llmbeam.pipeline.public.handler import LLMModelHandler
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind
from airflow_provider_llmbeam.spec.protocol.counts import NAMESPACE

ExampleT = TypeVar("ExampleT")

#: Failures that `RequestResponseIO` retries by default; every other one is a `UserCodeExecutionException`.
_EXCEPTIONS: dict[FailureKind, type[UserCodeExecutionException]] = {
    "timeout": UserCodeTimeoutException,
    "throttled": UserCodeQuotaException,
    "quota_exhausted": UserCodeQuotaException,
}

#: Maximum number of engines of one process that are kept open, the last used ones.
_MOST_OPEN = 16


class LLMCaller(Caller, Generic[ExampleT]):
    """Answers one request a call, with a timeout that holds.

        requests | RequestResponseIO(LLMCaller(handler), timeout=None, repeater=NoOpsRepeater(), throttler=None)

    All callers of a process with the same handler, or a copy of it, share its engine, and so its connections, its
    quota and its limit of requests in flight. A call returns when its timeout is over; Beam 2.77 waits for it
    whatever `RequestResponseIO.timeout` says. The request itself goes on, and the next call with the same prompt,
    that of a repeater or of a retried bundle, waits for its answer: it is not paid for twice.

    `RequestResponseIO` has one call in flight per thread, so `RunInference` answers many rows in a fraction of the
    time.

    Args:
        handler: Handler with the model, its limits and the prompt of a request. It has no journal, as each call
            would write a file of its own.
        timeout_seconds: Timeout of a call, with all its retries, in seconds.
        failures: `raise` raises a failure as an exception of `RequestResponseIO`, which ends the bundle; `return`
            returns it like an answer, as `inference` of the result.

    Raises:
        JobSpecError: `handler` is another handler, or has a journal; `timeout_seconds` is not positive and finite;
            or `failures` is not known.
    """

    def __init__(
        self,
        handler: LLMModelHandler[ExampleT],
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECS,
        failures: Literal["raise", "return"] = "raise",
    ) -> None:
        if not isinstance(handler, LLMModelHandler):
            raise JobSpecError(
                "`handler`: must be an `LLMModelHandler` itself, not one of Beam's handlers around it; got a "
                f"value of type {type(handler).__name__!r}."
            )
        if handler.journal_uri is not None:
            raise JobSpecError(
                "`handler`: `LLMCaller` takes a handler without `journal_uri`, as each call would write a file of "
                "its own. Leave it out, or use `RunInference`."
            )
        is_number = isinstance(timeout_seconds, int | float) and not isinstance(timeout_seconds, bool)
        if not is_number or not 0 < timeout_seconds <= threading.TIMEOUT_MAX:
            raise JobSpecError(f"`timeout_seconds`: must be a finite number above 0; got {timeout_seconds!r}.")
        if failures not in ("raise", "return"):
            raise JobSpecError(f"`failures`: must be 'raise' or 'return'; got {failures!r}.")
        self._handler = handler
        self._timeout_seconds = timeout_seconds
        self._failures = failures
        self._calls: _Calls | None = None

    def __str__(self) -> str:
        """Returns the namespace of the counters of `RequestResponseIO`."""
        return NAMESPACE

    def __enter__(self) -> Self:
        """Opens the engine, or joins the one that is open in this process."""
        self._calls = _calls_of(self._handler)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leaves the engine."""
        self._calls = None

    def __call__(self, request: ExampleT, *args: Any, **kwargs: Any) -> PredictionResult:
        """Answers one request.

        Returns:
            The request as `example`, and its `Completion`, or its `Failure`, as `inference`.

        Raises:
            UserCodeTimeoutException: There was no answer within the timeout.
            UserCodeQuotaException: The server has answered 429 for `limits.max_throttled_seconds`.
            UserCodeExecutionException: The request failed for another reason, or the budget is spent.
        """
        if self._calls is None:
            raise UserCodeExecutionException("A caller is used within `with`: nothing was sent or billed.")
        prompt = self._handler.prompt(request)
        outcome = prompt if isinstance(prompt, Failure) else self._calls.outcome(prompt, self._timeout_seconds)
        (result,) = self._handler.results([request], [outcome])
        failure = result.inference
        if self._failures == "raise" and isinstance(failure, Failure):
            raise _EXCEPTIONS.get(failure.kind, UserCodeExecutionException)(f"{failure.kind}: {failure.message}")
        return result


class _Calls:
    """The calls of a process; each prompt is in flight at most once. Thread-safe.

    Args:
        engine: The engine.
    """

    #: Maximum number of calls that are kept; the oldest ones have timed out, and were not repeated since.
    MOST = 1000

    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._begun: dict[Prompt, Future[list[Outcome]]] = {}

    def outcome(self, prompt: Prompt, timeout_seconds: float) -> Outcome:
        """Returns the outcome of a prompt.

        Raises:
            UserCodeTimeoutException: There is none yet.
            UserCodeExecutionException: The engine sends nothing more.
        """
        with self._lock:
            call = self._begun.get(prompt)
            if call is None:
                call = self._begun[prompt] = self._engine.submit([prompt])
                if len(self._begun) > self.MOST:
                    del self._begun[next(iter(self._begun))]
        if not wait([call], timeout_seconds).done:
            raise UserCodeTimeoutException(
                f"No answer within {timeout_seconds:g} s (`timeout_seconds`). The request goes on and may be "
                "billed; a further call with the same prompt waits for its answer."
            )
        with self._lock:
            if self._begun.get(prompt) is call:
                del self._begun[prompt]
        try:
            (outcome,) = call.result()
        except LLMBeamError as error:  # `RequestResponseIO` replaces the message of a `RuntimeError`
            raise UserCodeExecutionException(str(error)) from error
        return outcome


#: Calls by run of the handler, in the order of their use. A failed bundle closes its callers, and its repetition
#: waits for the requests that they began. `Shared` of Beam 2.77 keeps one object of a process alive, the last one.
_OPEN: dict[str, _Calls] = {}
_open_lock = threading.Lock()


def _calls_of(handler: LLMModelHandler[Any]) -> _Calls:
    """Returns the calls of all copies of a handler in this process."""
    run = handler.context.run
    with _open_lock:
        calls = _OPEN.pop(run, None) or _Calls(handler.load_model())
        _OPEN[run] = calls
        if len(_OPEN) > _MOST_OPEN:
            del _OPEN[next(iter(_OPEN))]
    return calls
