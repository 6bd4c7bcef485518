"""Conversations: rows of one key that are asked in order, each with its history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.base import FieldFaultError, SpecModel
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.model import VertexEndpointModel

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job import JobSpec


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

    def find_fault(self, spec: JobSpec) -> FieldFaultError | None:
        """Returns why the conversations of a job cannot work, or `None`."""
        safety, inference, source, model = spec.safety, spec.inference, spec.source, spec.model
        judged = () if safety.moderation is None else safety.moderation.on
        on_altered = None if safety.privacy is None else safety.privacy.on_altered
        request_format = model.request_format if isinstance(model, VertexEndpointModel) else "chat"
        faults: tuple[tuple[bool, str, str, Any], ...] = (
            (
                spec.state_uri is None,
                "state_uri",
                "this field is needed with `conversation`: the history of each key is kept there between runs",
                None,
            ),
            (
                spec.embedding is not None,
                "task",
                "must be 'generate' with `conversation`: a vector answers nobody",
                spec.task,
            ),
            (
                inference.mode != "online",
                "inference.mode",
                "must be 'online' with `conversation`: a turn is sent with the answer before it, and batch "
                "inference answers after hours",
                inference.mode,
            ),
            (
                inference.needs_pilot,
                "inference.finish_by",
                f"must be left out with `conversation` and service tier {inference.service_tier!r}: the time of "
                "the run is that of its longest conversation, which is not predicted",
                inference.finish_by,
            ),
            (
                bool(spec.prompt.media),
                "prompt.media",
                "must be left out with `conversation`: a history has texts alone",
                list(spec.prompt.media),
            ),
            (
                request_format != "chat",
                "model.request_format",
                "must be 'chat' for `conversation`: other formats have one text, and no turns",
                request_format,
            ),
            (
                "output" in judged,
                "safety.moderation.on",
                "must be ['input'] with `conversation`: an answer is part of the next request before a guard has "
                "judged it",
                judged,
            ),
            (
                on_altered == "repair",
                "safety.privacy.on_altered",
                "must be 'keep' or 'fail' with `conversation`: the next turn is sent before an answer is repaired",
                on_altered,
            ),
            (
                source.on_duplicate_key == "allow",
                "source.on_duplicate_key",
                "must not be 'allow' with `conversation`: the key of a row names its turn",
                source.on_duplicate_key,
            ),
            (
                source.share != (0.0, 1.0),
                "source.share",
                "must be left out with `conversation`: it divides rows, and so the turns of one conversation",
                source.share,
            ),
        )
        return next((FieldFaultError(*fault) for is_met, *fault in faults if is_met), None)


def refuse_conversation(spec: JobSpec, task: str) -> None:
    """Refuses a job with conversations for a task that sends single prompts.

    Args:
        spec: The job.
        task: What sends them, as the subject of a sentence.

    Raises:
        JobSpecError: The job has conversations.
    """
    if spec.conversation is not None:
        raise JobSpecError(
            f"`conversation`: {task} sends each prompt without its history, so that the answers would differ from "
            "those of the job; leave the field out here."
        )
