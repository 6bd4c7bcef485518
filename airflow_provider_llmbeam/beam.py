"""For authors of Beam pipelines: the engine as a model handler, a caller and a transform of rows; and batching."""

from airflow_provider_llmbeam.pipeline.public.caller import LLMCaller
from airflow_provider_llmbeam.pipeline.public.handler import LLMModelHandler
from airflow_provider_llmbeam.pipeline.public.inference import LLMInference
from airflow_provider_llmbeam.pipeline.public.length_batching import StatefulLengthBatching

__all__ = ["LLMCaller", "LLMInference", "LLMModelHandler", "StatefulLengthBatching"]
