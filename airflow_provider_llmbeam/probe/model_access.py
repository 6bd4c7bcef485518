"""What lets a request in at a model, by the connections that a task names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook
from airflow_provider_llmbeam.spec.model import GeminiModel, Model, OpenAIModel, VertexEndpointModel, parse_model

if TYPE_CHECKING:
    from airflow_provider_llmbeam.google_cloud.base import GoogleHook


class ModelAccess:
    """Makes the headers of requests to one model. Called, it reads the connections and renews tokens. Blocks.

    Args:
        model: The model.
        environment: Holds the key, where it is not in the worker's own; see `LLMBeamHook.complete_model`.
        gcp_conn_id: Connection whose credentials ask where it is Google Cloud.
        impersonation_chain: Service account to act as, or several, each acting as the next.
    """

    def __init__(
        self,
        model: Model,
        environment: Mapping[str, str] | None = None,
        *,
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
    ) -> None:
        self._model = model
        self._environment = dict(environment or {})
        self._gcp_conn_id = gcp_conn_id
        self._impersonation_chain = impersonation_chain
        self._hook: GoogleHook | None = None

    def __call__(self) -> dict[str, str]:
        """Returns the headers.

        Raises:
            JobSpecError: There is no key.
            CloudError: There are no credentials.
        """
        match self._model:
            case GeminiModel(project=None | ""):
                return {"x-goog-api-key": self._gemini_key()}
            case GeminiModel() | VertexEndpointModel():
                return _bearer(self._token(None))
            case OpenAIModel(id_token_audience=str() as audience):
                return _bearer(self._token(audience))
            case OpenAIModel():
                key = self._variable(self._model.api_key_env)
                return _bearer(key) if key else {}
        return {}

    def _gemini_key(self) -> str:
        key = self._variable("GOOGLE_API_KEY") or self._variable("GEMINI_API_KEY")
        if not key:
            raise JobSpecError(
                "Gemini needs a key: found neither a password in the `llmbeam` connection nor `GOOGLE_API_KEY` in "
                "the environment of the worker and the triggerer, nor `model.project` (Vertex AI). Nothing was "
                "sent or billed."
            )
        return key

    def _variable(self, name: str) -> str | None:
        return self._environment.get(name) or os.environ.get(name)

    def _token(self, audience: str | None) -> str:
        # Here and not above: Google's clients are loaded where they are needed.
        from airflow_provider_llmbeam.google_cloud.base import GoogleHook
        from airflow_provider_llmbeam.google_cloud.errors import usable_connection
        from airflow_provider_llmbeam.google_cloud.tokens import access_token, id_token

        if self._hook is None:
            self._hook = GoogleHook(gcp_conn_id=self._gcp_conn_id, impersonation_chain=self._impersonation_chain)
        with usable_connection(self._gcp_conn_id):
            credentials = self._hook.get_credentials()
            return access_token(credentials) if audience is None else id_token(credentials, audience)


def open_model(
    model: Mapping[str, Any],
    *,
    llmbeam_conn_id: str = LLMBeamHook.default_conn_name,
    gcp_conn_id: str = "google_cloud_default",
    impersonation_chain: str | Sequence[str] | None = None,
) -> tuple[Model, ModelAccess]:
    """Completes a model by the `llmbeam` connection, as a job does, and says what lets a request in.

    Args:
        model: A model spec as plain data.
        llmbeam_conn_id: Connection with key, base URL, project and location.
        gcp_conn_id: Connection whose credentials ask where it is Google Cloud.
        impersonation_chain: Service account to act as, or several, each acting as the next.

    Raises:
        JobSpecError: The model is no model spec, or there is no such connection.
    """
    if not isinstance(model, Mapping):
        parse_model(model)  # says what is wrong with it
    completed, environment = LLMBeamHook(llmbeam_conn_id).complete_model({**model})
    parsed = parse_model(completed)
    return parsed, ModelAccess(
        parsed, environment, gcp_conn_id=gcp_conn_id, impersonation_chain=impersonation_chain
    )


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
