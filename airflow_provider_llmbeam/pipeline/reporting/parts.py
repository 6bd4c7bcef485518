"""Parts of the report that are made of the sums over all rows: the time series, the answers, and sampled rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import get_args

from pydantic import BaseModel, ConfigDict

from airflow_provider_llmbeam.pipeline.reporting.answer_profile import AnswerProfile, class_start, most_frequent
from airflow_provider_llmbeam.pipeline.reporting.samples import (
    MAX_ANSWER_CHARACTERS,
    MAX_MESSAGE_CHARACTERS,
    MAX_ROW_CHARACTERS,
    Samples,
)
from airflow_provider_llmbeam.pipeline.reporting.tally import percentile_seconds
from airflow_provider_llmbeam.pipeline.reporting.time_series import TimeSeries
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind
from airflow_provider_llmbeam.spec.protocol.counts import NANO
from airflow_provider_llmbeam.spec.safety.privacy import inspection_usd

#: Number of versions of the model in the report.
MAX_MODELS = 20
#: Number of categories of a kind of failure in the report.
MAX_CATEGORIES = 50


class Part(BaseModel):
    """Part of a report."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Series(Part):
    """Events of the run by time: each list has one number per interval, from the first event to the last one.

    Attributes:
        started_at: Unix time at which the first interval begins.
        interval_seconds: Length of an interval, in seconds: a power of two.
        answers: Answers received.
        batch_answers: Answers of batch inference whose results were read.
        failed: Prompts that failed.
        rejections: 429s.
        in_flight: Mean number of requests in flight whose answers were received.
        held: Mean number of these requests that waited for a rate limit.
        latency_p50: Median of the latency of the answers, in seconds; `None` without any.
        latency_p95: Its 95th percentile.
        input_tokens: Billed input tokens, without batch inference.
        output_tokens: Billed output tokens, without batch inference.
        cost_usd: Cost of all of them, in US dollars.
    """

    started_at: float
    interval_seconds: int
    answers: list[int]
    batch_answers: list[int]
    failed: list[int]
    rejections: list[int]
    in_flight: list[float]
    held: list[float]
    latency_p50: list[float | None]
    latency_p95: list[float | None]
    input_tokens: list[int]
    output_tokens: list[int]
    cost_usd: list[float]


class FailedSample(Part):
    """A failed row. Longer texts are cut, and end in `…`.

    Attributes:
        row: The row as JSON, at most 300 characters of it.
        message: Message of the server, at most 500 characters of it.
        http_status: HTTP status of the last response.
        attempts: Number of requests sent, without 429s.
        origin: Origin of the failure, see `Report.origins`.
    """

    row: str
    message: str
    http_status: int | None
    attempts: int
    origin: str


class AnswerSample(Part):
    """An answered row. Longer texts are cut, and end in `…`.

    Attributes:
        row: The row as JSON, at most 300 characters of it.
        answer: The answer, at most 600 characters of it.
        characters: Length of the whole answer.
        model: Version of the model.
        origin: Origin of the answer.
        finish_reason: `stop`, `max_tokens`, or the value of the server.
    """

    row: str
    answer: str
    characters: int
    model: str
    origin: str
    finish_reason: str


class SampledRows(Part):
    """Rows of the run. Secrets in them are masked.

    Attributes:
        failed: At most three failed rows by kind of failure.
        answers: At most five answers. They are those whose fingerprints are the lowest, so that the choice is
            random, and the same for the same prompts.
    """

    failed: dict[str, list[FailedSample]]
    answers: list[AnswerSample]


class LengthCount(Part):
    """Number of answers of at least this length, in characters, and below the next one."""

    characters: int
    answers: int


class Answers(Part):
    """What the answers of all rows look like in sum, wherever they come from.

    Attributes:
        models: Number of answers by version of the model, the 20 most frequent ones.
        empty: Number of answers that say nothing: blank, or an empty JSON value.
        repaired: Number of invalid answers that a repair has replaced, in this run.
        invalid: Number of rows whose answers did not match the schema in the end.
        lengths: Number of answers by length.
        labels: Number of answers by label, by field: fields whose schema is an enum or a boolean, or `answer` if
            the answers are few different short texts. At most 50 labels, and `(others)`.
    """

    models: dict[str, int]
    empty: int
    repaired: int
    invalid: int
    lengths: list[LengthCount]
    labels: dict[str, dict[str, int]]


class InspectionCounts(Part):
    """The texts of a job that Sensitive Data Protection inspected.

    Attributes:
        requests: Requests that were answered.
        bytes: Size of their texts in bytes, by which the service bills.
        list_price_usd: Price of these bytes in US dollars. The first GiB of a month is free, and the cost of the
            job does not include it.
    """

    requests: int
    bytes: int
    list_price_usd: float


class PrivacyCounts(Part):
    """Personal data of the rows, and what the model made of its placeholders.

    Attributes:
        masked: Values that were masked in rows and prompts, by kind.
        issued: Placeholders in the prompts of the answered rows, each once for a row.
        returned: Those that the answer has as they are.
        lost: Those that it has neither as they are nor altered.
        altered: Number of times that an answer has one in another form.
        invented: Number of times that an answer has a placeholder that its prompt did not have.
        repaired: Number of rows whose answer altered a placeholder and was repaired, see `on_altered`.
        inspection: Requests to Sensitive Data Protection; `None` without a detector of type `dlp`.
    """

    masked: dict[str, int]
    issued: int
    returned: int
    lost: int
    altered: int
    invented: int
    repaired: int = 0
    inspection: InspectionCounts | None = None


