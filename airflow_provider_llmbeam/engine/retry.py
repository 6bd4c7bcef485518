"""Retries of failed requests. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_llmbeam.engine.token_counts import NO_TOKENS, Tokens
from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind
from airflow_provider_llmbeam.spec.model.tier import ServiceTier
from airflow_provider_llmbeam.transport.server_reply import QuotaUnit

#: Failures after which the same request may succeed.
TRANSIENT_KINDS: frozenset[FailureKind] = frozenset({"server_error", "garbage", "timeout", "connection"})

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
#: Longest wait of a request, whatever the server advises; daily quotas are recognised by the backends.
LONGEST_ADVISED_SECONDS = 600.0


class RequestError(Exception):
    """A failed request.

    Attributes:
        kind: Kind of failure; `throttled` for a 429.
        message: Message of the server, if it sent one; at most 2,000 characters, valid as UTF-8.
        http_status: HTTP status of the response, or `None`.
        retry_after_seconds: Least delay of the next attempt that the server asks for, from a header or the body,
            in seconds.
        tokens: Billed tokens, in spite of the failure.
        service_tier: Tier at which the billed tokens were served.
        is_unconnected: Whether no connection could be opened, so that the server cannot have received the request.
        category: What the server blocked, see `Failure.category`.
        quota_unit: What the exhausted quota of a 429 counts, if the server says so.
        is_given_up: Whether it was tried for long enough already, so that only another run tries it again.
        request_id: ID that the server has given the request, which `HttpClient` sets.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        http_status: int | None = None,
        retry_after_seconds: float | None = None,
        tokens: Tokens = NO_TOKENS,
        service_tier: ServiceTier = "standard",
        is_unconnected: bool = False,
        category: str | None = None,
        quota_unit: QuotaUnit | None = None,
        is_given_up: bool = False,
    ) -> None:
        self.message = valid_text(message[:2000])
        super().__init__(self.message)
        self.kind: FailureKind = kind
        self.http_status = http_status
        self.retry_after_seconds = retry_after_seconds
        self.tokens = tokens
        self.service_tier: ServiceTier = service_tier
        self.is_unconnected = is_unconnected
        self.category = category
        self.quota_unit: QuotaUnit | None = quota_unit
        self.is_given_up = is_given_up
        self.request_id: str | None = None

    @property
    def advised_seconds(self) -> float:
        """Least time after which the same request may be sent again, in seconds; 0 without advice."""
        return min(LONGEST_ADVISED_SECONDS, self.retry_after_seconds or 0.0)

    @property
    def is_overload(self) -> bool:
        """Whether the server has no capacity for the request now: a 429, a 503, or the 529 of Anthropic."""
        return self.kind == "throttled" or self.http_status in (503, 529)

    @property
    def is_outage(self) -> bool:
        """Whether the failure may be that of the whole server: no connection, or a gateway that has no server."""
        return self.kind == "connection" or self.http_status in (502, 503)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Decides whether a failed request is retried.

    Attributes:
        max_attempts: Maximum number of requests per row, without 429s.
        max_throttled_seconds: Maximum time in which a row receives only 429s and 503s, in seconds.
    """

    max_attempts: int
    max_throttled_seconds: float

    def wait_seconds(
        self, error: RequestError, *, attempts: int, throttled_seconds: float, chance: float
    ) -> float | None:
        """Decides whether and when the request is sent again.

        Args:
            error: Error of the last request.
            attempts: Number of requests sent so far, without 429s; after another error also without 503s.
            throttled_seconds: Time since the first of an uninterrupted series of 429s and 503s, in seconds.
            chance: Random number, uniform in [0, 1), for full jitter.

        Returns:
            Delay in seconds, or `None` for no retry. It is at least what the server advises, up to
            `LONGEST_ADVISED_SECONDS`; a 429 without advice waits in the governor only.
        """
        if error.kind == "throttled":
            return error.advised_seconds if throttled_seconds < self.max_throttled_seconds else None
        # Of an overload the waits are longer each time, so that the rate follows what the server answers.
        is_over = (
            throttled_seconds >= self.max_throttled_seconds if error.is_overload else attempts >= self.max_attempts
        )
        if error.kind not in TRANSIENT_KINDS or error.is_given_up or is_over:
            return None
        backoff_seconds = chance * min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(attempts, 20))
        return max(backoff_seconds, error.advised_seconds)
