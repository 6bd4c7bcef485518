"""The safety of a job, in its parts."""

from __future__ import annotations

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.safety.privacy import Privacy


class Safety(SpecModel):
    """What protects the people whose data a job sends, and records who sent it.

    Attributes:
        privacy: Masks personal data before a prompt is rendered. `None`: nothing is masked.
    """

    privacy: Privacy | None = None
