"""What the clients of embedding models have in common: many texts in, one vector for each out."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from airflow_provider_llmbeam.engine.backends.base import Reply
from airflow_provider_llmbeam.engine.plan import StaticBatching
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.tokens import estimate_tokens


class EmbeddingBackend(ABC):
    """A `StaticBackend` whose replies are vectors.

    Attributes:
        limits: What the API takes in one request.
    """

    limits: StaticBatching

    async def complete(self, prompt: Prompt) -> Reply:
        """Embeds one text by itself."""
        (reply,) = await self.complete_batch([prompt])
        return reply

    @abstractmethod
    async def complete_batch(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """Sends one request for all texts, exactly once."""

    @abstractmethod
    async def aclose(self) -> None:
        """Closes connections."""


def vector_reply(vector: Any, *, input_tokens: int, model: str, is_truncated: bool = False) -> Reply:
    """Makes a reply of a vector; whether it is one is seen later, as its neighbours may be all right."""
    return Reply(
        text="",
        finish_reason="truncated" if is_truncated else "stop",
        input_tokens=input_tokens,
        output_tokens=0,
        model=model,
        vector=vector if isinstance(vector, list) else None,
    )


def read_json(content: bytes) -> dict[str, Any]:
    """Reads the body of a 200.

    Raises:
        RequestError: It is no JSON object.
    """
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise no_embeddings(content)
    return body


def no_embeddings(content: bytes) -> RequestError:
    """What a 200 is that does not hold one vector per text."""
    words = content[:500].decode("utf-8", "replace")
    return RequestError("garbage", f"a 200 that is no answer to these texts: {words}", http_status=200)


def shared_out(total: int | None, prompts: Sequence[Prompt]) -> list[int]:
    """Shares the tokens of a request out over its texts by their length, so that the shares add up to the total.

    Args:
        total: As billed; `None` where the server does not say: then the shares are estimates.
        prompts: Of the request.
    """
    estimates = [estimate_tokens(prompt.text) for prompt in prompts]
    if total is None:
        return estimates
    shares: list[int] = []
    whole, passed, given = sum(estimates), 0, 0
    for estimate in estimates:
        passed += estimate
        shares.append(total * passed // whole - given)
        given += shares[-1]
    return shares
