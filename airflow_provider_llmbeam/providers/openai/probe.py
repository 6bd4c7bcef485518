"""The smallest requests to a server with the OpenAI API."""

from __future__ import annotations

from typing import Any

from airflow_provider_llmbeam.providers.probe import OUTPUT_TOKENS, QUESTION, ProbeRequest, make_request
from airflow_provider_llmbeam.spec.model import OpenAIModel

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}]}


def probe_request(model: OpenAIModel, *, embeds: bool) -> ProbeRequest:
    """See `providers.probe`."""
    if embeds:
        wanted = {"model": model.name, "input": [QUESTION], "encoding_format": "float"}
        return make_request(model.url_of("embeddings"), wanted, "data")
    # OpenAI's newer models refuse `max_tokens`; vLLM, Ollama and llama.cpp all accept it.
    cap = "max_completion_tokens" if "api.openai.com" in model.base_url else "max_tokens"
    chat = {"model": model.name, **CHAT, cap: OUTPUT_TOKENS}
    return make_request(model.url_of("chat/completions"), chat, "choices")
