"""Outcome of one small request to a model: an answer, a 429, or another refusal with the server's message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.transport.server_reply import (
    PASSING_STATUSES,
    ErrorBody,
    advised_wait_seconds,
    list_of,
    parse_json,
    read_error,
)

if TYPE_CHECKING:
    from airflow_provider_llmbeam.transport.redirects import RedirectRefusedError

ReplyOutcome = Literal["answered", "rejected", "failed"]

_MESSAGE_CHARACTERS = 300
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
    body, error = parse_json(text), read_error(text)
    message = f"HTTP {http_status}: {_line(error.message)}"
    advised = advised_wait_seconds(headers, error.details, now)
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
            is_daily=_is_daily(error),
            retry_after_seconds=advised,
        )
    if http_status == 400 and _CUT in text:
        return ProbeReply(outcome="answered", seconds=seconds, http_status=400)
    # A body that is not JSON comes from a proxy or a load balancer, which may not know a new address yet.
    refused = 400 <= http_status < 500 and http_status not in PASSING_STATUSES and isinstance(body, dict)
    return ProbeReply(
        outcome="failed",
        seconds=seconds,
        http_status=http_status,
        message=message,
        retry_after_seconds=advised,
        is_final=refused and not any(sign in text.lower() for sign in _NOT_DEPLOYED),
    )


def no_reply(error: Exception, seconds: float) -> ProbeReply:
    """Returns the outcome of a request without a complete reply."""
    return ProbeReply(outcome="failed", seconds=seconds, message=_line(f"{type(error).__name__}: {error}"))


def redirected(error: RedirectRefusedError, seconds: float) -> ProbeReply:
    """Returns the outcome of a request that the server redirects."""
    return ProbeReply(
        outcome="failed",
        seconds=seconds,
        http_status=None if error.response is None else error.response.status_code,
        message=_line(f"{error}. If that is the right server, set `model.base_url` to its address."),
        is_final=True,
    )


def _is_without_text(body: Mapping[str, Any]) -> bool:
    """Whether a chat completion has no text, and not because its only token was cut off."""
    choice = next(iter(list_of(body.get("choices"))), None)
    message = choice.get("message") if isinstance(choice, dict) else None
    if choice is None or not isinstance(message, dict) or choice.get("finish_reason") == "length":
        return False
    # vLLM's reasoning parsers leave `content` null while the model reasons.
    return not any(isinstance(message.get(name), str) for name in ("content", "reasoning_content", "reasoning"))


def _line(text: str) -> str:
    return " ".join(valid_text(text).split())[:_MESSAGE_CHARACTERS] or "no message"


def _is_daily(error: ErrorBody) -> bool:
    return error.code == "insufficient_quota" or _DAILY.search(error.message) is not None or error.is_per_day
