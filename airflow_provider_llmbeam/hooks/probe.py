"""Sends small requests to a model, and judges the replies: evidence of free quota and of readiness."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import requests
from urllib3.exceptions import HTTPError

from airflow_provider_llmbeam.hooks.google.sessions import with_shared_connections
from airflow_provider_llmbeam.providers.access import secrets_in
from airflow_provider_llmbeam.providers.probe import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    probe_request,
)
from airflow_provider_llmbeam.providers.rest import RestClient, session_with
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.spec.model import Model
from airflow_provider_llmbeam.spec.model.price import Price, price_of
from airflow_provider_llmbeam.transport.redirects import RedirectRefusedError
from airflow_provider_llmbeam.transport.server_reply import (
    PASSING_STATUSES,
    ErrorBody,
    advised_wait_seconds,
    list_of,
    parse_json,
    read_error,
    stated_limits,
)

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
        limits: Limits that the server states, see `stated_limits`.
    """

    outcome: ReplyOutcome
    seconds: float
    http_status: int | None = None
    message: str = ""
    is_daily: bool = False
    retry_after_seconds: float | None = None
    is_final: bool = False
    limits: Mapping[str, Sequence[float]] = field(default_factory=dict)


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


def read_redirect(error: RedirectRefusedError, seconds: float) -> ProbeReply:
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


__all__ = ["Probe", "ProbeReply", "Prober", "probe_cost_usd"]

REPLY_SECONDS = 60.0
#: Pause between two requests. A burst may be rejected as such, even if quota is left.
PAUSE_SECONDS = 0.25
#: Consecutive requests without an answer, after which more requests would add no evidence.
MAX_UNANSWERED = 3

