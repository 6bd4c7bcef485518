"""What a worker shows of itself: the line of counts, and the state for health checks and metrics."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Any

from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.pipeline.stream.windows import Window
from airflow_provider_llmbeam.spec.protocol.counts import NANO

#: Number of the last answers whose latency is shown.
_WINDOW = 1000


@dataclass(slots=True)
class StreamCounts:
    """Counts since the start of the process.

    Attributes:
        consumed: Number of messages read.
        requests: Number of requests that were answered or failed, retries included.
        rejections: Number of 429s.
        answered: Number of answers received, verdicts and vectors included.
        embedded: Number of vectors of answers received.
        resumed: Number of messages whose answer was in the journal.
        duplicates: Number of messages that took the answer of an equal prompt of their partition.
        committed: Number of answers committed.
        dead_letter: Number of messages committed to the dead letter.
        late: Number of answers committed after `stream.latency_budget_ms`.
        transactions: Number of transactions committed.
        aborted: Number of transactions aborted, and repeated.
        restarts: Number of times that the member was fenced, or lost the cluster, and joined again.
        input_tokens: Tokens of the requests.
        output_tokens: Tokens of the answers.
        cost_nano_usd: Cost of these tokens, in billionths of a US dollar; 0 if no price is known.
    """

    consumed: int = 0
    requests: int = 0
    rejections: int = 0
    answered: int = 0
    embedded: int = 0
    resumed: int = 0
    duplicates: int = 0
    committed: int = 0
    dead_letter: int = 0
    late: int = 0
    transactions: int = 0
    aborted: int = 0
    restarts: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_nano_usd: int = 0

    def count(self, outcome: Outcome) -> None:
        """Counts the outcome of a request."""
        self.requests += outcome.attempts + outcome.rejections + outcome.sheds
        self.rejections += outcome.rejections
        self.answered += isinstance(outcome, Completion)
        self.input_tokens += outcome.tokens.input
        self.output_tokens += outcome.tokens.output
        self.cost_nano_usd += outcome.cost_nano_usd or 0


@dataclass(slots=True)
class StreamState:
    """The state of a worker.

    Attributes:
        counts: Its counts.
        assigned: Number of partitions that it owns; `None` before the group has given it any, or none.
        may_lead: Whether it owns the first partition, which the subscription of each Pub/Sub worker is.
        lags: Number of offsets that are not committed, by partition.
        commit_seconds: Time that a transaction takes, in seconds; an average of the last ones.
        total: What it has committed since its start.
        unsettled: Number of messages that are read and have no answer.
        held: Number of answers that wait for their transaction.
        held_bytes: Their size, in bytes.
        is_paused: Whether it reads nothing now.
        is_stopping: Whether the worker is to drain and end.
        polled_at: Unix time at which it has last read from its queue.
        latencies: Seconds from the message to its committed answer, of the last answers.
    """

    counts: StreamCounts = field(default_factory=StreamCounts)
    assigned: int | None = None
    may_lead: bool = False
    lags: dict[tuple[str, int], int] = field(default_factory=dict)
    commit_seconds: float = 0.0
    total: Window = field(default_factory=Window)
    unsettled: int = 0
    held: int = 0
    held_bytes: int = 0
    is_paused: bool = False
    is_stopping: bool = False
    polled_at: float = 0.0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))

    @property
    def lag(self) -> int:
        """Number of offsets that are not committed."""
        return sum(self.lags.values())

    @property
    def is_ready(self) -> bool:
        """Whether the group has assigned partitions, or none."""
        return self.assigned is not None

    def plain(self) -> dict[str, Any]:
        """Returns the line of counts as plain data."""
        counts = {name: getattr(self.counts, name) for name in StreamCounts.__slots__ if name != "cost_nano_usd"}
        now = {"assigned": self.assigned or 0, "lag": self.lag, "unsettled": self.unsettled, "held": self.held}
        latencies = {f"p{percent}_ms": round(1000 * each) for percent, each in self.latency_percentiles().items()}
        return {**counts, **now, "cost_usd": self.counts.cost_nano_usd / NANO, **latencies}

    def latency_percentiles(self) -> dict[int, float]:
        """Returns percentiles of the latency of the last answers, in seconds; none of fewer than two answers."""
        if len(self.latencies) < 2:
            return {}
        every = quantiles(self.latencies, n=100, method="inclusive")
        return {percent: every[percent - 1] for percent in (50, 95, 99)}
