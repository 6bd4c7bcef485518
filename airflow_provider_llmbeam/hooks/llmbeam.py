"""The `llmbeam` connection: which model server, and the key to it."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import BaseHook

from airflow_provider_llmbeam.exceptions import JobSpecError

#: What a connection may fill in, by type of model.
_FIELDS = {"gemini": ("base_url", "project", "location"), "openai": ("base_url",)}


class LLMBeamHook(BaseHook):
    """Reads an `llmbeam` connection.

    The connection's API key reaches the job through its environment, never through the spec. Without a
    connection of the default name, the job takes what the worker's own environment holds.

    Args:
        llmbeam_conn_id: Name of the connection.
    """

    conn_name_attr = "llmbeam_conn_id"
    default_conn_name = "llmbeam_default"
    conn_type = "llmbeam"
    hook_name = "LLM Beam"

    def __init__(self, llmbeam_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.llmbeam_conn_id = llmbeam_conn_id

    def get_conn(self) -> Any:
        """Returns the connection, or `None` where there is none of the default name.

        Raises:
            JobSpecError: There is no connection of another name.
        """
        try:
            return self.get_connection(self.llmbeam_conn_id)
        except AirflowNotFoundException as error:
            if self.llmbeam_conn_id != self.default_conn_name:
                raise JobSpecError(
                    f"`llmbeam_conn_id`: there is no connection {self.llmbeam_conn_id!r}. Nothing was sent or "
                    "billed. Add it under Admin, Connections, with the type LLM Beam."
                ) from error
            self.log.info("No connection %r: using the worker's environment.", self.llmbeam_conn_id)
            return None

    def complete_model(self, model: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Fills in what the connection knows and the model leaves open.

        Args:
            model: A model spec as plain data.

        Returns:
            The model, and the environment that holds its key.
        """
        connection = self.get_conn()
        if connection is None:
            return model, {}
        extra = connection.extra_dejson
        known = {
            "base_url": connection.host,
            "project": extra.get("project"),
            "location": extra.get("location"),
        }
        fields = _FIELDS.get(model.get("type", ""), ())
        filled = {name: known[name] for name in fields if known[name] and not model.get(name)}
        key_variable = _key_variable(model)
        if not connection.password or key_variable is None:
            return {**model, **filled}, {}
        return {**model, **filled}, {key_variable: connection.password}


def _key_variable(model: dict[str, Any]) -> str | None:
    """Environment variable of a model's key; endpoints of Google Cloud are asked with a token instead."""
    match model:
        case {"type": "vertex_endpoint"} | {"type": "openai", "id_token_audience": str()}:
            return None
        case {"type": "openai"}:
            return str(model.get("api_key_env", "OPENAI_API_KEY"))
    return "GOOGLE_API_KEY"
