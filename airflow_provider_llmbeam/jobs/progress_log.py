"""Progress lines of a Dataflow job."""

from __future__ import annotations

import logging
from collections import deque

from airflow_provider_llmbeam.polling.task_log import TaskLog
from airflow_provider_llmbeam.spec.protocol.counts import Counts, progress_line

#: Number of polls over which the rate is measured.
WINDOW = 10


class ProgressLog:
    """Writes a line on each change, and none while nothing changes.

    Args:
        log: Log that receives the lines.
    """

    def __init__(self, log: TaskLog) -> None:
        self._log = log
        self._shown = Counts()
        self._history: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def show(self, counts: Counts, now: float) -> None:
        """Writes the progress of the job if it has changed; `now` is in seconds."""
        self._history.append((now, counts.done))
        if counts != self._shown:
            self._log.log(logging.INFO, "%s", progress_line(counts, self._rows_per_second()))
            self._shown = counts

    def _rows_per_second(self) -> float:
        (first_at, first_done), (last_at, last_done) = self._history[0], self._history[-1]
        # Counts may decrease temporarily when Dataflow repeats work.
        return max(0.0, (last_done - first_done) / (last_at - first_at)) if last_at > first_at else 0.0
