"""The smallest requests to an endpoint of Vertex AI."""

from __future__ import annotations

from airflow_provider_llmbeam.providers.openai.probe import CHAT
from airflow_provider_llmbeam.providers.probe import OUTPUT_TOKENS, QUESTION, ProbeRequest, make_request
from airflow_provider_llmbeam.spec.model import VertexEndpointModel


def probe_request(model: VertexEndpointModel, *, embeds: bool) -> ProbeRequest:
    """See `providers.probe`; an endpoint returns texts alone."""
    plain = {"prompt": QUESTION, "max_tokens": OUTPUT_TOKENS}
    match model.request_format:
        case "chat":
            body = {"model": "", **CHAT, "max_tokens": OUTPUT_TOKENS}
            return make_request(model.method_url(), body, "choices")
        case "instances":
            instance = {**plain, "raw_response": True}
            return make_request(model.method_url(), {"instances": [instance]}, "predictions")
        case "raw":
            return make_request(model.method_url(), plain, "predictions", "text", "choices")
