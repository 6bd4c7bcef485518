"""Models that a job asks besides its own, with what their connections provide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.literal import plain
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.model import model_data


class OtherModels:
    """Adds to models besides that of the job what their connections provide.

    Args:
        job_model: Model of the job, as plain data.
        llmbeam_conn_id: Its connection, which models of the same type use as well.
        environment: Variables with the secrets of the job; those of the other models are added.
    """

    def __init__(self, job_model: Any, llmbeam_conn_id: str, environment: dict[str, str]) -> None:
        found = model_data(plain(job_model))
        self._type = found.get("type") if isinstance(found, Mapping) else None
        self._llmbeam_conn_id = llmbeam_conn_id
        self._environment = environment

    def complete_model(self, model: Any, conn_id: str | None = None) -> Any:
        """Returns a model, as plain data, with the fields of its connection.

        Args:
            model: The model.
            conn_id: Its connection. `None`: that of the job for a model of the same type, else none.

        Raises:
            JobSpecError: There is no such connection, or it has another key for the same variable.
        """
        from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook

        data = model_data(plain(model))
        if not isinstance(data, Mapping):
            return data
        conn_id = conn_id or (self._llmbeam_conn_id if data.get("type") == self._type else None)
        if conn_id is None:
            return data
        completed, secrets = LLMBeamHook(conn_id).complete_model({**data})
        for name, secret in secrets.items():
            if self._environment.setdefault(name, secret) != secret:
                raise JobSpecError(
                    f"Connection {conn_id!r} has another key than the model of the job, and one process reads one "
                    f"key from `{name}`. Use the same key, or for an OpenAI model "
                    "another `api_key_env`; for a header another variable in `headers`."
                )
        return completed

    def complete_guard(self, safety: Any) -> Any:
        """Returns `safety`, as plain data, with the fields of the connection of its guard model.

        Args:
            safety: The safety of the job.

        Raises:
            JobSpecError: See `complete_model`.
        """
        found = from_text(plain(safety))
        moderation = from_text(found.get("moderation")) if isinstance(found, Mapping) else None
        if not isinstance(moderation, Mapping):
            return safety
        guard = self.complete_model(moderation.get("model"), moderation.get("conn_id"))
        return {**found, "moderation": {**moderation, "model": guard}}

    def complete_sink(self, sink: Any) -> Any:
        """Returns a sink, as plain data, with the fields of the connection of its embedding model.

        Args:
            sink: A sink of the job.

        Raises:
            JobSpecError: See `complete_model`.
        """
        found = from_text(plain(sink))
        embed = from_text(found.get("embed")) if isinstance(found, Mapping) else None
        if not isinstance(embed, Mapping):
            return sink
        return {**found, "embed": {**embed, "model": self.complete_model(embed.get("model"))}}

    def complete_stages(self, cascade: Any) -> Any:
        """Returns `cascade`, as plain data, with the fields of the connection of each model of its type.

        Args:
            cascade: The cascade of the job.

        Raises:
            JobSpecError: See `complete_model`.
        """
        found = from_text(plain(cascade))
        stages = found.get("stages") if isinstance(found, Mapping) else None
        if not isinstance(stages, list | tuple):
            return cascade
        return {
            **found,
            "stages": [self._complete_stage(from_text(stage)) for stage in stages],
        }

    def _complete_stage(self, stage: Any) -> Any:
        """Returns a stage, or the embedding of one that is distilled, with its model."""
        if not isinstance(stage, Mapping):
            return stage
        if stage.get("type") != "distilled":
            return {**stage, "model": self.complete_model(stage.get("model"))}
        embedding = from_text(stage.get("embedding"))
        if not isinstance(embedding, Mapping) or "model" not in embedding:
            return stage
        return {**stage, "embedding": {**embedding, "model": self.complete_model(embedding["model"])}}
