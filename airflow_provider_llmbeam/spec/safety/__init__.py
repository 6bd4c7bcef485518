"""What protects the people whose data a job sends, and records who sent it."""

from airflow_provider_llmbeam.spec.safety.privacy import CustomDetector, PatternsDetector, Privacy
from airflow_provider_llmbeam.spec.safety.safety import Safety

__all__ = ["CustomDetector", "PatternsDetector", "Privacy", "Safety"]
