"""Progress lines of a Dataflow job."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping

from airflow_provider_llmbeam.counts import Counts, progress_line
from airflow_provider_llmbeam.polling.task_log import TaskLog
from airflow_provider_llmbeam.spec.model.price import Price

#: Number of polls over which the rate is measured.
WINDOW = 10

#: Function that returns the cost of the counts so far, in US dollars; `None` if no price is known.
Cost = Callable[[Counts], float | None]


def cost_of_tokens(price: Mapping[str, float] | None) -> Cost:
    """Returns the function that computes the cost of counts.

    Args:
        price: `input_usd_per_million_tokens` and `output_usd_per_million_tokens`; `None` if not known.
    """
    if price is None:
        return lambda counts: None
    known = Price.parse(price)
    return lambda counts: known.cost_usd(counts.input_tokens, counts.output_tokens)


class ProgressLog:
    """Writes a line on each change, and none while nothing changes.

    Args:
        log: Log that receives the lines.
        cost_usd: Function that returns the cost of the counts so far, in US dollars.
    """

    def __init__(self, log: TaskLog, cost_usd: Cost) -> None:
        self._log = log
        self._cost_usd = cost_usd
        self._shown = Counts()
        self._history: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def show(self, counts: Counts, now: float) -> None:
        """Writes the progress of the job if it has changed; `now` is in seconds."""
        self._history.append((now, counts.done))
        if counts != self._shown:
            line = progress_line(counts, self._rows_per_second(), self._cost_usd(counts))
            self._log.log(logging.INFO, "%s", line)
            self._shown = counts

    def _rows_per_second(self) -> float:
        (first_at, first_done), (last_at, last_done) = self._history[0], self._history[-1]
        # Counts may decrease temporarily when Dataflow repeats work.
        return max(0.0, (last_done - first_done) / (last_at - first_at)) if last_at > first_at else 0.0