def privacy_of(masked: Counter[str], sums: Counter[str]) -> PrivacyCounts:
    """Returns the personal data of a run.

    Args:
        masked: See `Tally.masked`.
        sums: See `Tally.sums`.
    """
    names = ("issued", "returned", "lost", "altered", "invented", "repaired")
    counts = {name: sums[f"placeholders_{name}"] for name in names}
    inspected_bytes = sums["inspected_bytes"]
    inspection = InspectionCounts(
        requests=sums["inspection_requests"],
        bytes=inspected_bytes,
        list_price_usd=round(inspection_usd(inspected_bytes), 6),
    )
    return PrivacyCounts(
        masked=dict(sorted(masked.items())),
        inspection=inspection if inspection.requests else None,
        **counts,
    )


def series_of(series: TimeSeries) -> Series | None:
    """Returns the time series; `None` for a run without events."""
    if not series.intervals:
        return None
    seconds, dense = 2**series.exponent, list(series.dense())
    start = series.numbers.start * seconds
    in_flight = _levels(
        start, seconds, [(each.sent, each.sent_ms, each.answers, each.answered_ms) for each in dense]
    )
    held = _levels(start, seconds, [(each.held, each.held_ms, each.released, each.released_ms) for each in dense])
    return Series(
        started_at=start,
        interval_seconds=seconds,
        answers=[each.answers for each in dense],
        batch_answers=[each.batch_answers for each in dense],
        failed=[each.failed for each in dense],
        rejections=[each.rejections for each in dense],
        in_flight=in_flight,
        held=held,
        latency_p50=[percentile_seconds(each.latencies, 0.5) for each in dense],
        latency_p95=[percentile_seconds(each.latencies, 0.95) for each in dense],
        input_tokens=[each.input_tokens for each in dense],
        output_tokens=[each.output_tokens for each in dense],
        cost_usd=[round(each.cost_nano_usd / NANO, 6) for each in dense],
    )


def samples_of(samples: Samples, redact: Callable[[str], str]) -> SampledRows:
    """Returns the sampled rows.

    Args:
        samples: Those that were kept.
        redact: Removes secrets from a text.
    """

    def shown(text: str, characters: int) -> str:
        redacted = redact(text)  # also a secret that was cut off, which is at the end of the text
        return f"{redacted[:characters]}…" if len(text) > characters else redacted

    kinds = [kind for kind in get_args(FailureKind) if kind in samples.failed]
    return SampledRows(
        failed={
            kind: [
                FailedSample(
                    row=shown(row.row, MAX_ROW_CHARACTERS),
                    message=shown(row.message, MAX_MESSAGE_CHARACTERS),
                    http_status=row.http_status,
                    attempts=row.attempts,
                    origin=row.origin,
                )
                for _, row in sorted(samples.failed[kind].items())
            ]
            for kind in kinds
        },
        answers=[
            AnswerSample(
                row=shown(row.row, MAX_ROW_CHARACTERS),
                answer=shown(row.answer, MAX_ANSWER_CHARACTERS),
                characters=row.characters,
                model=row.model,
                origin=row.origin,
                finish_reason=row.finish_reason,
            )
            for _, row in sorted(samples.answers.items())
        ],
    )


def categories_of(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Returns the number of failed rows by category, by kind of failure."""
    by_kind: dict[str, Counter[str]] = {}
    for (kind, category), rows in counts.items():
        by_kind.setdefault(kind, Counter())[category] = rows
    return {kind: most_frequent(by_kind[kind], MAX_CATEGORIES) for kind in sorted(by_kind)}


def answers_of(profile: AnswerProfile, invalid: int) -> Answers:
    """Returns what the answers look like.

    Args:
        profile: Sums over the answers.
        invalid: Number of rows whose answers did not match the schema.
    """
    return Answers(
        models=most_frequent(profile.models, MAX_MODELS),
        empty=profile.empty,
        repaired=profile.repairs,
        invalid=invalid,
        lengths=[
            LengthCount(characters=class_start(number), answers=count)
            for number, count in sorted(profile.lengths.items())
        ],
        labels=profile.label_counts(),
    )


def _levels(start: int, seconds: int, events: Sequence[tuple[int, int, int, int]]) -> list[float]:
    """Returns the mean number of things that have begun and not ended, by interval.

    Args:
        start: Unix time of the first interval.
        seconds: Length of an interval.
        events: Number of beginnings, sum of their times in milliseconds, number of ends, and sum of their times.
    """
    levels, open_before = [], 0
    for index, (begun, begun_ms, ended, ended_ms) in enumerate(events):
        end_ms = (start + (index + 1) * seconds) * 1000
        area_ms = open_before * seconds * 1000 + (begun * end_ms - begun_ms) - (ended * end_ms - ended_ms)
        levels.append(round(max(0, area_ms) / (seconds * 1000), 2))
        open_before += begun - ended
    return levels
