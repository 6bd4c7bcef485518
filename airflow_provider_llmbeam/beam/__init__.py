"""For authors of Beam pipelines: the engine as a model handler, as a caller, and as a transform of rows."""

from airflow_provider_llmbeam.beam.caller import LLMCaller
from airflow_provider_llmbeam.beam.inference import LLMInference
from airflow_provider_llmbeam.pipeline.run_inference import LLMModelHandler

__all__ = ["LLMCaller", "LLMInference", "LLMModelHandler"]
