"""Outcome of one small request to a model: an answer, a 429, or another refusal with the server's message."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_llmbeam.retry_info import retry_after_seconds

ReplyOutcome = Literal["answered", "rejected", "failed"]

_MESSAGE_CHARACTERS = 300
#: Statuses 4xx that the same request may not get a little later.
_PASSING = frozenset({408, 409, 425, 429})
#: Message of OpenAI's reasoning models, with status 400, if the one output token was a reasoning token:
#: https://github.com/spiceai/spiceai/issues/7126
_CUT = "max_tokens or model output limit was reached"
#: Messages of Vertex AI, with 400 or 404, for an endpoint to which a model is still being deployed.
_NOT_DEPLOYED = ("traffic_split", "no deployed model")
#: OpenAI names a daily quota only in its message, e.g. "on requests per day (RPD)".
_DAILY = re.compile(r"\b(per day|[RT]PD)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReply:
    """Outcome of one request.

    Attributes:
        outcome: `answered`, `rejected` (a 429), or `failed`.
        seconds: Time from the request to the end of the reply.
        http_status: HTTP status; `None` if there was no reply.
        message: The server's error message in one line; empty if it answered.
        is_daily: Whether a daily quota or the account's balance is used up, so that a retry within minutes fails.
        retry_after_seconds: Wait that the server advised; `None` if it advised none.
        is_final: Whether waiting will not resolve the refusal, e.g. a wrong key or a model that does not exist.
    """

    outcome: ReplyOutcome
    seconds: float
    http_status: int | None = None
    message: str = ""
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
    """Returns the outcome of a reply.

    Args:
        http_status: HTTP status of the reply.
        headers: Headers of the reply; upper or lower case does not matter.
        text: Body of the reply.
        answer_fields: Names of JSON fields; a body with a value in one of them is an answer.
        seconds: Time from the request to the end of the reply.
        now: Seconds of the Unix epoch.
    """
    body = _json(text)
    message = f"HTTP {http_status}: {_message(body, text)}"
    if http_status == 200:
        if isinstance(body, dict) and any(map(body.get, answer_fields)) and not _is_without_text(body):
            return ProbeReply(outcome="answered", seconds=seconds, http_status=200)
        return ProbeReply(
            outcome="failed",
            seconds=seconds,
            http_status=200,
            message=f"HTTP 200 without an answer: {_line(text)}",
        )
    if http_status == 429:
        return ProbeReply(
            outcome="rejected",
            seconds=seconds,
            http_status=429,
            message=message,
            is_daily=_is_daily(body),
            retry_after_seconds=retry_after_seconds(_header(headers, "retry-after"), _details(body), now),
        )
    if http_status == 400 and _CUT in text:
        return ProbeReply(outcome="answered", seconds=seconds, http_status=400)
    # A body that is not JSON comes from a proxy or a load balancer, which may not know a new address yet.
    refused = 400 <= http_status < 500 and http_status not in _PASSING and isinstance(body, dict)
    return ProbeReply(
        outcome="failed",
        seconds=seconds,
        http_status=http_status,
        message=message,
        retry_after_seconds=retry_after_seconds(_header(headers, "retry-after"), _details(body), now),
        is_final=refused and not any(sign in text.lower() for sign in _NOT_DEPLOYED),
    )


def no_reply(error: Exception, seconds: float) -> ProbeReply:
    """Returns the outcome of a request without a complete reply."""
    return ProbeReply(outcome="failed", seconds=seconds, message=_line(f"{type(error).__name__}: {error}"))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _error(body: Any) -> Mapping[str, Any]:
    # Some of Google's services return the error in a list.
    body = body[0] if isinstance(body, list) and body else body
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def _details(body: Any) -> list[Mapping[str, Any]]:
    found = _error(body).get("details")
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _message(body: Any, text: str) -> str:
    """Returns Google's and OpenAI's `error.message`, vLLM's `message`, FastAPI's `detail`, or the whole body."""
    fields = body if isinstance(body, dict) else {}
    for message in (_error(body).get("message"), fields.get("message"), fields.get("detail"), fields.get("error")):
        if isinstance(message, str) and message.strip():
            return _line(message)
    return _line(text)


def _is_without_text(body: Mapping[str, Any]) -> bool:
    """Whether a chat completion has no text, and not because its only token was cut off."""
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if choice is None or not isinstance(message, dict) or choice.get("finish_reason") == "length":
        return False
    # vLLM's reasoning parsers leave `content` null while the model reasons.
    return not any(isinstance(message.get(name), str) for name in ("content", "reasoning_content", "reasoning"))


def _header(headers: Mapping[str, str], name: str) -> str | None:
    return next((value for key, value in headers.items() if key.lower() == name), None)


def _line(text: str) -> str:
    return " ".join(text.split())[:_MESSAGE_CHARACTERS] or "no message"


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
