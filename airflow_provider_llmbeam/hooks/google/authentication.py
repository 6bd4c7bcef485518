"""Authentication headers for model requests: an API key, an access token or an ID token."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.model import GeminiModel, Model, OpenAIModel, VertexEndpointModel

if TYPE_CHECKING:
    from airflow_provider_llmbeam.hooks.google.base import GoogleHook

#: `access_token` is for Google's own services, `id_token` for one service on Cloud Run.
Authentication = Literal["none", "api_key", "access_token", "id_token"]


def authentication_of(model: Model) -> Authentication:
    """Returns the authentication that a model requires."""
    match model:
        case GeminiModel(project=None | ""):
            return "api_key"
        case VertexEndpointModel(predict_url=str()):
            return "none"
        case GeminiModel() | VertexEndpointModel():
            return "access_token"
        case OpenAIModel(id_token_audience=str()):
            return "id_token"
        case OpenAIModel():
            return "api_key"
    return "none"


def api_key_variable(model: Mapping[str, Any]) -> str | None:
    """Returns the environment variable of a model's API key; `None` if the model takes a token instead.

    Args:
        model: A model spec as plain data. It may lack the fields that a connection fills in.
    """
    match model:
        case {"type": "vertex_endpoint"} | {"type": "openai", "id_token_audience": str()}:
            return None
        case {"type": "openai"}:
            return str(model.get("api_key_env", "OPENAI_API_KEY"))
    return "GOOGLE_API_KEY"


class ModelAuthentication:
    """Returns the authentication headers of one model when called; renews tokens. Blocks.

    Args:
        model: The model.
        environment: Holds the API key if the worker's own environment does not; see `LLMBeamHook.complete_model`.
        hook: Hook with the credentials for tokens; made of the next two arguments if omitted.
        gcp_conn_id: Connection with the credentials for Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.
    """

    def __init__(
        self,
        model: Model,
        environment: Mapping[str, str] | None = None,
        *,
        hook: GoogleHook | None = None,
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
    ) -> None:
        self._model = model
        self._environment = dict(environment or {})
        self._hook = hook
        self._gcp_conn_id = gcp_conn_id
        self._impersonation_chain = impersonation_chain

    def __call__(self) -> dict[str, str]:
        """Returns the headers.

        Raises:
            JobSpecError: There is no API key.
            CloudError: There are no credentials.
        """
        match authentication_of(self._model):
            case "api_key" if isinstance(self._model, GeminiModel):
                return {"x-goog-api-key": self._gemini_key()}
            case "api_key":
                key = self._variable(getattr(self._model, "api_key_env", ""))
                return _bearer(key) if key else {}
            case "access_token":
                return _bearer(self._token(None))
            case "id_token":
                return _bearer(self._token(getattr(self._model, "id_token_audience", None)))
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
        # Imported here, so that Google's clients are loaded only if they are needed.
        from airflow_provider_llmbeam.hooks.google.base import GoogleHook
        from airflow_provider_llmbeam.hooks.google.errors import usable_connection
        from airflow_provider_llmbeam.hooks.google.tokens import access_token, id_token

        if self._hook is None:
            self._hook = GoogleHook(gcp_conn_id=self._gcp_conn_id, impersonation_chain=self._impersonation_chain)
        with usable_connection(self._hook.gcp_conn_id):
            credentials = self._hook.get_credentials()
            return access_token(credentials) if audience is None else id_token(credentials, audience)


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