#: Returns the authentication headers of a request, with a token that has not expired.
Authenticate = Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Results of the requests.

    Attributes:
        replies: One result per request, in the order in which they were sent.
        cost_usd: Upper bound of the cost of the requests that were not rejected; `None` if no price is known.
        at: Time of the first request, in seconds of the Unix epoch.
    """

    replies: tuple[ProbeReply, ...]
    cost_usd: float | None
    at: float

    @property
    def sent(self) -> int:
        """Number of requests."""
        return len(self.replies)

    @property
    def answered(self) -> int:
        """Number of requests that were answered."""
        return self._count("answered")

    @property
    def rejected(self) -> int:
        """Number of requests that were rejected with a 429."""
        return self._count("rejected")

    @property
    def failed(self) -> int:
        """Number of requests with another refusal, or without a reply."""
        return self._count("failed")

    @property
    def rejected_ratio(self) -> float | None:
        """Rejected requests over those answered or rejected, 0 to 1; `None` if there are none."""
        total = self.answered + self.rejected
        return self.rejected / total if total else None

    @property
    def median_seconds(self) -> float | None:
        """Median latency of the answers, in seconds; `None` if there are none."""
        seconds = [reply.seconds for reply in self.replies if reply.outcome == "answered"]
        return statistics.median(seconds) if seconds else None

    @property
    def is_daily(self) -> bool:
        """Whether a daily quota is used up."""
        return any(reply.is_daily for reply in self.replies)

    @property
    def retry_after_seconds(self) -> float | None:
        """Longest wait that the server advised, in seconds; `None` if it advised none."""
        advised = [one.retry_after_seconds for one in self.replies if one.retry_after_seconds is not None]
        return max(advised, default=None)

    @property
    def limits(self) -> Mapping[str, Sequence[float]]:
        """The limits that the server has stated last, see `stated_limits`."""
        return next((reply.limits for reply in reversed(self.replies) if reply.limits), {})

    @property
    def refusal(self) -> ProbeReply | None:
        """The last reply without an answer; `None` if every request was answered."""
        return next((reply for reply in reversed(self.replies) if reply.outcome != "answered"), None)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Probe:
        """Reads what `to_dict` returned."""
        replies = tuple(ProbeReply(**reply) for reply in data["replies"])
        return cls(replies=replies, cost_usd=data["cost_usd"], at=data["at"])

    def _count(self, outcome: ReplyOutcome) -> int:
        return sum(reply.outcome == outcome for reply in self.replies)


def probe_cost_usd(model: Model, requests: int, price: Price | None = None) -> float | None:
    """Returns an upper bound of the cost of a probe, in US dollars.

    Args:
        model: The model.
        requests: Number of requests.
        price: Price that the user states, which precedes the list price.

    Returns:
        `None` if no price is known: a self-hosted server is billed by the hour, not by the request.
    """
    known = price_of(model, price)
    return None if known is None else known.cost_usd(INPUT_TOKENS, OUTPUT_TOKENS) * requests


def affordable(model: Model, requests: int, max_usd: float, price: Price | None = None) -> int:
    """Returns how many of the requests a probe can send for `max_usd`."""
    one = probe_cost_usd(model, 1, price)
    if not one:
        return max(0, requests)
    return max(0, math.floor(min(requests, max_usd / one + 1e-9)))


class Prober:
    """Sends requests to one model over plain HTTP, one after the other. Blocks the calling thread.

    Args:
        model: The model.
        authenticate: Returns the authentication headers; called once per probe. See `ModelAuthentication`.
        embeds: Whether the requests ask for vectors.
        price: Price that the user states, which precedes the list price.
        reply_seconds: Timeout of one request, to the end of its reply.
        pause_seconds: Pause between two requests.
        now: Seconds of the Unix epoch.
        sleep: Sleeps for a number of seconds.

    Raises:
        JobSpecError: The model returns no vectors.
    """

    def __init__(
        self,
        model: Model,
        *,
        authenticate: Authenticate,
        embeds: bool = False,
        price: Price | None = None,
        reply_seconds: float = REPLY_SECONDS,
        pause_seconds: float = PAUSE_SECONDS,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._model = model
        self._authenticate = authenticate
        self._request = probe_request(model, embeds=embeds)
        self._price = price
        self._reply_seconds = reply_seconds
        self._pause_seconds = pause_seconds
        self._now = now
        self._sleep = sleep

    def probe(self, requests: int, max_usd: float = math.inf) -> Probe:
        """Sends requests until more of them would add no evidence.

        It ends early at a refusal that waiting will not resolve, at a used-up daily quota, and after
        `MAX_UNANSWERED` consecutive requests without an answer.

        Args:
            requests: Largest number of requests.
            max_usd: Largest cost of the requests; 0 sends none to a model that has a price.

        Raises:
            LLMBeamError: There is no API key or token; nothing was sent.
        """
        started, replies = self._now(), list[ProbeReply]()
        many = affordable(self._model, requests, max_usd, self._price)
        headers = self._authenticate() if many and self._request is not None else {}
        # One connection for all requests. Over plain HTTP it is not kept for the next probe: a small server closes
        # it after some seconds, perhaps just when the next probe starts.
        with with_shared_connections(session_with(lambda: headers, self._model.api)) as session:
            http = RestClient(session, self._model.api.service)
            while len(replies) < many and not is_enough(replies):
                if replies:
                    self._sleep(self._pause_seconds)
                reply = self._ask(http)
                replies.append(replace(reply, message=redact(reply.message, secrets_in(headers))))
        charged = sum(reply.outcome != "rejected" for reply in replies)
        cost = probe_cost_usd(self._model, charged, self._price)
        return Probe(replies=tuple(replies), cost_usd=cost, at=started)

    def _ask(self, http: RestClient) -> ProbeReply:
        if self._request is None:
            return ProbeReply(outcome="answered", seconds=0.0)
        started = time.monotonic()
        try:
            reply = http.exchange(self._request.url, self._request.body, self._reply_seconds)
        except RedirectRefusedError as error:
            return read_redirect(error, time.monotonic() - started)
        except (requests.RequestException, HTTPError, OSError, ValueError) as error:
            # requests lets some of urllib3's errors through, and of a damaged address a ValueError.
            return no_reply(error, time.monotonic() - started)
        read = read_reply(
            *reply,
            answer_fields=self._request.answer_fields,
            seconds=time.monotonic() - started,
            now=self._now(),
        )
        return replace(read, limits=stated_limits(reply[1]))


def is_enough(replies: list[ProbeReply]) -> bool:
    """Whether another request would add no evidence."""
    if not replies:
        return False
    last = replies[-MAX_UNANSWERED:]
    unanswered = len(last) == MAX_UNANSWERED and all(reply.outcome != "answered" for reply in last)
    return replies[-1].is_final or replies[-1].is_daily or unanswered
