"""Asks a model a few small questions, to see what becomes of them: evidence of quota, and of being there."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import requests
from requests import Session
from urllib3.exceptions import HTTPError

from airflow_provider_llmbeam.google_cloud.sessions import with_shared_connections
from airflow_provider_llmbeam.probe.reply import ProbeReply, ReplyOutcome, no_reply, read_reply
from airflow_provider_llmbeam.probe.request import (
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    ProbeRequest,
    probe_request,
)
from airflow_provider_llmbeam.spec.model import Model
from airflow_provider_llmbeam.spec.model.price import Price, price_of

__all__ = ["Probe", "ProbeReply", "Prober", "probe_cost_usd"]

CONNECT_SECONDS = 10.0
REPLY_SECONDS = 60.0
#: Between two requests. A burst is rejected for being one, whatever is left of the quota.
PAUSE_SECONDS = 0.25
#: So many in a row without an answer say what more of them would.
MAX_UNANSWERED = 3
#: Of a reply; a vector of 3,072 numbers is 60 kB.
_MAX_BYTES = 2_000_000
_PIECE_BYTES = 65_536

#: Makes the headers that let a request in, fresh.
Access = Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What became of the requests.

    Attributes:
        replies: In the order that they were sent.
        cost_usd: Of those that were not rejected, at most; `None` where no price is known.
        at: When it began, in seconds of the Unix epoch.
    """

    replies: tuple[ProbeReply, ...]
    cost_usd: float | None
    at: float

    @property
    def sent(self) -> int:
        """Requests sent."""
        return len(self.replies)

    @property
    def answered(self) -> int:
        """Those with an answer."""
        return self._count("answered")

    @property
    def rejected(self) -> int:
        """Those with a 429."""
        return self._count("rejected")

    @property
    def failed(self) -> int:
        """Those with another refusal, or none."""
        return self._count("failed")

    @property
    def rejected_ratio(self) -> float | None:
        """Rejected among those that were answered or rejected, 0 to 1; `None`: there were none."""
        told = self.answered + self.rejected
        return self.rejected / told if told else None

    @property
    def median_seconds(self) -> float | None:
        """Of the answers; `None`: there were none."""
        seconds = [reply.seconds for reply in self.replies if reply.outcome == "answered"]
        return statistics.median(seconds) if seconds else None

    @property
    def is_daily(self) -> bool:
        """Whether a quota of the day is used up."""
        return any(reply.is_daily for reply in self.replies)

    @property
    def retry_after_seconds(self) -> float | None:
        """The longest that the server asked to wait; `None`: it did not say."""
        told = [one.retry_after_seconds for one in self.replies if one.retry_after_seconds is not None]
        return max(told, default=None)

    @property
    def refusal(self) -> ProbeReply | None:
        """The last reply that was no answer."""
        return next((reply for reply in reversed(self.replies) if reply.outcome != "answered"), None)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Probe:
        """Reads what `to_dict` wrote."""
        replies = tuple(ProbeReply(**reply) for reply in data["replies"])
        return cls(replies=replies, cost_usd=data["cost_usd"], at=data["at"])

    def _count(self, outcome: ReplyOutcome) -> int:
        return sum(reply.outcome == outcome for reply in self.replies)


def probe_cost_usd(model: Model, requests: int, price: Price | None = None) -> float | None:
    """What so many requests of a probe cost, in US dollars, at most.

    Args:
        model: The model.
        requests: How many.
        price: What its user says it costs.

    Returns:
        `None` where no price is known: a server of one's own costs by the hour, whatever it is asked.
    """
    known = price_of(model, price)
    return None if known is None else known.cost_usd(INPUT_TOKENS * requests, OUTPUT_TOKENS * requests)


def affordable(model: Model, requests: int, max_usd: float, price: Price | None = None) -> int:
    """How many of the requests a probe may send."""
    one = probe_cost_usd(model, 1, price)
    if not one:
        return max(0, requests)
    return max(0, math.floor(min(requests, max_usd / one + 1e-9)))


