"""A 429, as it goes from the reply to the governor."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_llmbeam.transport.server_reply import QuotaUnit


@dataclass(frozen=True, slots=True)
class Rejection:
    """A request that was rejected with a 429.

    Attributes:
        retry_after_seconds: Retry delay of the server, or `None`.
        sent_at: Time of the clock at which the request was sent; `None`: that of the 429.
        tokens: Tokens with which it was admitted; 0 if they are not known.
        unit: What the exhausted quota counts, if the server says so.
        chance: Random number, uniform in [0, 1), which spreads machines that were rejected together.
    """

    retry_after_seconds: float | None = None
    sent_at: float | None = None
    tokens: float = 0.0
    unit: QuotaUnit | None = None
    chance: float = 0.0
