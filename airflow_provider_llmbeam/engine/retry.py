"""What to do after a request failed: a pure decision."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_llmbeam.engine.outcome import FailureKind

#: Worth another attempt: the same request may well succeed.
TRANSIENT_KINDS: frozenset[FailureKind] = frozenset({"server_error", "garbage", "timeout", "connection"})

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0


class RequestError(Exception):
    """One request failed.

    Attributes:
        kind: What went wrong; `throttled` for a 429.
        message: The server's own words where it spoke.
        http_status: Of the response, or none.
        retry_after_seconds: The server's advice, from a header or the body.
        input_tokens: Billed all the same.
        output_tokens: Billed all the same.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        http_status: int | None = None,
        retry_after_seconds: float | None = None,
        input_tokens: int = 0,
        output_tokens: int = 0,
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message[:2000]
        self.http_status = http_status
        self.retry_after_seconds = retry_after_seconds
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How patient a row is.

    Attributes:
        max_attempts: Requests per row, 429s not counted.
        max_throttled_seconds: How long a row takes nothing but 429s.
    """

    max_attempts: int
    max_throttled_seconds: float

    def wait_seconds(
        self, error: RequestError, *, attempts: int, throttled_seconds: float, chance: float
    ) -> float | None:
        """Decides whether and when the row is tried again.

        Args:
            error: What the last request met.
            attempts: Requests sent so far, 429s not counted.
            throttled_seconds: Since the first of an unbroken run of 429s.
            chance: Uniform in [0, 1): full jitter.

        Returns:
            Seconds to wait (a 429 waits in the governor, so 0), or `None` to give up.
        """
        if error.kind == "throttled":
            return 0.0 if throttled_seconds < self.max_throttled_seconds else None
        if error.kind not in TRANSIENT_KINDS or attempts >= self.max_attempts:
            return None
        return chance * min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0**attempts)
