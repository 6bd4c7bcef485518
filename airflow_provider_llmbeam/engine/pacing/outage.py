"""A model server that is down: when nothing is sent, when it is probed, and when the job ends. Pure."""

from __future__ import annotations

from airflow_provider_llmbeam.engine.retry import RequestError


class Outage:
    """A circuit breaker with half-open probes.

    It opens after a series of failures to reach the server, of several rows and without any reply in between.
    Then nothing is sent but a probe every few seconds, until the server replies to one. An outage costs time, not
    attempts of a row, so nothing is lost if the server is back in time.

    A row may break its own connection (a prompt that crashes the server), so failures after the connection was
    opened count once for each row; failures to open one have nothing to do with a row.

    An internal error of the server (500) counts like a broken connection once the server has answered a row, and
    ends no job: it may be the fault of the rows. After an outage of such errors that was too long, they are
    failures of their rows, in this process for good; else the last rows of each batch could wait again.

    Args:
        longest_seconds: Time without a reply after which the job ends, in seconds.
    """

    #: Number of failures without a reply that opens the breaker.
    FAILURES = 8
    #: Interval of the probes: the first one, doubled for each further one, and the longest, in seconds.
    FIRST_PROBE_SECONDS, LONGEST_PROBE_SECONDS = 1.0, 5.0
    #: Maximum time of an outage of a server that has sent no reply at all, as its address may be wrong, and of one
    #: of internal errors, in seconds.
    LONGEST_SECONDS = 60.0

    def __init__(self, longest_seconds: float = LONGEST_SECONDS) -> None:
        self._longest_seconds = longest_seconds
        self._has_replied = False
        self._unconnected = 0
        self._rows: set[int] = set()
        self._since: float | None = None
        self._has_internal_errors = False
        self._is_of_rows = False
        self._probe_at = 0.0
        self._probe_seconds = self.FIRST_PROBE_SECONDS
        #: Whether the server has answered a row.
        self.has_answered = False
        #: Whether only probes are sent.
        self.is_open = False
        #: Error of the last failure.
        self.error: RequestError | None = None
        #: Duration of the outage in seconds when it became too long; `None` before.
        self.ended_after_seconds: float | None = None

    def admit(self, now: float) -> float:
        """Returns 0 if a request may be sent now, which is then a probe; else the seconds until the next probe."""
        if not self.is_open:
            return 0.0
        if now < self._probe_at:
            return self._probe_at - now
        self._probe_at = now + self._probe_seconds
        self._probe_seconds = min(self.LONGEST_PROBE_SECONDS, 2 * self._probe_seconds)
        return 0.0

    def replied(self) -> None:
        """Ends the outage: the server has replied, whatever it was."""
        self._has_replied = True
        if self._since is not None:
            self._unconnected, self._since, self.is_open, self._has_internal_errors = 0, None, False, False
            self._rows.clear()

    def counts(self, error: RequestError) -> bool:
        """Whether a failure may be that of the whole server, rather than of the row or of the reply to it."""
        return error.is_outage or (error.kind == "server_error" and self.has_answered and not self._is_of_rows)

    def failed(self, now: float, row: int, error: RequestError) -> None:
        """Counts a request that failed, maybe as the whole server does.

        Args:
            now: Time of the clock, in seconds.
            row: Number of the row.
            error: Its error, which `counts`.
        """
        self.error = error
        self._has_replied |= error.http_status is not None
        if self._since is None:
            self._since = now
        self._has_internal_errors = self._has_internal_errors or not error.is_outage
        if error.is_unconnected:
            self._unconnected += 1
        else:
            self._rows.add(row)
        if not self.is_open and self._unconnected + len(self._rows) >= self.FAILURES:
            self.is_open = True
            self._probe_seconds = self.FIRST_PROBE_SECONDS
            self._probe_at = now + self._probe_seconds
        is_known = self._has_replied and not self._has_internal_errors
        longest = self._longest_seconds if is_known else min(self._longest_seconds, self.LONGEST_SECONDS)
        if self.is_open and now - self._since >= longest:
            if self._has_internal_errors:
                self._is_of_rows = True
                self.replied()
            else:
                self.ended_after_seconds = now - self._since
