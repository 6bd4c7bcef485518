"""One request to a model, the same for every API, and the protocol of the APIs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from aiohttp import web

from llmbeam_sandbox.billing.tokens import Labels, Tier
from llmbeam_sandbox.core.faults import Fault
from llmbeam_sandbox.core.methods import Method
from llmbeam_sandbox.core.records import ReceivedMedia, RequestType
from llmbeam_sandbox.core.responses import HTML_PAGE, Reply
from llmbeam_sandbox.models.answers import Answer
from llmbeam_sandbox.models.quota import Rejection
from llmbeam_sandbox.models.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One request to a model, the same for every API.

    Attributes:
        model: Model name of the request.
        prompt: All user text, parts joined by a line break.
        system: System text, or "".
        input_tokens: Tokens of `system` and `prompt`.
        prompt_sha256: Hash of `system` and `prompt`.
        schema: Schema of the answer; None requests text.
        is_enum: Whether the answer is a bare enum value, not JSON.
        max_output_tokens: Maximum length of the answer, in tokens; None is no limit.
        is_streamed: Whether the answer is sent in pieces.
        has_usage: Whether a streamed answer reports its tokens.
        is_blocked: Whether the emulated safety filter blocks the prompt.
        texts: Texts to embed; `prompt` then holds all of them.
        dimensions: Dimensions of the vectors; None is the model's own number.
        is_base64: Whether vectors are encoded as base64 of 32-bit numbers.
        is_raw: Whether the answer omits the prompt.
        parts: Prompts to answer one by one; `prompt` then holds all of them.
        media: Images, audio, video and documents.
        cached_tokens: Those of `input_tokens` that a cached content has, or the cache of prompts of Claude.
        cache_write_tokens: Those of `input_tokens` that are written to that cache.
        cache_key: Key in that cache; "" for what is not stored.
        tier: Tier that the request asks for, and then the one that serves it.
        asked_type: What the request asks to be served by: "dedicated" is Provisioned Throughput alone, "shared"
            never, "" first.
        request_type: What has served it.
        labels: Labels for the bill, by key.
        has_logprobs: Whether the answer reports the probabilities of its tokens.
        searches: Whether the answer reports pages of a search.
        thoughts: Thoughts that are shown before the answer; None if the model does not think.
        turns: Text of each message of a conversation, of the user and of the model in turn; empty for one message.
    """

    model: str
    prompt: str
    system: str
    input_tokens: int
    prompt_sha256: str
    schema: Schema | None = None
    is_enum: bool = False
    max_output_tokens: int | None = None
    is_streamed: bool = False
    has_usage: bool = True
    is_blocked: bool = False
    texts: tuple[str, ...] = ()
    dimensions: int | None = None
    is_base64: bool = False
    is_raw: bool = False
    parts: tuple[ModelCall, ...] = ()
    media: tuple[ReceivedMedia, ...] = ()
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    cache_key: str = ""
    tier: Tier = "standard"
    asked_type: str = ""
    request_type: RequestType = "shared"
    labels: Labels = ()
    has_logprobs: bool = False
    searches: bool = False
    thoughts: str | None = None
    turns: tuple[str, ...] = ()

    @property
    def audio_tokens(self) -> int:
        """Those of `input_tokens` that are of audio; none of them is cached."""
        return sum(file.tokens for file in self.media if file.mime_type.startswith("audio/"))


def asked_tier(name: object) -> Tier:
    """Returns the tier that a request asks for by a name; the standard one by any other name."""
    return "flex" if name == "flex" else "priority" if name == "priority" else "standard"


class Dialect(Protocol):
    """Parser of the requests of one API method, and formatter of its answers and errors."""

    @property
    def method(self) -> Method:
        """The method."""

    @property
    def is_metered(self) -> bool:
        """Whether a call is charged to the quota, takes time and is billed."""

    @property
    def location(self) -> str:
        """Location of the quota that a call is charged to; "" for paths without a location."""

    @property
    def resource(self) -> str:
        """Name of the resource in the request log."""

    def read(self, request: web.Request, body: bytes) -> ModelCall:
        """Reads and checks a request; raises `RefusedError` when the service would refuse it."""

    def answer(self, call: ModelCall, answer: Answer, answer_id: str) -> Reply:
        """Returns the reply with an answer."""

    def error(self, http_status: int, message: str) -> Reply:
        """Returns the reply with an error; an empty message gives the service's usual one."""

    def quota_exceeded(self, call: ModelCall, rejection: Rejection | None, delay: float | None) -> Reply:
        """Returns a 429; `rejection` is None when a fault caused it. `delay` in seconds."""

    def stream_error(self, reply: Reply, error: Reply) -> Reply:
        """Returns the reply with an error after the first chunk of a streamed one."""


@runtime_checkable
class StatesLimits(Protocol):
    """A dialect whose replies state the limits of the account."""

    def limit_headers(
        self, call: ModelCall, limits: Mapping[str, tuple[int, int, float]], now: float
    ) -> Mapping[str, str]:
        """Returns the headers of `QuotaLedger.stated`."""


class RowDialect(Dialect, Protocol):
    """Parser and formatter of the requests of batch inference, which come without an HTTP request each."""

    def parse(self, body: bytes) -> ModelCall:
        """Reads and checks a body; raises `RefusedError` when the service would refuse it."""


class RefusedError(Exception):
    """The service refuses a request; carries the reply to send."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.body.decode())
        self.reply = reply


def preempting(fault: Fault, dialect: Dialect, call: ModelCall) -> Reply | None:
    """Returns the reply that a fault sends instead of an answer; None when the model is called."""
    match fault.kind:
        case "error":
            reply = dialect.error(fault.http_status or 500, fault.message)
            advice = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
            return replace(reply, headers={**reply.headers, **advice})
        case "stream-error" if not call.is_streamed:
            return dialect.error(fault.http_status or 500, fault.message)
        case "rate-limit":
            return dialect.quota_exceeded(call, None, fault.retry_delay_seconds)
        case "garbage":
            return Reply(chunks=(HTML_PAGE,), content_type="text/html; charset=UTF-8")
        case "garbage-json":
            return Reply(chunks=(HTML_PAGE,))
        case _:
            return None


def damaged(fault: Fault | None, dialect: Dialect, reply: Reply) -> Reply:
    """Returns the reply as a fault of kind `truncated` or `stream-error` changes it."""
    if fault is None or reply.http_status != 200:
        return reply
    if fault.kind == "truncated":
        return replace(reply, chunks=(reply.body[: len(reply.body) // 2],), is_streamed=False)
    if fault.kind == "stream-error":
        return dialect.stream_error(reply, dialect.error(fault.http_status or 500, fault.message))
    return reply
