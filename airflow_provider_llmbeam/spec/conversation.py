"""Conversations: rows of one key that are asked in order, each with its history."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.fields.text import from_text


class Conversation(SpecModel):
    """Asks the rows of one key in order, each with the turns before it.

    A turn is a row with an answer. Its prompt and its answer are sent as chat messages before the prompt of each
    later row of the key, in the same run and in later ones.

    Attributes:
        key: Columns whose values name the conversation, e.g. `["user_id"]`. One column may be given by its name
            alone.
        order_by: Column that orders the rows of a conversation, e.g. the time of the message; equal values are
            ordered by the key of the row. Numbers, and texts that are numbers, are compared as numbers, other
            texts by their characters, as fits times in ISO 8601 in one time zone. `None`: the key of the row.
        ttl_days: Time for which an answered turn is part of the history, in days after its answer. Then it is
            removed.
        max_turns: Maximum number of turns in a history; the oldest ones are left out.
    """

    key: Annotated[tuple[str, ...], Field(min_length=1)]
    order_by: str | None = None
    ttl_days: Annotated[float, Field(gt=0, le=3650)] = 30.0
    max_turns: Annotated[int, Field(ge=1, le=1000)] = 20

    @field_validator("key", mode="before")
    @classmethod
    def _one_column(cls, key: Any) -> Any:
        found = from_text(key)
        return (found,) if isinstance(found, str) else found
