"""Differences between the supported Airflow versions.

Names that these versions keep in different modules come from `airflow.providers.common.compat.sdk`; this module
contains only those that it lacks.
"""

from __future__ import annotations

from airflow.triggers.base import BaseTrigger

try:
    from airflow.sdk.exceptions import TaskDeferralError, TaskDeferralTimeout
except ImportError:  # Airflow 3.1
    from airflow.exceptions import TaskDeferralError, TaskDeferralTimeout  # type: ignore[no-redef]

#: Whether Airflow calls a trigger's `on_kill` when its task is marked or cleared, as from 3.3 on.
CALLS_ON_KILL = hasattr(BaseTrigger, "on_kill")

__all__ = ["CALLS_ON_KILL", "TaskDeferralError", "TaskDeferralTimeout"]
