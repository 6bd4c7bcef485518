"""The wait that a server advises after a rejected request, and whether one for a token may be repeated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.server_reply import str_of

if TYPE_CHECKING:
    from google.auth.exceptions import GoogleAuthError

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


def may_give_token(error: GoogleAuthError) -> bool:
    """Whether a repeated token request may succeed: the service was not reached, or answered with a 5xx or a 429.

    The credentials of a Google Cloud machine raise a `RefreshError` for every fault of the metadata server, around
    the `TransportError`. That of a refusal, e.g. a 404 of a machine without a service account, has the response as
    its last argument. Source: google.auth.compute_engine (google-auth 2.x)
    """
    # Imported here, as a Dag file reads advices without a Google client.
    from google.auth.exceptions import TransportError

    if getattr(error, "retryable", False):
        return True
    fault = error if isinstance(error, TransportError) else error.__cause__
    if not isinstance(fault, TransportError):
        return False
    status = getattr(fault.args[-1] if fault.args else None, "status", None)
    return status is None or status in (408, 429) or status >= 500


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
