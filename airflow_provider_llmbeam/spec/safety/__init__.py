"""What protects the people whose data a job sends, and records who sent it."""

from airflow_provider_llmbeam.spec.safety.moderation import Moderation
from airflow_provider_llmbeam.spec.safety.safety import Safety

__all__ = ["Moderation", "Safety"]
