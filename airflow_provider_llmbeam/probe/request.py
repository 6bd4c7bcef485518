"""The smallest request that each type of model takes: about ten tokens in, one out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.model import GeminiModel, Model, OpenAIModel, VertexEndpointModel

INPUT_TOKENS = 10
OUTPUT_TOKENS = 1

_QUESTION = "Say OK."
_CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": _QUESTION}]}
_CONTENT = {"parts": [{"text": _QUESTION}]}


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """Request, and the mark of an answer.

    Attributes:
        url: Full URL.
        body: Body, before it is encoded as JSON.
        answer_fields: Names of JSON fields; a reply with a value in one of them is an answer.
    """

    url: str
    body: Mapping[str, Any]
    answer_fields: frozenset[str]


def probe_request(model: Model, *, embeds: bool = False) -> ProbeRequest | None:
    """Returns the request that a job would send, at its smallest; `None` if the model has no server.

    Args:
        model: The model.
        embeds: Whether to ask for a vector; an embedding model of Gemini is always asked for one.

    Raises:
        JobSpecError: The model returns no vectors.
    """
    match model:
        case GeminiModel() if embeds or "embedding" in model.name:
            return _gemini_embedding(model)
        case GeminiModel():
            # Thinking tokens count, too: a thinking model replies with 200, MAX_TOKENS and no text.
            body = {
                "contents": [{"role": "user", **_CONTENT}],
                "generationConfig": {"maxOutputTokens": OUTPUT_TOKENS},
            }
            return _request(f"{model.address}:generateContent", body, "candidates", "promptFeedback")
        case OpenAIModel() if embeds:
            wanted = {"model": model.name, "input": [_QUESTION], "encoding_format": "float"}
            return _request(f"{model.base_url}/embeddings", wanted, "data")
        case OpenAIModel():
            # OpenAI's newer models refuse `max_tokens`; vLLM, Ollama and llama.cpp all accept it.
            cap = "max_completion_tokens" if "api.openai.com" in model.base_url else "max_tokens"
            chat = {"model": model.name, **_CHAT, cap: OUTPUT_TOKENS}
            return _request(f"{model.base_url}/chat/completions", chat, "choices")
        case VertexEndpointModel() if embeds:
            raise JobSpecError(
                f"A model of type 'vertex_endpoint' generates only text; got `embeds=True` for "
                f"{model.name!r}. Nothing was sent or billed."
            )
        case VertexEndpointModel():
            return _vertex_endpoint(model)
    return None


def _request(url: str, body: Mapping[str, Any], *answer_fields: str) -> ProbeRequest:
    return ProbeRequest(url, body, frozenset(answer_fields))


def _gemini_embedding(model: GeminiModel) -> ProbeRequest:
    """Returns the request with the method that google-genai 2.34 chooses (`t_is_vertex_embed_content_model`)."""
    if not model.project:
        # The method that a job uses, and that its quota counts.
        one = {"model": model.address.partition("/v1beta/")[2], "content": _CONTENT}
        return _request(f"{model.address}:batchEmbedContents", {"requests": [one]}, "embeddings")
    if "maas" in model.name or ("gemini" in model.name and model.name != "gemini-embedding-001"):
        return _request(f"{model.address}:embedContent", {"content": _CONTENT}, "embedding")
    return _request(f"{model.address}:predict", {"instances": [{"content": _QUESTION}]}, "predictions")


def _vertex_endpoint(model: VertexEndpointModel) -> ProbeRequest:
    plain = {"prompt": _QUESTION, "max_tokens": OUTPUT_TOKENS}
    match model.request_format:
        case "chat":
            body = {"model": "", **_CHAT, "max_tokens": OUTPUT_TOKENS}
            return _request(model.method_url(), body, "choices")
        case "instances":
            instance = {**plain, "raw_response": True}
            return _request(model.method_url(), {"instances": [instance]}, "predictions")
        case "raw":
            return _request(model.method_url(), plain, "predictions", "text", "choices")
