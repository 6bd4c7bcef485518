"""The safety of a job, in its parts."""

from __future__ import annotations

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.safety.audit import Audit
from airflow_provider_llmbeam.spec.safety.moderation import Moderation


class Safety(SpecModel):
    """What protects the people whose data a job sends, and records who sent it.

    Attributes:
        audit: Where a record of each request is written, `FilesAudit` or `BigQueryAudit`; `None`: nowhere.
        moderation: Moderation of prompts and answers by a guard model; `None` for none.
    """

    audit: Audit | None = None
    moderation: Moderation | None = None
