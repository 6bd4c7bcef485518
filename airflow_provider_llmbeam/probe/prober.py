"""Sends small requests to a model: evidence of free quota and of readiness."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import requests
from urllib3.exceptions import HTTPError

from airflow_provider_llmbeam.hooks.google.sessions import with_shared_connections
from airflow_provider_llmbeam.probe.reply import ProbeReply, ReplyOutcome, no_reply, read_reply, redirected
from airflow_provider_llmbeam.providers.probe import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    probe_request,
)
from airflow_provider_llmbeam.providers.rest import RestClient, session_with
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.model import Model
from airflow_provider_llmbeam.spec.model.price import Price, price_of
from airflow_provider_llmbeam.transport.redirects import RedirectRefusedError

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
        with with_shared_connections(session_with(lambda: headers)) as session:
            http = RestClient(session, self._model.api.service)
            while len(replies) < many and not is_enough(replies):
                if replies:
                    self._sleep(self._pause_seconds)
                reply = self._ask(http)
                replies.append(replace(reply, message=redact(reply.message, _credentials(headers))))
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
            return redirected(error, time.monotonic() - started)
        except (requests.RequestException, HTTPError, OSError, ValueError) as error:
            # requests lets some of urllib3's errors through, and of a damaged address a ValueError.
            return no_reply(error, time.monotonic() - started)
        return read_reply(
            *reply,
            answer_fields=self._request.answer_fields,
            seconds=time.monotonic() - started,
            now=self._now(),
        )


def _credentials(headers: Mapping[str, str]) -> list[str]:
    """Returns the keys and tokens of authentication headers, which a server may quote in an error."""
    return [value.rpartition(" ")[2] for name, value in headers.items() if name.lower() != "x-goog-user-project"]


def is_enough(replies: list[ProbeReply]) -> bool:
    """Whether another request would add no evidence."""
    if not replies:
        return False
    last = replies[-MAX_UNANSWERED:]
    unanswered = len(last) == MAX_UNANSWERED and all(reply.outcome != "answered" for reply in last)
    return replies[-1].is_final or replies[-1].is_daily or unanswered