class Prober:
    """Asks one model, over plain HTTP and one request after the other. Blocks, in the thread that calls.

    Args:
        model: The model.
        access: Makes the headers that let a request in; called once a probe. See `model_access.ModelAccess`.
        embeds: Asks for vectors.
        price: What its user says it costs.
        reply_seconds: For one reply, to its end.
        pause_seconds: Between two requests.
        now: Seconds of the Unix epoch.
        sleep: Waits so many seconds.

    Raises:
        JobSpecError: The model has no vectors.
    """

    def __init__(
        self,
        model: Model,
        *,
        access: Access,
        embeds: bool = False,
        price: Price | None = None,
        reply_seconds: float = REPLY_SECONDS,
        pause_seconds: float = PAUSE_SECONDS,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._model = model
        self._access = access
        self._request = probe_request(model, embeds=embeds)
        self._price = price
        self._reply_seconds = reply_seconds
        self._pause_seconds = pause_seconds
        self._now = now
        self._sleep = sleep

    def probe(self, requests: int, max_usd: float = math.inf) -> Probe:
        """Sends requests until it is known what becomes of them.

        It ends early at a refusal that waiting does not mend, at a quota of the day, and after
        `MAX_UNANSWERED` in a row without an answer.

        Args:
            requests: How many, at most.
            max_usd: Fewer where they would cost more than this, perhaps none.

        Raises:
            LLMBeamError: There is no key, or no token; nothing was sent.
        """
        started, replies = self._now(), list[ProbeReply]()
        many = affordable(self._model, requests, max_usd, self._price)
        headers = self._access() if many and self._request is not None else {}
        # One connection for all requests. Over plain HTTP none is left for the next probe: a small server closes
        # it after some seconds, perhaps just when that begins.
        with with_shared_connections(Session()) as session:
            while len(replies) < many and not is_enough(replies):
                if replies:
                    self._sleep(self._pause_seconds)
                replies.append(self._ask(session, headers))
        charged = sum(reply.outcome != "rejected" for reply in replies)
        cost = probe_cost_usd(self._model, charged, self._price)
        return Probe(replies=tuple(replies), cost_usd=cost, at=started)

    def _ask(self, session: Session, headers: Mapping[str, str]) -> ProbeReply:
        if self._request is None:
            return ProbeReply(outcome="answered", seconds=0.0)
        started = time.monotonic()
        try:
            http_status, told, text = _sent(session, self._request, headers, self._reply_seconds)
        except (requests.RequestException, HTTPError, OSError, ValueError) as error:
            # requests lets some of urllib3's errors through, and of a damaged address a ValueError.
            return no_reply(error, time.monotonic() - started)
        return read_reply(
            http_status,
            told,
            text,
            answer_fields=self._request.answer_fields,
            seconds=time.monotonic() - started,
            now=self._now(),
        )


def is_enough(replies: list[ProbeReply]) -> bool:
    """Whether another request would say nothing new."""
    if not replies:
        return False
    last = replies[-MAX_UNANSWERED:]
    unanswered = len(last) == MAX_UNANSWERED and all(reply.outcome != "answered" for reply in last)
    return replies[-1].is_final or replies[-1].is_daily or unanswered


def _of_the_headers(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Keeps requests from putting what a netrc file says in the place of the headers."""
    return request


def _sent(
    session: Session, request: ProbeRequest, headers: Mapping[str, str], reply_seconds: float
) -> tuple[int, Mapping[str, str], str]:
    deadline = time.monotonic() + reply_seconds
    with session.post(
        request.url,
        json=request.body,
        headers=dict(headers),
        auth=_of_the_headers,
        timeout=(min(CONNECT_SECONDS, reply_seconds), reply_seconds),
        allow_redirects=False,
        stream=True,
    ) as reply:
        content = bytearray()
        # The timeout above is of each wait for bytes, and a server may send one at a time.
        while piece := reply.raw.read1(_PIECE_BYTES, decode_content=True):
            content += piece
            if time.monotonic() > deadline or len(content) > _MAX_BYTES:
                raise requests.Timeout(f"no whole reply within {reply_seconds:g} s; {len(content)} bytes came")
        return reply.status_code, reply.headers, content.decode("utf-8", "replace")
