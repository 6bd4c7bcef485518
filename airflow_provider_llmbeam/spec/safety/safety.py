"""The safety of a job, in its parts."""

from __future__ import annotations

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.safety.audit import Audit
from airflow_provider_llmbeam.spec.safety.moderation import Moderation
from airflow_provider_llmbeam.spec.safety.privacy import Privacy


class Safety(SpecModel):
    """What protects the people whose data a job sends, and records who sent it.

    Attributes:
        privacy: Masks personal data before a prompt is rendered. `None`: nothing is masked.
        moderation: Moderation of prompts and answers by a guard model; `None` for none.
        audit: Where a record of each request is written, `FilesAudit` or `BigQueryAudit`; `None`: nowhere.
    """

    privacy: Privacy | None = None
    moderation: Moderation | None = None
    audit: Audit | None = None
