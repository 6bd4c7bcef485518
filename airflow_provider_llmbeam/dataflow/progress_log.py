"""The line that says how far a job on Dataflow is."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping

from airflow_provider_llmbeam.counts import Counts, progress_line
from airflow_provider_llmbeam.polling.task_log import TaskLog
from airflow_provider_llmbeam.spec.model.price import Price

#: Looks that the rate is taken over.
WINDOW = 10

#: What the counts so far cost in USD; `None` where no price is known.
Cost = Callable[[Counts], float | None]


def cost_of_tokens(price: Mapping[str, float] | None) -> Cost:
    """Makes of a price what tells the cost of counts.

    Args:
        price: `input_usd_per_million_tokens` and `output_usd_per_million_tokens`; `None`: not known.
    """
    if price is None:
        return lambda counts: None
    known = Price.parse(price)
    return lambda counts: known.cost_usd(counts.input_tokens, counts.output_tokens)


class ProgressLog:
    """Writes a line on each change, none while nothing moves.

    Args:
        log: Receives the lines.
        cost_usd: Of the counts so far.
    """

    def __init__(self, log: TaskLog, cost_usd: Cost) -> None:
        self._log = log
        self._cost_usd = cost_usd
        self._shown = Counts()
        self._history: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def show(self, counts: Counts, now: float) -> None:
        """Writes where the job stands, where that is news; `now` is in seconds."""
        self._history.append((now, counts.done))
        if counts != self._shown:
            line = progress_line(counts, self._rows_per_second(), self._cost_usd(counts))
            self._log.log(logging.INFO, "%s", line)
            self._shown = counts

    def _rows_per_second(self) -> float:
        (first_at, first_done), (last_at, last_done) = self._history[0], self._history[-1]
        # Counts of work that Dataflow does again may go back for a moment.
        return max(0.0, (last_done - first_done) / (last_at - first_at)) if last_at > first_at else 0.0
