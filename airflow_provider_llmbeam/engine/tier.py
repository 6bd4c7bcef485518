"""Service tiers of a model, for the requests of a process."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from airflow_provider_llmbeam.engine.backend import Backend
from airflow_provider_llmbeam.engine.pacing.flex import PROBE_SECONDS, FlexCapacity, is_shed
from airflow_provider_llmbeam.engine.request import Request
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.timeout import Timeout
from airflow_provider_llmbeam.spec.facts import MAX_FLEX_SECONDS

_log = logging.getLogger(__name__)


class ShedError(Exception):
    """The flex tier has no capacity for a request.

    Attributes:
        error: Error of the server.
        wait_seconds: Delay of the next attempt, in seconds; `None` for no retry.
    """

    def __init__(self, error: RequestError, wait_seconds: float | None) -> None:
        super().__init__(error.message)
        self.error = error
        self.wait_seconds = wait_seconds


class Tier:
    """A service tier of a model.

    Args:
        backend: Client whose requests ask for the tier.
        timeout_seconds: Timeout of one attempt, in seconds.
    """

    def __init__(self, backend: Backend, timeout_seconds: float) -> None:
        self.backend = backend
        self.timeout_seconds = timeout_seconds
        self.timeout = Timeout(timeout_seconds)

    def answered(self) -> None:
        """A request was answered."""

    def shed(self, request: Request, error: RequestError) -> ShedError | None:
        """Returns what follows if the tier had no capacity for a request; `None` for any other error."""

    def ended(self, request: Request) -> None:
        """A request has ended in any way."""


class FlexTier(Tier):
    """The flex tier of a model. Its timeout is at least `MAX_FLEX_SECONDS`.

    Args:
        backend: See `Tier`.
        timeout_seconds: See `Tier`.
        capacity: Decides about the tier of each request.
        clock: Unix time, in seconds.
    """

    def __init__(
        self,
        backend: Backend,
        timeout_seconds: float,
        capacity: FlexCapacity,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(backend, max(timeout_seconds, MAX_FLEX_SECONDS))
        self._capacity = capacity
        self._was_exhausted = False
        self._clock = clock

    def takes(self, request: Request) -> bool:
        """Decides whether a request is sent at this tier; if it is, `ended` follows."""
        now = self._clock()
        self._note_capacity(now)
        if not self._capacity.takes(request.sheds, now):
            return False
        self._capacity.sent(request.number, now)
        return True

    def ended(self, request: Request) -> None:
        """A request has ended in any way."""
        self._capacity.ended(request.number)

    def answered(self) -> None:
        """A request was answered."""
        self._capacity.answered()

    def shed(self, request: Request, error: RequestError) -> ShedError | None:
        """See `Tier.shed`; a request that was shed is no attempt."""
        if not is_shed(error):
            return None
        now = self._clock()
        request.attempts -= 1
        request.sheds += 1
        request.shed_since = request.shed_since or now
        self._capacity.ended(request.number)
        self._capacity.shed(now)
        wait_seconds = self._capacity.wait_seconds(
            request.sheds, now, now - request.shed_since, error.advised_seconds, random.random()
        )
        return ShedError(error, wait_seconds)

    def _note_capacity(self, now: float) -> None:
        """Logs that the capacity has ended or returned."""
        is_exhausted = self._capacity.is_exhausted(now)
        if is_exhausted == self._was_exhausted:
            return
        self._was_exhausted = is_exhausted
        if not is_exhausted:
            _log.info("The flex tier has capacity again.")
        elif self._capacity.has_fallback:
            _log.info(
                "The flex tier has no capacity: rows are sent at the standard tier, and one request every %.0f s "
                "looks for new capacity.",
                PROBE_SECONDS,
            )
        else:
            _log.info(
                "The flex tier has no capacity: rows wait for it, each for %.0f s at most "
                "(`limits.max_throttled_seconds`).",
                self._capacity.max_shed_seconds,
            )
