"""pace: when the next request may leave. Pure arithmetic on a clock that the caller reads."""

from __future__ import annotations


class Governor:
    """Spaces requests so that neither quota is exceeded, and stops everybody after a 429.

    Each quota is a line of starting times: a request takes the next one and moves the line on by what it
    costs. A hold pauses the governor's own clock, so whoever waits keeps the distance to its neighbours
    when the hold ends.

    Args:
        requests_per_minute: This process's part of the quota; `None` when unknown.
        tokens_per_minute: Likewise.
    """

    #: Unused quota is kept this long. A server's bucket holds at least 2 s worth in every quota simulated
    #: (governor table in the design notes), so half of it never overflows.
    BURST_SECONDS = 1.0
    #: A 429 without advice: first hold, doubled with each further 429 until an answer arrives.
    FIRST_HOLD_SECONDS = 0.5
    LONGEST_HOLD_SECONDS = 60.0

    def __init__(
        self, *, requests_per_minute: float | None = None, tokens_per_minute: float | None = None
    ) -> None:
        self._seconds_per_request = 60.0 / requests_per_minute if requests_per_minute else 0.0
        self._seconds_per_token = 60.0 / tokens_per_minute if tokens_per_minute else 0.0
        self._next_request: float | None = None
        self._next_token: float | None = None
        self._paused_seconds = 0.0
        self._held_until = float("-inf")
        self._advice_free_holds = 0

    def reserve(self, now: float, tokens: float) -> float:
        """Takes the next free start for a request of this many tokens.

        Returns:
            A ticket for `delay`.
        """
        clock = self._clock(now)
        earliest = clock - self.BURST_SECONDS
        first = clock if self._next_request is None else max(self._next_request, earliest)
        second = clock if self._next_token is None else max(self._next_token, earliest)
        self._next_request = first + self._seconds_per_request
        self._next_token = second + tokens * self._seconds_per_token
        return max(first, second, clock)

    def delay(self, now: float, ticket: float) -> float:
        """Seconds until the request behind `ticket` may leave; 0 or less means now.

        Ask again after waiting: a hold may have come in between.
        """
        return ticket + self._paused_seconds - now

    def settle(self, reserved_tokens: float, used_tokens: float) -> None:
        """Corrects a reservation once the usage is known; unused tokens are free again."""
        if self._next_token is not None:
            self._next_token += (used_tokens - reserved_tokens) * self._seconds_per_token

    def rejected(self, now: float, retry_after_seconds: float | None) -> float:
        """Holds every request after a 429.

        Args:
            now: The clock.
            retry_after_seconds: What the server advised, or `None`.

        Returns:
            Seconds of the hold.
        """
        if retry_after_seconds is None:
            seconds = min(self.LONGEST_HOLD_SECONDS, self.FIRST_HOLD_SECONDS * 2.0**self._advice_free_holds)
            if now >= self._held_until:
                self._advice_free_holds += 1
        else:
            seconds = retry_after_seconds
        until = max(self._held_until, now + seconds)
        self._paused_seconds += until - max(self._held_until, now)
        self._held_until = until
        return seconds

    def answered(self) -> None:
        """Takes note that the server answers again."""
        self._advice_free_holds = 0

    def _clock(self, now: float) -> float:
        return max(now, self._held_until) - self._paused_seconds
