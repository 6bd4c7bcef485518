"""Steps that add up the rows of a job for the report."""

from __future__ import annotations

from collections.abc import Iterator

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.outcome import BEFORE_ANY_REQUEST, Outcome
from airflow_provider_llmbeam.pipeline.elements import OF_THIS_RUN, AnsweredRow, FailedRow
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.pipeline.reporting.time_series import latency_class
from airflow_provider_llmbeam.pipeline.reporting.traced_rows import RowTracer
from airflow_provider_llmbeam.spec.traces import Traces

_TRACES = Traces()


class TallyRows(beam.DoFn):
    """Adds up the `AnsweredRow`s and `FailedRow`s of a bundle; only the `Tally` is sent on.

    Args:
        boundaries: Boundaries of the length buckets, in input tokens.
        key: Key columns.
        label_fields: See `AnswerProfile.add`.
        traces: Which rows are traced.
    """

    def __init__(
        self,
        boundaries: tuple[int, ...],
        key: tuple[str, ...] = (),
        label_fields: tuple[str, ...] | None = None,
        traces: Traces = _TRACES,
    ) -> None:
        super().__init__()
        self._buckets = LengthBuckets(boundaries, max_output_tokens=1)
        self._key = key
        self._label_fields = label_fields
        self._tracer = RowTracer(traces, key)
        self._tally = Tally()
        # Rows, input and output tokens of answers by bucket, in lists: an update of a `Counter` takes 80 ns.
        self._answers = [[0, 0, 0] for _ in range(len(boundaries) + 1)]

    def start_bundle(self) -> None:
        """Resets the sums."""
        self._tally = Tally()
        self._answers = [[0, 0, 0] for _ in self._answers]

    @property
    def tally(self) -> Tally:
        """The sums so far."""
        tally = self._tally
        for index, numbers in enumerate(self._answers):
            rows, input_tokens, output_tokens = numbers
            numbers[:] = 0, 0, 0
            if rows:
                names = {"rows": rows, "input_tokens": input_tokens, "output_tokens": output_tokens}
                tally.buckets.update({(index, name): number for name, number in names.items()})
                tally.sums.update(input_tokens=input_tokens, output_tokens=output_tokens)
        return tally

    def process(self, element: AnsweredRow | FailedRow) -> None:
        """Adds one row."""
        tally = self._tally
        if isinstance(element, AnsweredRow):
            tally.answered[element.origin] += 1
            if element.origin == "replaced":  # no model has answered it
                return
            tally.profile.add(element.completion, self._label_fields)
            if self._tracer.takes(element):
                self._tracer.add_answer(tally.traced, element)
            if element.fingerprint < tally.samples.highest:
                tally.samples.add_answer(element)
            if element.origin in OF_THIS_RUN and element.completion.mended:
                tally.sums["mended"] += 1
            if element.origin in ("fresh", "repaired"):
                self._add_answer(tally, element)
            elif element.origin == "batch":
                tally.series.add_batch_answer(element.completion)
            return
        failure = element.failure
        tally.failed[failure.kind] += 1
        if failure.category:
            tally.categories.update((failure.kind, each) for each in failure.category.split(","))
        tally.messages.setdefault(failure.kind, failure.message)
        tally.samples.add_failure(element, self._key)
        self._tracer.add_failure(tally.traced, element)
        if element.origin == "fresh":
            add_outcome(tally, failure)
            tally.series.add_failure(failure)
            if failure.failed_at:
                tally.add_time(failure.failed_at, failure.failed_at)
        elif failure.kind not in BEFORE_ANY_REQUEST:
            tally.sums["known_failures"] += 1

    def finish_bundle(self) -> Iterator[WindowedValue]:
        """Emits the sums."""
        yield GlobalWindows.windowed_value(self.tally)

    def _add_answer(self, tally: Tally, element: AnsweredRow) -> None:
        completion = element.completion
        input_tokens = completion.tokens.input
        tally.tiers[completion.service_tier] += 1
        _add_cost(tally, completion)
        if completion.padded_tokens > input_tokens:
            tally.sums["padding_tokens"] += completion.padded_tokens - input_tokens
        if completion.finish_reason == "max_tokens":
            tally.sums["truncated"] += 1
        if completion.repairs:
            tally.profile.repairs += completion.repairs
        tally.series.add_answer(completion, latency_class(completion.latency_seconds))
        if completion.first_token_seconds is not None:
            tally.first_tokens[latency_class(completion.first_token_seconds)] += 1
        numbers = self._answers[self._buckets.index(input_tokens)]
        numbers[0] += 1
        numbers[1] += input_tokens
        numbers[2] += completion.tokens.output
        tally.add_time(completion.sent_at, completion.answered_at)


def add_outcome(tally: Tally, outcome: Outcome) -> None:
    """Adds requests, cost and tokens of an outcome whose row is not counted with them."""
    _add_cost(tally, outcome)
    tally.sums.update(input_tokens=outcome.tokens.input, output_tokens=outcome.tokens.output)


def _add_cost(tally: Tally, outcome: Outcome) -> None:
    """Adds requests and cost, without the tokens."""
    sums, attempts = tally.sums, outcome.attempts
    sums["requests"] += attempts
    if attempts > 1:
        sums["retries"] += attempts - 1
    if outcome.rejections:
        sums["requests"] += outcome.rejections
        sums["rejections"] += outcome.rejections
    if outcome.sheds:
        sums["requests"] += outcome.sheds
        sums["sheds"] += outcome.sheds
    tokens = outcome.tokens
    if tokens.cached:
        sums["cached_tokens"] += tokens.cached
    if tokens.cache_write:
        sums["cache_write_tokens"] += tokens.cache_write
    if tokens.reasoning:
        sums["reasoning_tokens"] += tokens.reasoning
    if tokens.estimated:
        sums["estimated_tokens"] += tokens.estimated
    if outcome.cost_nano_usd is None:
        sums["unpriced"] += 1
    elif outcome.cost_nano_usd:
        sums["cost_nano_usd"] += outcome.cost_nano_usd
        tally.costs[outcome.service_tier] += outcome.cost_nano_usd
