"""The audit, as a feature of a job."""

from __future__ import annotations

from airflow_provider_llmbeam.pipeline.audit.load import load_audit
from airflow_provider_llmbeam.pipeline.feature import Feature
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety.audit import Audit


class AuditFeature(Feature[Audit]):
    """Loads the records of the requests; `job_handler` has them written as the answers arrive."""

    @staticmethod
    def part_of(spec: JobSpec) -> Audit | None:
        """Returns `safety.audit`."""
        return spec.safety.audit

    def before_publication(self) -> None:
        """Loads the records into the table of the audit.

        Raises:
            JobFailedError: BigQuery does not load them; they stay where they are.
        """
        load_audit(self.spec)
