"""What protects the people whose data a job sends, and records who sent it."""

from airflow_provider_llmbeam.spec.safety.audit import AirflowRun, BigQueryAudit, FilesAudit
from airflow_provider_llmbeam.spec.safety.forget import RowsToForget
from airflow_provider_llmbeam.spec.safety.moderation import Moderation
from airflow_provider_llmbeam.spec.safety.privacy import CustomDetector, DlpDetector, PatternsDetector, Privacy
from airflow_provider_llmbeam.spec.safety.safety import Safety

__all__ = [
    "AirflowRun",
    "BigQueryAudit",
    "CustomDetector",
    "DlpDetector",
    "FilesAudit",
    "Moderation",
    "PatternsDetector",
    "Privacy",
    "RowsToForget",
    "Safety",
]
