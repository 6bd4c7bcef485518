"""The safety of a job, in its parts."""

from __future__ import annotations

from airflow_provider_llmbeam.spec.base import SpecModel


class Safety(SpecModel):
    """What protects the people whose data a job sends, and records who sent it."""
