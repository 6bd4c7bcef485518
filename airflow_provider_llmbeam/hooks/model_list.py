"""Lists the models that a key can use, which is free: the test of an `llmbeam` connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_llmbeam.hooks.google.authentication import ModelAuthentication
from airflow_provider_llmbeam.providers.errors import ApiNotFoundError
from airflow_provider_llmbeam.providers.probe import ModelList
from airflow_provider_llmbeam.providers.registry import part_of
from airflow_provider_llmbeam.providers.rest import RestClient, session_with
from airflow_provider_llmbeam.spec.model import Model, connected_models, connection_fields, parse_model
from airflow_provider_llmbeam.spec.model.server import is_below
from airflow_provider_llmbeam.transport.server_reply import list_of


def model_of_connection(key: str | None, fields: Mapping[str, Any]) -> Model:
    """Returns a model whose requests would go where the key of a connection belongs.

    The prefix of a key tells its provider. With another key, the address of a server with the OpenAI API has a
    path, such as `/v1`; those of Gemini and Anthropic have none, and are told apart by their domains.

    Args:
        key: Its key.
        fields: The fields of a model that it has.

    Raises:
        JobSpecError: A field of the connection does not fit.
    """
    kind = "gemini" if fields.get("project") else _type_of(key or "", fields.get("base_url") or "")
    model = {"type": "gemini"} if kind == "gemini" else {"type": kind, "name": "any"}
    return parse_model(model | {name: fields[name] for name in connection_fields(model) if fields.get(name)})


def _type_of(key: str, address: str) -> str:
    models = connected_models()
    by_key = [each for each in models if each.api.key_prefix and key.startswith(each.api.key_prefix)]
    if by_key:
        return max(by_key, key=lambda each: len(each.api.key_prefix)).type
    if urlsplit(address).path.strip("/"):
        return "openai"
    return next((each.type for each in models if is_below(address, each.api.domains)), "gemini")


def describe_access(model: Model, environment: Mapping[str, str]) -> str:
    """Asks the server for its models, once, and returns what that shows.

    Args:
        model: The model, see `model_of_connection`.
        environment: Holds the key.

    Raises:
        LLMBeamError: There is no key or token; or the server refuses it, or does not answer.
    """
    authenticate = ModelAuthentication(model, environment)
    page = read_models(model, authenticate)
    if page is None:
        url = part_of(model, "probe").model_list(model).url
        return f"{model.api.service} at {url} lists no models, so the key was not checked"
    by = "key" if model.api.authentication == "api_key" else "account"
    by = by if authenticate() else "request without a key"
    return f"{by} accepted, {'' if page.is_whole else 'more than '}{len(page.names):,} models"


@dataclass(frozen=True, slots=True)
class ListedModels:
    """The models of a server.

    Attributes:
        names: Their names, of the first page.
        is_whole: Whether there is no further page.
    """

    names: tuple[str, ...]
    is_whole: bool


def read_models(model: Model, authenticate: ModelAuthentication) -> ListedModels | None:
    """Asks a server for its models, once; `None` if it lists none.

    Raises:
        LLMBeamError: There is no key or token; or the server refuses it, or does not answer.
    """
    with session_with(authenticate, model.api) as session:
        client = RestClient(session, model.api.service)
        wanted: ModelList = part_of(model, "probe").model_list(model)
        try:
            page = client.json_object(client.request("GET", wanted.url, params=wanted.params))
        except ApiNotFoundError:
            return None
    models = [each for each in list_of(page.get(wanted.models_field)) if isinstance(each, Mapping)]
    names = tuple(str(each.get("id") or each.get("name") or "") for each in models)
    return ListedModels(names, not (page.get("nextPageToken") or page.get("has_more")))
