"""The circuit breaker of a process: ends the sending of a job that cannot succeed, and waits for a server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.engine.pacing.outage import Outage
from airflow_provider_llmbeam.engine.pacing.pilot import Pilot
from airflow_provider_llmbeam.engine.pacing.shared_failure import quoted
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.exceptions import ModelUnavailableError
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind


class Breaker:
    """Applies a `Pilot` and an `Outage` to the requests of an engine.

    Args:
        pilot: Judges the first rows.
        outage: Judges the connections.
        clock: Clock in seconds.
        has_ended: Whether nothing is sent now, so that no request waits.
    """

    def __init__(
        self, pilot: Pilot, outage: Outage, clock: Callable[[], float], has_ended: Callable[[], bool]
    ) -> None:
        self.pilot = pilot
        self.outage = outage
        self._clock, self._has_ended = clock, has_ended
        self._has_recovered = asyncio.Event()

    def ending(self) -> Failure | ModelUnavailableError | None:
        """Returns what ends the sending, if anything.

        Returns:
            The error of the job if the server cannot be reached, which no row can be the reason of; else the
            failure of the rows that are not sent. How many of them the job accepts is not decided here: at its
            end, and in another run of it, only rows that always fail may be left.
        """
        seconds, error = self.outage.ended_after_seconds, self.outage.error
        if seconds is not None and error is not None:
            if not error.is_unconnected:
                return _unsent(error.kind, f"the server has replied to none for {seconds:.0f} s: {error.message}")
            return ModelUnavailableError(
                f"The model server has not replied for {seconds:.0f} s: start it, or correct `model.base_url` or "
                f"the network. {quoted(error.message)} Nothing more is sent; a retry sends only what the journal, "
                "if there is one, does not have."
            )
        failure = self.pilot.shared_failure
        if failure is None:
            return None
        sentence = failure.sentence(self.pilot.max_output_tokens)
        if failure.is_permanent:
            return Failure(kind="not_sent", message=f"{sentence} Nothing more was sent.")
        return _unsent(failure.kind, failure.message)

    async def wait(self) -> None:
        """Waits until the server has replied to a probe, this request is the next probe, or all are released."""
        while not self._has_ended() and (seconds := self.outage.admit(self._clock())) > 0:
            self._has_recovered.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._has_recovered.wait()

    def answered(self) -> None:
        """Lets all requests go on: the server has answered a row."""
        self.outage.has_answered = True
        self._replied()

    def failed(self, number: int, error: RequestError) -> bool:
        """Counts a failed request.

        Args:
            number: Number of the request, the same for its retries.
            error: Its error.

        Returns:
            Whether the attempt does not count, as the server is down.
        """
        if not self.outage.counts(error):
            if error.http_status is not None:
                self._replied()
            return False
        self.outage.failed(self._clock(), number, error)
        if not self.outage.is_open:
            self._has_recovered.set()
        return error.is_unconnected or self.outage.is_open

    def release_all(self) -> None:
        """Releases all waiting requests: nothing is sent now."""
        self._has_recovered.set()

    def _replied(self) -> None:
        self.outage.replied()
        self._has_recovered.set()


def _unsent(kind: FailureKind, message: str) -> Failure:
    return Failure(kind=kind, message=f"not sent, as others before it failed: {message}")
