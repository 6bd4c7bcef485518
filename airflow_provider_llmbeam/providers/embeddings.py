"""Base class and helpers of the clients of embedding models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.plan import StaticBatching
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.engine.tokens import estimate_tokens


class EmbeddingBackend(ABC):
    """A `StaticBackend` whose replies are vectors.

    Attributes:
        limits: Limits of one request.
    """

    limits: StaticBatching

    async def complete(self, prompt: Prompt) -> Reply:
        """Embeds one text."""
        (reply,) = await self.complete_batch([prompt])
        return reply

    @abstractmethod
    async def complete_batch(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """Sends one request for all texts, exactly once."""

    @abstractmethod
    async def aclose(self) -> None:
        """Closes connections."""


def vector_reply(
    vector: Any, *, input_tokens: int, model: str, estimated_tokens: int = 0, is_truncated: bool = False
) -> Reply:
    """Returns the reply of one vector, which is validated later: the other vectors of the request may be valid."""
    return Reply(
        text="",
        finish_reason="truncated" if is_truncated else "stop",
        tokens=Tokens(input_tokens, estimated=estimated_tokens),
        model=model,
        vector=vector if isinstance(vector, list) else None,
    )


#: Description of a reply without one vector per text, see `json_object`.
NO_VECTORS = "no answer to these texts"


def share_tokens(total: int | None, prompts: Sequence[Prompt]) -> list[int]:
    """Distributes the tokens of a request over its texts by their length; the parts add up to the total.

    Args:
        total: Billed tokens; `None` or 0 if the server does not report them: then the parts are estimates.
        prompts: Prompts of the request.
    """
    estimates = [estimate_tokens(prompt.text) for prompt in prompts]
    if not total:
        return estimates
    shares: list[int] = []
    whole, passed, given = sum(estimates), 0, 0
    for estimate in estimates:
        passed += estimate
        shares.append(total * passed // whole - given)
        given += shares[-1]
    return shares
