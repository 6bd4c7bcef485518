"""Names that supported Airflow versions keep in different modules, each from where the installed version has it.

What `airflow.providers.common.compat.sdk` has comes from there; here is only what it lacks.
"""

from __future__ import annotations

try:
    from airflow.sdk.exceptions import TaskDeferralError, TaskDeferralTimeout
except ImportError:  # Airflow 3.1
    from airflow.exceptions import TaskDeferralError, TaskDeferralTimeout  # type: ignore[no-redef]

__all__ = ["TaskDeferralError", "TaskDeferralTimeout"]
