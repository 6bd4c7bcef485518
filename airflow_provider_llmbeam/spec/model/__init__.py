"""Models, their parameters and prices, and the fingerprint that identifies their answers."""

from airflow_provider_llmbeam.spec.model.gateway import Auth, header_variable
from airflow_provider_llmbeam.spec.model.generation import Embedding, Generation
from airflow_provider_llmbeam.spec.model.model import (
    AnthropicModel,
    DistilledModel,
    EchoModel,
    GeminiModel,
    Model,
    ModelApi,
    OpenAIModel,
    VertexEndpointModel,
    connected_models,
    connection_fields,
    model_data,
    model_problems,
    parse_model,
    with_project,
)
from airflow_provider_llmbeam.spec.model.price import Price, price_of

__all__ = [
    "AnthropicModel",
    "Auth",
    "DistilledModel",
    "EchoModel",
    "Embedding",
    "GeminiModel",
    "Generation",
    "Model",
    "ModelApi",
    "OpenAIModel",
    "Price",
    "VertexEndpointModel",
    "connected_models",
    "connection_fields",
    "header_variable",
    "model_data",
    "model_problems",
    "parse_model",
    "price_of",
    "with_project",
]
