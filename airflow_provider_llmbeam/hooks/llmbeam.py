"""The `llmbeam` connection: address of a model server, and its API key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.sdk import BaseHook

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.google_cloud.authentication import ModelAuthentication, api_key_variable
from airflow_provider_llmbeam.spec.model import Model, parse_model

#: Fields that a connection can provide, by type of model.
_FIELDS = {"gemini": ("base_url", "project", "location"), "openai": ("base_url",)}


class LLMBeamHook(BaseHook):
    """Reads an `llmbeam` connection.

    The API key is passed to the job in its environment, never in the spec. If the default connection does not
    exist, the job uses the variables of the worker's own environment.

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
        """Returns the connection; `None` if the default connection does not exist.

        Raises:
            JobSpecError: Another connection does not exist.
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
        """Adds the fields that the model does not set and the connection provides.

        Args:
            model: A model spec as plain data.

        Returns:
            The model, and the environment variables with its API key.
        """
        connection = self.get_conn()
        if connection is None:
            return model, {}
        extra = connection.extra_dejson
        provided = {
            "base_url": connection.host,
            "project": extra.get("project"),
            "location": extra.get("location"),
        }
        fields = _FIELDS.get(model.get("type", ""), ())
        filled = {name: provided[name] for name in fields if provided[name] and not model.get(name)}
        key_variable = api_key_variable(model)
        if not connection.password or key_variable is None:
            return {**model, **filled}, {}
        return {**model, **filled}, {key_variable: connection.password}


def open_model(
    model: Mapping[str, Any],
    *,
    llmbeam_conn_id: str = LLMBeamHook.default_conn_name,
    gcp_conn_id: str = "google_cloud_default",
    impersonation_chain: str | Sequence[str] | None = None,
) -> tuple[Model, ModelAuthentication]:
    """Completes a model with the `llmbeam` connection, as a job does, and returns it with its authentication.

    Args:
        model: A model spec as plain data.
        llmbeam_conn_id: Connection with key, base URL, project and location.
        gcp_conn_id: Connection with the credentials for Google Cloud.
        impersonation_chain: Service account to act as, or several, each acting as the next.

    Raises:
        JobSpecError: The model is not a model spec, or there is no such connection.
    """
    if not isinstance(model, Mapping):
        parse_model(model)  # raises an error that names the problem
    completed, environment = LLMBeamHook(llmbeam_conn_id).complete_model({**model})
    parsed = parse_model(completed)
    return parsed, ModelAuthentication(
        parsed, environment, gcp_conn_id=gcp_conn_id, impersonation_chain=impersonation_chain
    )
