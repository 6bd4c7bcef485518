"""The wait that a server advises after a rejected request: `Retry-After`, or `RetryInfo` in the body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any


def retry_after_seconds(
    header: str | None, details: Iterable[Mapping[str, Any]], now: float | None = None
) -> float | None:
    """Returns the advised wait in seconds; `None` if there is no advice.

    Args:
        header: Value of `Retry-After`, which precedes the body: seconds, or a date.
        details: `error.details` of the body. Gemini sends only this, as `RetryInfo` with a fraction of a second.
        now: Seconds of the Unix epoch; without it, a date counts as no advice.
    """
    delays = [
        str(item["retryDelay"])
        for item in details
        if str(item.get("@type", "")).endswith("RetryInfo") and "retryDelay" in item
    ]
    for text in ([] if header is None else [header]) + delays:
        if (seconds := _seconds(text, now)) is not None:
            return seconds
    return None


def _seconds(text: str, now: float | None) -> float | None:
    try:
        return max(0.0, float(text.removesuffix("s")))
    except ValueError:
        pass
    if now is None:
        return None
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)
