"""Differences between the supported Airflow versions.

Names that they keep in different modules come from `airflow.providers.common.compat.sdk`; here is only what that
module lacks.
"""

from __future__ import annotations

from airflow.triggers.base import BaseTrigger

try:
    from airflow.sdk.exceptions import TaskDeferralError, TaskDeferralTimeout
except ImportError:  # Airflow 3.1
    from airflow.exceptions import TaskDeferralError, TaskDeferralTimeout  # type: ignore[no-redef]

#: Whether Airflow calls a trigger's `on_kill` when somebody marks or clears its task; it does from 3.3 on.
CALLS_ON_KILL = hasattr(BaseTrigger, "on_kill")

__all__ = ["CALLS_ON_KILL", "TaskDeferralError", "TaskDeferralTimeout"]
