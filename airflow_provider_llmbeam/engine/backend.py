"""The interface of the clients of model servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from airflow_provider_llmbeam.engine.logprobs import TokenLogprob
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.engine.value import value
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind
from airflow_provider_llmbeam.spec.model.tier import ServiceTier
from airflow_provider_llmbeam.transport.server_reply import PASSING_STATUSES, ErrorBody, advised_wait_seconds

#: Takes the text of a streamed answer, piece by piece; `None` if nobody listens. The tasks that send a request
#: inherit it from the one that has called `Engine.answer`.
ON_TEXT: ContextVar[Callable[[str], None] | None] = ContextVar("ON_TEXT", default=None)


@value(kw_only=True)
class Reply:
    """A server's answer to one request.

    Attributes:
        text: The completion; empty for an embedding.
        finish_reason: `stop`, `max_tokens`, or the value of the server.
        tokens: Billed tokens.
        model: Version of the model.
        service_tier: Tier at which it was served.
        first_token_seconds: Time from the request to the first text, in seconds, for a streamed answer.
        vector: The embedding, as sent by the server.
        mean_logprob: Mean natural logarithm of the probabilities of the tokens, if it was asked for.
        token_logprobs: The tokens, each with the natural logarithm of its probability, as far as they were sent.
        score_logprob: See `Completion`.
        reasoning: What the model wrote before the text, as far as the server sends it.
        mended: 1 if its text was mended without another request, see `engine.mending`.
        citations: Pages that a search found and the answer uses, see `Completion`.
    """

    text: str
    finish_reason: str
    tokens: Tokens
    model: str
    service_tier: ServiceTier = "standard"
    first_token_seconds: float | None = None
    vector: Sequence[float] | None = None
    mean_logprob: float | None = None
    token_logprobs: Sequence[TokenLogprob] = ()
    score_logprob: float | None = None
    reasoning: str = ""
    mended: int = 0
    citations: list[dict[str, Any]] | None = None

    def facts(self) -> dict[str, Any]:
        """Returns the fields that a `Completion` has as they are."""
        return {
            "text": self.text,
            "model": self.model,
            "finish_reason": self.finish_reason,
            "first_token_seconds": self.first_token_seconds,
            "service_tier": self.service_tier,
            "mean_logprob": self.mean_logprob,
            "score_logprob": self.score_logprob,
            "citations": self.citations,
            "reasoning": self.reasoning or None,
            "mended": self.mended,
        }


class Backend(Protocol):
    """The client of a model server, used from one event loop."""

    async def complete(self, prompt: Prompt) -> Reply:
        """Sends one request, exactly once.

        Raises:
            RequestError: The server rejected the request, failed or sent an invalid response, or the connection
                broke.
        """
        ...

    async def aclose(self) -> None:
        """Closes connections."""
        ...


@runtime_checkable
class StaticBackend(Backend, Protocol):
    """The client of a server that takes several prompts per request and pads them to the longest."""

    async def complete_batch(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """Sends one request for all prompts, exactly once.

        Returns:
            One reply per prompt, in order.

        Raises:
            RequestError: As for `complete`; no prompt has an answer then.
        """
        ...


def kind_of_status(http_status: int) -> FailureKind:
    """Returns the kind of failure of an HTTP error status."""
    match http_status:
        case 402:  # of DeepSeek and OpenRouter: the account has no balance, like OpenAI's `insufficient_quota`
            return "quota_exhausted"
        case 429:
            return "throttled"
        case 401 | 403:
            return "unauthorized"
        case 404:
            return "not_found"
        case 408:
            return "timeout"
        case status if status in PASSING_STATUSES or status >= 500:
            return "server_error"
    return "bad_request"


def error_of_response(
    kind: FailureKind, http_status: int, headers: Mapping[str, str], body: ErrorBody, category: str | None = None
) -> RequestError:
    """Returns the error of a response, with the wait that its headers or its body advise."""
    return RequestError(
        kind,
        body.message or f"HTTP {http_status} without a message",
        http_status=http_status,
        retry_after_seconds=advised_wait_seconds(headers, body.details, time.time()),
        category=category,
        quota_unit=body.quota_unit,
    )
