"""What happens, counted: in Beam counters, for who watches from outside, and for the line of this process.

Beam counts on a bundle's own thread and drops increments from any other without a word.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import apache_beam as beam
from apache_beam.metrics import Metrics

from airflow_provider_llmbeam.counts import NAMESPACE, Counts
from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.reporting.progress import PROGRESS, Count

_COUNTERS = {name: Metrics.counter(NAMESPACE, name) for name in get_args(Count)}


def count(happened: Counts) -> None:
    """Moves the counters on. To be called on the bundle's thread."""
    PROGRESS.add(happened)
    for name, counter in _COUNTERS.items():
        if number := getattr(happened, name):
            counter.inc(number)


class BatchCounts:
    """Counts one batch while an engine works on it; an engine `Observer`.

    The engine's loop writes and the bundle's thread reads. The numbers only grow, so there is no lock: what a
    reader misses, it takes the next time.
    """

    def __init__(self) -> None:
        self._requests = 0
        self._rejections = 0
        self._answered = 0
        self._died = 0
        self._input_tokens = 0
        self._output_tokens = 0
        self._taken = Counts()

    def sent(self) -> None:
        """A request left."""
        self._requests += 1

    def rejected(self, hold_seconds: float) -> None:
        """A 429 came back."""
        self._rejections += 1

    def finished(self, prompt: Prompt, outcome: Outcome) -> None:
        """A prompt has its outcome."""
        if isinstance(outcome, Completion):
            self._answered += 1
        else:
            self._died += 1
        self._input_tokens += outcome.input_tokens
        self._output_tokens += outcome.output_tokens

    def take(self) -> Counts:
        """What has happened since it was last asked."""
        before = self._taken
        self._taken = now = Counts(
            answered=self._answered,
            died=self._died,
            requests=self._requests,
            rejections=self._rejections,
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
        )
        return Counts(**{name: getattr(now, name) - getattr(before, name) for name in _COUNTERS})


def counts_of(completions: Iterable[Completion]) -> Counts:
    """The counts of answers that an earlier try of a bundle was given, whose own counters are thrown away."""
    known = list(completions)
    return Counts(
        answered=len(known),
        requests=sum(completion.attempts + completion.rejections for completion in known),
        rejections=sum(completion.rejections for completion in known),
        input_tokens=sum(completion.input_tokens for completion in known),
        output_tokens=sum(completion.output_tokens for completion in known),
    )


class CountingDoFn(beam.DoFn):
    """A `DoFn` that counts its rows; the counters move once per so many, since a move costs 2 µs."""

    MOVE_EVERY = 1000

    def __init__(self) -> None:
        super().__init__()
        self._pending: dict[Count, int] = {}
        self._calls = 0

    def start_bundle(self) -> None:
        """Starts from nothing: what a bundle that failed has left is not counted."""
        self._pending, self._calls = {}, 0

    def finish_bundle(self) -> None:
        """Counts the rest."""
        count(Counts(**self._pending))
        self._pending, self._calls = {}, 0

    def count(self, name: Count, number: int = 1) -> None:
        """Counts something."""
        self._pending[name] = self._pending.get(name, 0) + number
        self._calls += 1
        if self._calls == self.MOVE_EVERY:
            self.finish_bundle()
