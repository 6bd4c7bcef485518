"""The smallest requests to Gemini."""

from __future__ import annotations

from airflow_provider_llmbeam.providers.probe import (
    OUTPUT_TOKENS,
    QUESTION,
    ModelList,
    ProbeRequest,
    make_request,
)
from airflow_provider_llmbeam.spec.model import GeminiModel

_CONTENT = {"parts": [{"text": QUESTION}]}


def probe_request(model: GeminiModel, *, embeds: bool) -> ProbeRequest:
    """See `providers.probe`; an embedding model is always asked for a vector."""
    if embeds or "embedding" in model.name:
        return _embedding(model)
    # Thinking tokens count, too: a thinking model replies with 200, MAX_TOKENS and no text.
    body = {
        "contents": [{"role": "user", **_CONTENT}],
        "generationConfig": {"maxOutputTokens": OUTPUT_TOKENS},
    }
    return make_request(f"{model.address}:generateContent", body, "candidates", "promptFeedback")


def model_list(model: GeminiModel) -> ModelList:
    """Returns the request for the list of models, as google-genai 2.34 has it (`models.Models._list`)."""
    size = {"pageSize": "1000"}
    if model.project:
        address = model.address.partition("/v1beta1/")[0]
        return ModelList(f"{address}/v1beta1/publishers/google/models", "publisherModels", size)
    return ModelList(f"{model.address.partition('/v1beta/')[0]}/v1beta/models", "models", size)


def count_request(model: GeminiModel) -> ProbeRequest | None:
    """Returns a request that counts tokens: it is free, and fails as a job would without the model or the right.

    `None` for an embedding model, whose method on Vertex AI is another one.
    """
    if "embedding" in model.name:
        return None
    return make_request(
        f"{model.address}:countTokens", {"contents": [{"role": "user", **_CONTENT}]}, "totalTokens"
    )


def _embedding(model: GeminiModel) -> ProbeRequest:
    """Returns the request with the method that google-genai 2.34 chooses (`t_is_vertex_embed_content_model`)."""
    if not model.project:
        # The method that a job uses, and that its quota counts.
        one = {"model": model.address.partition("/v1beta/")[2], "content": _CONTENT}
        return make_request(f"{model.address}:batchEmbedContents", {"requests": [one]}, "embeddings")
    if "maas" in model.name or ("gemini" in model.name and model.name != "gemini-embedding-001"):
        return make_request(f"{model.address}:embedContent", {"content": _CONTENT}, "embedding")
    return make_request(f"{model.address}:predict", {"instances": [{"content": QUESTION}]}, "predictions")
