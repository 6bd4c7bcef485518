"""Steps that add up the rows of a job for the report."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.outcome import Outcome
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally, latency_class


class TallyRows(beam.DoFn):
    """Adds up the `AnsweredRow`s and `FailedRow`s of a bundle; only the `Tally` is sent on.

    Args:
        boundaries: Boundaries of the length buckets, in input tokens.
    """

    def __init__(self, boundaries: tuple[int, ...]) -> None:
        super().__init__()
        self._buckets = LengthBuckets(boundaries, max_output_tokens=1)
        self.tally = Tally()

    def start_bundle(self) -> None:
        """Resets the sums."""
        self.tally = Tally()

    def process(self, element: AnsweredRow | FailedRow) -> None:
        """Adds one row."""
        tally = self.tally
        if isinstance(element, AnsweredRow):
            tally.answered[element.origin] += 1
            if element.origin in ("fresh", "repaired"):
                self._add_answer(tally, element)
            return
        failure = element.failure
        tally.failed[failure.kind] += 1
        tally.messages.setdefault(failure.kind, failure.message)
        if element.origin in ("batch", "resumed", "cached"):
            tally.sums["known_failures"] += 1
        elif element.origin == "fresh":
            _add_cost(tally, failure)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Emits the sums."""
        yield GlobalWindows.windowed_value(self.tally)

    def _add_answer(self, tally: Tally, element: AnsweredRow) -> None:
        completion = element.completion
        tally.tiers[completion.service_tier] += 1
        _add_cost(tally, completion)
        tally.sums["padded_tokens"] += max(completion.padded_tokens, completion.input_tokens)
        tally.sums["real_tokens"] += completion.input_tokens
        tally.sums["truncated"] += completion.finish_reason == "max_tokens"
        tally.latencies[latency_class(completion.latency_seconds)] += 1
        if completion.first_token_seconds is not None:
            tally.first_tokens[latency_class(completion.first_token_seconds)] += 1
        bucket = self._buckets.index(completion.input_tokens)
        tally.buckets[bucket, "rows"] += 1
        tally.buckets[bucket, "input_tokens"] += completion.input_tokens
        tally.buckets[bucket, "output_tokens"] += completion.output_tokens
        tally.first_sent_at = min(tally.first_sent_at, completion.sent_at)
        tally.last_answered_at = max(tally.last_answered_at, completion.answered_at)


def _add_cost(tally: Tally, outcome: Outcome) -> None:
    tally.sums["requests"] += outcome.attempts + outcome.rejections + outcome.sheds
    tally.sums["sheds"] += outcome.sheds
    tally.sums["rejections"] += outcome.rejections
    tally.sums["retries"] += max(0, outcome.attempts - 1)
    tally.sums["input_tokens"] += outcome.input_tokens
    tally.sums["output_tokens"] += outcome.output_tokens
    tally.sums["cached_tokens"] += outcome.cached_tokens
    if outcome.cost_nano_usd is None:
        tally.sums["unpriced"] += 1
    else:
        tally.sums["cost_nano_usd"] += outcome.cost_nano_usd
