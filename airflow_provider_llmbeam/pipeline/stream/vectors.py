"""Vectors of answers, for sinks that store vectors: asked of a model of its own, with the journal of the job."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from airflow_provider_llmbeam.engine.outcome import Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow
from airflow_provider_llmbeam.pipeline.engine_thread import EngineThread
from airflow_provider_llmbeam.pipeline.stream.batches import Batches
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model import Embedding
from airflow_provider_llmbeam.spec.sink import AnswerVectors, Sink

#: Column of a stored row with the text that its vector is of.
TEXT = "llmbeam_text"


def embedding_of(sink: Sink) -> AnswerVectors | None:
    """Returns what makes the vectors that a sink stores instead of the answers; `None` for none."""
    embed: AnswerVectors | None = getattr(sink, "embed", None)
    return embed


def vector_job(spec: JobSpec, sink: Sink, embed: AnswerVectors) -> JobSpec:
    """Returns the job that makes the vectors of a sink.

    Raises:
        JobSpecError: Its model makes none, or it cannot be in this sink.
    """
    kept = {"name", "deployment", "owner", "airflow_run", "trace_id", "source", "state_uri", "kms_key_name"}
    limits = embed.limits.model_copy(update={"budget": spec.limits.budget})
    parts: dict[str, Any] = {
        "task": "embed",
        "embedding": embed.model_dump(mode="json", include={*Embedding.model_fields}),
        "model": embed.model.model_dump(mode="json"),
        "limits": limits.model_dump(mode="json"),
        "prompt": {"template": "{{ row.text }}"},
        "sink": sink.model_dump(mode="json"),
    }
    try:
        return JobSpec.parse({**spec.model_dump(mode="json", include=kept), **parts})
    except JobSpecError as error:
        raise JobSpecError(f"`sink.embed`, as a job of its own: {error}") from None


def text_to_embed(answered: AnsweredRow, field: str) -> str:
    """Returns the text of an answer that becomes a vector; "" for none.

    Args:
        answered: The answer.
        field: `answer`, a field of its value, or a column of its row.
    """
    value: Any = answered.completion.text if (parsed := answered.completion.parsed) is None else parsed
    if field != "answer":
        value = parsed[field] if isinstance(parsed, dict) and field in parsed else answered.row.get(field)
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


class AnswerEmbedder:
    """Makes the vectors of one sink.

    Args:
        job: Its job, see `vector_job`.
        thread: Its engine.
        wait_seconds: Longest time for which a text waits for others, in seconds.
    """

    def __init__(self, job: JobSpec, thread: EngineThread, wait_seconds: float) -> None:
        embed = embedding_of(job.sink)
        assert embed is not None
        self.field = embed.field
        self._fingerprint = job.fingerprinter()
        self._thread = thread
        self._batches = Batches(self._answer, thread.max_instances, wait_seconds)

    def request(self, text: str) -> tuple[str, Prompt]:
        """Returns the fingerprint of the request for the vector of a text, and the request."""
        return self._fingerprint(text, None), Prompt(text)

    async def send(self, prompt: Prompt) -> Outcome:
        """Asks for a vector."""
        return await self._batches.send(prompt)

    async def _answer(self, prompts: list[Prompt]) -> list[Outcome]:
        return await asyncio.wrap_future(self._thread.submit(prompts))
