"""The wait that a server advises after a rejected request: `Retry-After`, or `RetryInfo` in the body."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from airflow_provider_llmbeam.server_reply import str_of

#: Longest advice that is reported. Nothing here waits longer than minutes; a day still shows a daily quota.
LONGEST_SECONDS = 86_400.0


def retry_after_seconds(
    header: str | None, details: Iterable[Mapping[str, Any]], now: float | None = None
) -> float | None:
    """Returns the advised wait in seconds, from 0 to a day; `None` if there is no advice that can be read.

    Args:
        header: Value of `Retry-After`, which precedes the body: seconds, or a date.
        details: `error.details` of the body. Gemini sends only this, as `RetryInfo` with a fraction of a second.
        now: Seconds of the Unix epoch; without it, a date counts as no advice.
    """
    delays = [item.get("retryDelay") for item in details if str_of(item.get("@type")).endswith("RetryInfo")]
    for advice in [header, *delays]:
        if (seconds := _seconds(advice, now)) is not None:
            return min(LONGEST_SECONDS, max(0.0, seconds))
    return None


def _seconds(advice: Any, now: float | None) -> float | None:
    if isinstance(advice, bool) or not isinstance(advice, str | int | float):
        return None
    try:
        seconds = float(advice.removesuffix("s") if isinstance(advice, str) else advice)
    except (ValueError, OverflowError):
        return _seconds_until(advice, now) if isinstance(advice, str) and now is not None else None
    return seconds if math.isfinite(seconds) else None


def _seconds_until(text: str, now: float) -> float | None:
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, TypeError, IndexError, OverflowError):  # all four are raised for damaged dates
        return None
