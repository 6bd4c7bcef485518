"""The log of a task, as the packages that run inside the task write to it."""

from __future__ import annotations

from typing import Any, Protocol


class TaskLog(Protocol):
    """A logger: `logging.Logger`, or Airflow's own."""

    def log(self, level: int, event: str, *args: Any) -> Any:
        """Writes a line at a level of `logging`."""

    def info(self, event: str, *args: Any) -> Any:
        """Writes a line of information."""

    def warning(self, event: str, *args: Any) -> Any:
        """Writes a warning."""
