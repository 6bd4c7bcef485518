"""Prompts: their templates, and the schema of their answers."""

from airflow_provider_llmbeam.spec.prompt.prompt import Media, Prompt, PromptTemplate, prompt_data

__all__ = ["Media", "Prompt", "PromptTemplate", "prompt_data"]
