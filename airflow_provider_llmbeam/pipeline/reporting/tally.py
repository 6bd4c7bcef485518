"""Sums over the rows of a job, from which the report is built."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from airflow_provider_llmbeam.pipeline.reporting.answer_profile import AnswerProfile
from airflow_provider_llmbeam.pipeline.reporting.samples import Samples
from airflow_provider_llmbeam.pipeline.reporting.time_series import TimeSeries
from airflow_provider_llmbeam.pipeline.reporting.traced_rows import TracedRows

#: Tag of the output with one `Tally` for each bundle.
TALLIES = "tallies"


@dataclass(slots=True)
class Tally:
    """Sums over rows. Requests and tokens are those of this run, counted once for rows that share a request.

    Attributes:
        read: Number of rows read.
        skipped: Number of those that are neither asked nor failed, by a key of `report.SKIPPED`.
        answered: Number of answered rows by origin.
        failed: Number of failed rows by kind of failure.
        messages: The message of one failure per kind.
        moderation: Numbers of rows, texts, requests and tokens of the guard model, by what it judged, group and
            name, see `moderation_of`.
        cascade: Numbers of rows, requests and tokens by stage and name, see `cascade.report.cascade_of`.
        categories: Number of failed rows by kind of failure and category; a row of several counts in each.
        batch_errors: Number of rows that failed in batch inference by kind and message, of the commonest.
        sums: Numbers of requests, 429s, shed requests, tokens and placeholders.
        masked: Number of masked values by kind.
        first_tokens: Number of streamed answers by latency class of their first token.
        tiers: Number of answers of this run by the tier that served them.
        costs: Cost in billionths of a US dollar by what was paid for: a tier, or `prefix_cache`.
        buckets: Numbers of rows, input and output tokens by length bucket.
        first_sent_at: Unix time of the first request, or infinity.
        last_answered_at: Unix time of the last answer or failure, or minus infinity.
        series: Events of this run by time.
        profile: What all answers look like in sum.
        samples: Rows that the report shows.
        traced: Rows that become spans.
    """

    read: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    messages: dict[str, str] = field(default_factory=dict)
    categories: Counter[tuple[str, str]] = field(default_factory=Counter)
    moderation: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    cascade: Counter[tuple[str, str]] = field(default_factory=Counter)
    batch_errors: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    masked: Counter[str] = field(default_factory=Counter)
    first_tokens: Counter[int] = field(default_factory=Counter)
    tiers: Counter[str] = field(default_factory=Counter)
    costs: Counter[str] = field(default_factory=Counter)
    buckets: Counter[tuple[int, str]] = field(default_factory=Counter)
    first_sent_at: float = math.inf
    last_answered_at: float = -math.inf
    series: TimeSeries = field(default_factory=TimeSeries)
    profile: AnswerProfile = field(default_factory=AnswerProfile)
    samples: Samples = field(default_factory=Samples)
    traced: TracedRows = field(default_factory=TracedRows)

    def add_time(self, sent_at: float, ended_at: float) -> None:
        """Extends the time of sending by a request."""
        if sent_at < self.first_sent_at:
            self.first_sent_at = sent_at
        if ended_at > self.last_answered_at:
            self.last_answered_at = ended_at

    @property
    def latencies(self) -> Counter[int]:
        """Number of answers by latency class."""
        total: Counter[int] = Counter()
        for interval in self.series.intervals.values():
            total.update(interval.latencies)
        return total


def add_up(tallies: Iterable[Tally]) -> Tally:
    """Adds up the tallies of all bundles."""
    total = Tally()
    for tally in tallies:
        for counter in fields(Tally):
            if isinstance(counts := getattr(tally, counter.name), Counter):
                getattr(total, counter.name).update(counts)
        total.read += tally.read
        total.messages = {**tally.messages, **total.messages}
        total.add_time(tally.first_sent_at, tally.last_answered_at)
        total.series.merge(tally.series)
        total.profile.merge(tally.profile)
        total.samples.merge(tally.samples)
        total.traced.merge(tally.traced)
    return total
