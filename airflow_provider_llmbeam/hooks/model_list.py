"""Lists the models that a key can use, which is free: the test of an `llmbeam` connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_llmbeam.hooks.google.authentication import ModelAuthentication
from airflow_provider_llmbeam.providers.errors import ApiNotFoundError
from airflow_provider_llmbeam.providers.rest import RestClient, session_with
from airflow_provider_llmbeam.spec.model import GeminiModel, Model, OpenAIModel, connection_fields, parse_model
from airflow_provider_llmbeam.transport.server_reply import list_of

_MAX_MODELS = 1000


def model_of_connection(key: str | None, fields: Mapping[str, Any]) -> Model:
    """Returns a model whose requests would go where the key of a connection belongs.

    The address of a server with the OpenAI API has a path, such as `/v1`; that of Gemini has none. Without an
    address, a key of OpenAI begins with `sk-`.

    Args:
        key: Its key.
        fields: The fields of a model that it has.

    Raises:
        JobSpecError: A field of the connection does not fit.
    """
    host = fields.get("base_url")
    is_openai = urlsplit(host or "").path.strip("/") or (not host and (key or "").startswith("sk-"))
    model = {"type": "openai", "name": "any"} if is_openai and not fields.get("project") else {"type": "gemini"}
    return parse_model(model | {name: fields[name] for name in connection_fields(model) if fields.get(name)})


def describe_access(model: Model, environment: Mapping[str, str]) -> str:
    """Asks the server for its models, once, and returns what that shows.

    Args:
        model: The model, see `model_of_connection`.
        environment: Holds the key.

    Raises:
        LLMBeamError: There is no key or token; or the server refuses it, or does not answer.
    """
    authenticate = ModelAuthentication(model, environment)
    with session_with(authenticate, model.api.certificate) as session:
        client = RestClient(session, model.api.service)
        url, field, params = _list_of(model)
        try:
            page = client.json_object(client.request("GET", url, params=params))
        except ApiNotFoundError:
            return f"{model.api.service} at {url} lists no models, so the key was not checked"
    models = list_of(page.get(field))
    many = "more than " if page.get("nextPageToken") else ""
    by = "key" if model.api.authentication == "api_key" else "account"
    by = by if authenticate() else "request without a key"
    return f"{by} accepted, {many}{len(models):,} models"


def _list_of(model: Model) -> tuple[str, str, dict[str, str]]:
    """Returns the address of the list of models, the field of the reply with them, and the parameters.

    As google-genai 2.34 (`models.Models._list`) and openai ask for them.
    """
    if isinstance(model, OpenAIModel):
        return model.url_of("models"), "data", {}
    assert isinstance(model, GeminiModel)
    size = {"pageSize": str(_MAX_MODELS)}
    if model.project:
        return (
            f"{model.address.partition('/v1beta1/')[0]}/v1beta1/publishers/google/models",
            "publisherModels",
            size,
        )
    return f"{model.address.partition('/v1beta/')[0]}/v1beta/models", "models", size
