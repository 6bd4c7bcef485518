"""What one small request to a model met: an answer, a 429, or something else, with the server's own words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Literal

ReplyOutcome = Literal["answered", "rejected", "failed"]

_WORDS = 300
#: Refusals of 4xx that the same request may not meet a little later.
_PASSING = frozenset({408, 409, 425, 429})
#: OpenAI's reasoning models say it with status 400 where the one token went into a thought:
#: https://github.com/spiceai/spiceai/issues/7126
_CUT = "max_tokens or model output limit was reached"
#: Vertex AI says so, with 400 or 404, of an endpoint to which a model is still being deployed.
_NOT_DEPLOYED = ("traffic_split", "no deployed model")
#: OpenAI names a quota of the day in words alone, e.g. "on requests per day (RPD)".
_DAILY = re.compile(r"\b(per day|[RT]PD)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReply:
    """What one request met.

    Attributes:
        outcome: `rejected` is a 429.
        seconds: From the request to the end of the reply.
        http_status: `None`: there was no reply.
        words: The server's own, in one line; empty where it answered.
        is_daily: Rejected for a quota of the day, or an empty account: a minute's patience does not help.
        retry_after_seconds: The server's advice.
        is_final: A refusal that waiting does not mend, such as a wrong key or a model that is not there.
    """

    outcome: ReplyOutcome
    seconds: float
    http_status: int | None = None
    words: str = ""
    is_daily: bool = False
    retry_after_seconds: float | None = None
    is_final: bool = False


def read_reply(
    http_status: int,
    headers: Mapping[str, str],
    text: str,
    *,
    answer_fields: frozenset[str],
    seconds: float,
    now: float,
) -> ProbeReply:
    """Judges a reply.

    Args:
        http_status: Of the reply.
        headers: Of the reply, whatever the case of their names.
        text: Its body.
        answer_fields: A body with one of these, and something in it, is an answer.
        seconds: How long it took.
        now: Seconds of the Unix epoch.
    """
    body = _json(text)
    words = f"HTTP {http_status}: {_words(body, text)}"
    if http_status == 200:
        if isinstance(body, dict) and any(body.get(field) for field in answer_fields):
            return ProbeReply(outcome="answered", seconds=seconds, http_status=200)
        return ProbeReply(
            outcome="failed", seconds=seconds, http_status=200, words=f"HTTP 200 without an answer: {_line(text)}"
        )
    if http_status == 429:
        return ProbeReply(
            outcome="rejected",
            seconds=seconds,
            http_status=429,
            words=words,
            is_daily=_is_daily(body),
            retry_after_seconds=_retry_after_seconds(headers, body, now),
        )
    if http_status == 400 and _CUT in text:
        return ProbeReply(outcome="answered", seconds=seconds, http_status=400)
    # Without JSON it is the page of a proxy or a load balancer, which may not know a new address yet.
    refused = 400 <= http_status < 500 and http_status not in _PASSING and isinstance(body, dict)
    return ProbeReply(
        outcome="failed",
        seconds=seconds,
        http_status=http_status,
        words=words,
        retry_after_seconds=_retry_after_seconds(headers, body, now),
        is_final=refused and not any(sign in text.lower() for sign in _NOT_DEPLOYED),
    )


def no_reply(error: Exception, seconds: float) -> ProbeReply:
    """A request that the server did not answer, or not to the end."""
    return ProbeReply(outcome="failed", seconds=seconds, words=_line(f"{type(error).__name__}: {error}"))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _error(body: Any) -> Mapping[str, Any]:
    # Some of Google's services put the one error into a list.
    body = body[0] if isinstance(body, list) and body else body
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def _details(body: Any) -> list[Mapping[str, Any]]:
    found = _error(body).get("details")
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _words(body: Any, text: str) -> str:
    """Of Google's and OpenAI's `error.message`, of vLLM's `message`, of FastAPI's `detail`, or all of it."""
    told = body if isinstance(body, dict) else {}
    for words in (_error(body).get("message"), told.get("message"), told.get("detail"), told.get("error")):
        if isinstance(words, str) and words.strip():
            return _line(words)
    return _line(text)


def _line(text: str) -> str:
    return " ".join(text.split())[:_WORDS] or "no words"


def _is_daily(body: Any) -> bool:
    error = _error(body)
    if error.get("code") == "insufficient_quota" or _DAILY.search(str(error.get("message", ""))):
        return True
    return any(
        "PerDay" in str(violation.get("quotaId", ""))
        for item in _details(body)
        for violation in item.get("violations") or ()
        if isinstance(violation, dict)
    )


def _retry_after_seconds(headers: Mapping[str, str], body: Any, now: float) -> float | None:
    """Reads `Retry-After`, in seconds or as a date, else `RetryInfo` in the body, as Gemini has it."""
    told = [value for name, value in headers.items() if name.lower() == "retry-after"]
    delays = [
        item["retryDelay"]
        for item in _details(body)
        if str(item.get("@type", "")).endswith("RetryInfo") and "retryDelay" in item
    ]
    for text in (*told, *delays):
        seconds = _seconds(str(text), now)
        if seconds is not None:
            return seconds
    return None


def _seconds(text: str, now: float) -> float | None:
    try:
        return max(0.0, float(text.removesuffix("s")))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)
