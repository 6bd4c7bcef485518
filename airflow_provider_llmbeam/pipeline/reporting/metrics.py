"""Counts of a running job: as Beam counters, and for the progress line of this process.

Beam counts only on the thread of a bundle, and silently drops increments of other threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import apache_beam as beam
from apache_beam.metrics import Metrics

from airflow_provider_llmbeam.engine.bill import charged_nano_usd
from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.context import NO_RUN, RunContext
from airflow_provider_llmbeam.pipeline.reporting.progress import (
    PROGRESS,
    Count,
    publish_progress,
    write_progress_soon,
)
from airflow_provider_llmbeam.spec.model.price import Price
from airflow_provider_llmbeam.spec.protocol.counts import NAMESPACE, Counts

_COUNTERS = {name: Metrics.counter(NAMESPACE, name) for name in get_args(Count)}


def count(counts: Counts) -> None:
    """Adds to the counters; must be called on the thread of the bundle."""
    PROGRESS.add(counts)
    for name, counter in _COUNTERS.items():
        if number := getattr(counts, name):
            counter.inc(number)


class BatchCounts:
    """Counts the events of one batch; an engine `Observer`.

    The event loop of the engine writes, the thread of the bundle reads. The numbers only grow, so no lock is
    needed: a reader gets a missed increment the next time. They are attributes: 0.16 µs per prompt, and 0.44 µs
    in a dict (Python 3.11, one slow core).

    Args:
        price: Price of the tokens, for outcomes of a tier whose price is not known.
    """

    def __init__(self, price: Price | None = None) -> None:
        self._price = price
        self._requests = 0
        self._rejections = 0
        self._answered = 0
        self._failed = 0
        self._input_tokens = 0
        self._output_tokens = 0
        self._cost_nano_usd = 0
        self._taken = Counts()

    def sent(self) -> None:
        """A request was sent."""
        self._requests += 1

    def rejected(self, hold_seconds: float) -> None:
        """A 429 was received."""
        self._rejections += 1

    def finished(self, prompt: Prompt, outcome: Outcome) -> None:
        """A prompt has its outcome."""
        if isinstance(outcome, Completion):
            self._answered += 1
        else:
            self._failed += 1
        self._input_tokens += outcome.tokens.input
        self._output_tokens += outcome.tokens.output
        self._cost_nano_usd += charged_nano_usd(outcome, self._price)

    def take(self) -> Counts:
        """Returns the counts since the last call."""
        before = self._taken
        self._taken = now = Counts(
            answered=self._answered,
            failed=self._failed,
            requests=self._requests,
            rejections=self._rejections,
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            cost_nano_usd=self._cost_nano_usd,
        )
        return now - before


def counts_of(outcomes: Iterable[Outcome], price: Price | None = None) -> Counts:
    """Returns the counts of outcomes of an earlier attempt of a bundle, whose counters Beam has discarded.

    Args:
        outcomes: The outcomes.
        price: See `BatchCounts`.
    """
    known = list(outcomes)
    answered = sum(isinstance(outcome, Completion) for outcome in known)
    return Counts(
        answered=answered,
        failed=len(known) - answered,
        requests=sum(outcome.attempts + outcome.rejections + outcome.sheds for outcome in known),
        rejections=sum(outcome.rejections for outcome in known),
        input_tokens=sum(outcome.tokens.input for outcome in known),
        output_tokens=sum(outcome.tokens.output for outcome in known),
        cost_nano_usd=sum(charged_nano_usd(outcome, price) for outcome in known),
    )


class CountingDoFn(beam.DoFn):
    """A `DoFn` that counts its rows; counters are updated once per 1,000 calls, as an update takes 2 µs.

    Args:
        context: The run, whose counts these are.
    """

    UPDATE_EVERY = 1000

    def __init__(self, context: RunContext = NO_RUN) -> None:
        super().__init__()
        self._context = context
        self._pending: dict[Count, int] = {}
        self._calls = 0

    def start_bundle(self) -> None:
        """Resets the counts, as those of a failed bundle do not count."""
        publish_progress(self._context.progress_prefix)
        self._pending, self._calls = {}, 0

    def finish_bundle(self) -> Iterable[Any] | None:
        """Updates the counters."""
        self._update()
        return None

    def _update(self) -> None:
        count(Counts(**self._pending))
        self._pending, self._calls = {}, 0
        write_progress_soon()

    def count(self, name: Count, number: int = 1) -> None:
        """Adds to a count."""
        self._pending[name] = self._pending.get(name, 0) + number
        self._calls += 1
        if self._calls == self.UPDATE_EVERY:
            self._update()
