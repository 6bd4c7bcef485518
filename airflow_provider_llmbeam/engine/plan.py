"""plan: in which order the prompts of a batch are asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.tokens import estimate_tokens


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request: one prompt of the batch.

    Attributes:
        index: Position in the batch.
        input_tokens: Estimate.
    """

    index: int
    input_tokens: int


def plan(prompts: Sequence[Prompt]) -> list[PlannedRequest]:
    """Orders a batch for a server that answers one prompt per request: longest first.

    Starting with the longest keeps the last window of the batch short: what is still under way at the end is
    cheap. Equal lengths keep their order.
    """
    requests = [
        PlannedRequest(
            index, estimate_tokens(prompt.text) + (estimate_tokens(prompt.system) if prompt.system else 0)
        )
        for index, prompt in enumerate(prompts)
    ]
    return sorted(requests, key=lambda request: -request.input_tokens)
