"""The address of a model's server, where an environment variable gives it, as for the provider's own client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.redaction import url_fault
from airflow_provider_llmbeam.spec.base import http_address
from airflow_provider_llmbeam.spec.model.model import GeminiModel, Model, OpenAIModel


class _Log(Protocol):
    def info(self, message: str, /, *args: object) -> None: ...


def base_url_variable(model: Model) -> str | None:
    """Returns the variable that gives the address of a model without a `base_url`; `None` if it has one.

    Names as in google-genai 2.34 (`_base_url.get_base_url`) and openai 2.45 (`OpenAI.__init__`).
    """
    match model:
        case GeminiModel(base_url=None):
            return "GOOGLE_VERTEX_BASE_URL" if model.project else "GOOGLE_GEMINI_BASE_URL"
        case OpenAIModel() if "base_url" not in model.model_fields_set:
            return "OPENAI_BASE_URL"
    return None


def with_base_url(model: Model, environment: Mapping[str, str], log: _Log | None = None) -> Model:
    """Returns the model with the address of the environment, unless the spec or the connection gives one.

    Args:
        model: The model.
        environment: Environment variables of this process.
        log: Log for the address, and the variable that gives it.

    Raises:
        JobSpecError: The variable holds no address.
    """
    name = base_url_variable(model)
    if name is None or not (address := environment.get(name, "").strip()):
        return model
    try:
        base_url = http_address(address)
    except ValueError as error:
        fault = str(error).partition(", as ")[0]
        got = "" if url_fault(address) else f"; got {address[:80]!r}"
        raise JobSpecError(
            f"`{name}` in the environment, the address of the {model.type} server: {fault}{got}. Nothing was sent "
            "or billed. Correct it, unset it, or set `model.base_url`."
        ) from None
    if log is not None:
        log.info("Requests go to %s, as `%s` is set and `model.base_url` is not.", base_url, name)
    return model.model_copy(update={"base_url": base_url})
