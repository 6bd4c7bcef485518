"""The smallest request to Claude, and the list of its models."""

from __future__ import annotations

from airflow_provider_llmbeam.providers.anthropic.client import message_fields
from airflow_provider_llmbeam.providers.probe import (
    OUTPUT_TOKENS,
    QUESTION,
    ModelList,
    ProbeRequest,
    make_request,
)
from airflow_provider_llmbeam.spec.model import AnthropicModel


def probe_request(model: AnthropicModel, *, embeds: bool) -> ProbeRequest:
    """See `providers.probe`."""
    messages = [{"role": "user", "content": QUESTION}]
    body = {**message_fields(model), "max_tokens": OUTPUT_TOKENS, "messages": messages}
    return make_request(model.messages_url(), body, "content", "stop_reason")


def model_list(model: AnthropicModel) -> ModelList:
    """Returns the request for the list of models."""
    if model.project:
        address = model.address.partition("/v1/")[0]
        return ModelList(f"{address}/v1beta1/publishers/anthropic/models", "publisherModels", {"pageSize": "1000"})
    return ModelList(f"{model.address}/models", "data", {"limit": "1000"})
