"""The smallest request that each type of model takes: about ten tokens in, one out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.registry import part_of
from airflow_provider_llmbeam.spec.model import Model

INPUT_TOKENS = 10
OUTPUT_TOKENS = 1

QUESTION = "Say OK."


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """Request, and the mark of an answer.

    Attributes:
        url: Full URL.
        body: Body, before it is encoded as JSON.
        answer_fields: Names of JSON fields; a reply with a value in one of them is an answer.
    """

    url: str
    body: Mapping[str, Any]
    answer_fields: frozenset[str]


@dataclass(frozen=True, slots=True)
class ModelList:
    """Request for the models that a key can use, which is free.

    Attributes:
        url: Full URL.
        models_field: Name of the field of a reply that has the models.
        params: Parameters of the URL.
    """

    url: str
    models_field: str
    params: Mapping[str, str] = field(default_factory=dict)


def probe_request(model: Model, *, embeds: bool = False) -> ProbeRequest | None:
    """Returns the request that a job would send, at its smallest; `None` if the model has no server.

    Args:
        model: The model.
        embeds: Whether to ask for a vector; an embedding model of Gemini is always asked for one.

    Raises:
        JobSpecError: The model returns no vectors.
    """
    if embeds and not model.api.embeds:
        raise JobSpecError(
            f"A model of type {model.type!r} generates only text; got `embeds=True` for {model.name!r}."
        )
    part = part_of(model, "probe")
    found: ProbeRequest | None = part and part.probe_request(model, embeds=embeds)
    return found


def make_request(url: str, body: Mapping[str, Any], *answer_fields: str) -> ProbeRequest:
    """Returns a request whose answer has a value in one of these fields."""
    return ProbeRequest(url, body, frozenset(answer_fields))
