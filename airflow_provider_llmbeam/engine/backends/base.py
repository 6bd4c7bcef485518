"""What the engine asks of a model server's client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from airflow_provider_llmbeam.engine.outcome import FailureKind
from airflow_provider_llmbeam.engine.prompt import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A server's answer to one request.

    Attributes:
        text: The completion; empty where a vector was asked for.
        finish_reason: `stop`, `max_tokens`, or the server's own word.
        input_tokens: As billed.
        output_tokens: As billed, thoughts included.
        model: The version that answered.
        first_token_seconds: From sending to the first text, when the answer was streamed.
        vector: The embedding, as the server sent it.
    """

    text: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    model: str
    first_token_seconds: float | None = None
    vector: Sequence[float] | None = None


class Backend(Protocol):
    """One shared client of one model server. Used from one event loop."""

    async def complete(self, prompt: Prompt) -> Reply:
        """Sends one request, exactly once.

        Raises:
            RequestError: The server refused, failed or spoke garbage, or the connection broke.
        """
        ...

    async def aclose(self) -> None:
        """Closes connections."""
        ...


@runtime_checkable
class StaticBackend(Backend, Protocol):
    """A client of a server that takes several prompts per request and pads them to the longest."""

    async def complete_batch(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """Sends one request for all prompts, exactly once.

        Returns:
            One reply per prompt, in order.

        Raises:
            RequestError: As `complete` does; no prompt has an answer then.
        """
        ...


def kind_of_status(http_status: int) -> FailureKind:
    """Sorts an HTTP error status."""
    match http_status:
        case 429:
            return "throttled"
        case 401 | 403:
            return "unauthorized"
        case 404:
            return "not_found"
        case 408:
            return "timeout"
        case status if status >= 500:
            return "server_error"
    return "bad_request"
