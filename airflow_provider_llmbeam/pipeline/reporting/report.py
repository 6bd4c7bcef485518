"""The report of a run, and its short form for XCom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import Field

from airflow_provider_llmbeam.engine.length_buckets import bucket_label
from airflow_provider_llmbeam.engine.outcome import BEFORE_ANY_REQUEST
from airflow_provider_llmbeam.pipeline.elements import Origin
from airflow_provider_llmbeam.pipeline.privacy.masker import Masker
from airflow_provider_llmbeam.pipeline.reporting.comparison import Comparison
from airflow_provider_llmbeam.pipeline.reporting.moderation import ModerationCounts, moderation_of, unsent_prompts
from airflow_provider_llmbeam.pipeline.reporting.parts import (
    Answers,
    Part,
    PrivacyCounts,
    SampledRows,
    Series,
    answers_of,
    categories_of,
    privacy_of,
    samples_of,
    series_of,
)
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally, latency_counts, percentile_seconds
from airflow_provider_llmbeam.pipeline.secrets import known_secrets
from airflow_provider_llmbeam.redaction import redact, redact_all
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.server import ServerKind
from airflow_provider_llmbeam.spec.protocol.alert import Alert
from airflow_provider_llmbeam.spec.protocol.counts import NANO
from airflow_provider_llmbeam.spec.protocol.manifest import manifest


class RowCounts(Part):
    """Rows read = answered + dead letter."""

    read: int
    answered: int
    dead_letter: int


class RequestCounts(Part):
    """Requests of this run.

    Attributes:
        sent: All requests.
        rejected: Those that received a 429.
        shed: Those for which the flex tier had no capacity; they are not in `rejected`.
        unreturned: Answers of batch inference that the provider counted, and did not return, e.g. of a cancelled
            job: it bills them, and they are neither in `sent` nor in the tokens and the cost.
        retried: Those after an error.
        mended: Answers of this run that needed no repair by another request, as their JSON was taken out of a code
            fence, or freed of the text after it and of control characters.
        per_minute: Requests per minute, from the first request to the last answer.
        quota_ratio: The same over `limits.requests_per_minute`.
    """

    sent: int
    rejected: int
    shed: int = 0
    unreturned: int = 0
    retried: int
    mended: int = 0
    per_minute: float | None
    quota_ratio: float | None


class TokenCounts(Part):
    """Tokens billed in this run, including those of discarded answers.

    Attributes:
        input: Input tokens.
        cached: Input tokens from the provider's cache, which `input` includes.
        output: Output tokens, thoughts included.
        estimated: Those of all these that the server did not report: they, and their cost, are estimated from the
            length of the texts.
        per_minute: Input and output tokens per minute, from the first request to the last answer.
    """

    input: int
    cached: int = 0
    output: int
    estimated: int = 0
    per_minute: float | None


class Latency(Part):
    """Percentiles of the duration of successful requests, in seconds, at most 10 % too high."""

    p50: float | None
    p95: float | None
    p99: float | None


class BucketCounts(Part):
    """One length bucket: rows answered in this run, and their tokens."""

    input_tokens_range: str
    rows: int
    input_tokens: int
    output_tokens: int


class ServerOfJob(Part):
    """The server that answered the requests of this run.

    Attributes:
        kind: `provider` (Google or OpenAI), `custom` (another address), or `loopback` (this machine, and the
            sandbox), whose answers no other kind of server shares.
        origin: Its scheme, host and port; empty for `echo`.
    """

    kind: ServerKind
    origin: str


class ComparedFigure(Part):
    """One figure of an estimate and of the run.

    Attributes:
        estimated: The figure of the estimate.
        actual: The figure of this run.
        ratio: Actual over estimated, each per prompt: a run that found part of the answers in the journal, or an
            estimate of more rows, gives a meaningful ratio as well. `None` if one of the figures is zero.
    """

    estimated: float
    actual: float
    ratio: float | None


class EstimateAccuracy(Part):
    """An estimate compared with the run. Prompts that the estimate itself sent are in neither.

    Attributes:
        made_at: Unix time of the estimate.
        error_ratio: Half of the 95 % interval that the estimate stated, over its tokens.
        requests: Number of prompts; without a ratio, since it depends on how much of the job this run was.
        input_tokens: Billed input tokens.
        output_tokens: Billed output tokens.
        cost_usd: Cost of these tokens, in US dollars; `None` if a price is not known.
    """

    made_at: float
    error_ratio: float | None
    requests: ComparedFigure
    input_tokens: ComparedFigure
    output_tokens: ComparedFigure
    cost_usd: ComparedFigure | None


@dataclass(frozen=True, kw_only=True)
class RunUsage:
    """Usage of a run, to compare an estimate with.

    Attributes:
        prompts: Number of prompts sent by this run, answered or not.
        input_tokens: Billed input tokens.
        output_tokens: Billed output tokens.
        cost_usd: Cost of these tokens, in US dollars; `None` if no price is known.
    """

    prompts: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None


class Report(Part):
    """The report of a run. Times are Unix seconds; all sums are those of this run.

    Attributes:
        origins: Answered rows by origin of the answer: `fresh`, `repaired` (received after an invalid answer),
            `resumed` from the journal, `cached` from another job, or `duplicate` of an equal prompt.
        service_tiers: Answers of this run by the tier that served them, as the server reports it: `standard`,
            `flex`, `priority` or `batch`.
        dead_letter_by_kind: Failed rows by kind of failure.
        dead_letter_by_category: Failed rows of the kinds `blocked` and `moderated` by what they were blocked for,
            as the server or the guard model names it: the 50 most frequent categories.
        dead_letter_words: Message of one failure per kind.
        batch_errors: Rows that failed in batch inference, and were sent online, by kind and message: the 10
            commonest.
        moderation: Requests and verdicts of the guard model (`safety.moderation`); `None` without one.
        padding_ratio: Padding over all input tokens that the server computed; 0 if it batches by itself.
        latency_counts: Number of successful requests by their duration in seconds, each at most 10 % too high.
        first_token_seconds: Percentiles of the time to the first token of streamed answers.
        cost_usd: Cost of the tokens, at `limits.price` or the list price, in US dollars; `None` if neither is
            known.
        costs_usd: The same by what was paid for: the tier of the answers, or `prefix_cache`; as far as prices are
            known.
        budget_usd: `limits.budget_usd`.
        deadline_at: Time by which the answers were needed (`inference.finish_by`); `None` for none.
        batch_began_at: Time at which the batch inference of this run began; `None` without any.
        truncated: Number of answers truncated at `max_output_tokens`.
        sending_seconds: Time from the first request to the last answer, in seconds.
        estimate: Comparison with the estimate of the job; `None` without one.
        messages_left: Number of messages that the run left to the next one (`source.max_messages`), as far as its
            queue says; offsets of Kafka without a message count.
        skipped_because: Why the run was skipped; `None` if it was not.
        failed_because: Why the run failed after its last row; `None` if it did not.
        report_html_uri: Address of the report as a page; `None` for a run that was skipped.
        changes: What is notably different from earlier runs of the task, as sentences.
        alerts: Alerts that the figures of the ended run raise.
        answers: What the answers look like in sum.
        comparison: Comparison with earlier runs of the task; `None` for the first one.
        samples: Some failed rows, and some answers.
        series: Events of this run by time; `None` if nothing was sent.
        privacy: Personal data that was masked; `None` without `safety.privacy`.
    """

    version: int = 2
    name: str
    model: str
    server: ServerOfJob
    started_at: float
    finished_at: float
    duration_seconds: float
    sending_seconds: float | None
    rows: RowCounts
    origins: dict[str, int]
    service_tiers: dict[str, int]
    dead_letter_by_kind: dict[str, int]
    dead_letter_by_category: dict[str, dict[str, int]] = Field(default_factory=dict)
    dead_letter_words: dict[str, str]
    batch_errors: dict[str, int] = Field(default_factory=dict)
    moderation: ModerationCounts | None = None
    requests: RequestCounts
    tokens: TokenCounts
    cost_usd: float | None
    costs_usd: dict[str, float]
    budget_usd: float | None = None
    deadline_at: float | None = None
    batch_began_at: float | None = None
    truncated: int
    latency_seconds: Latency
    latency_counts: dict[str, int]
    first_token_seconds: Latency | None
    padding_ratio: float
    length_buckets: list[BucketCounts]
    estimate: EstimateAccuracy | None
    messages_left: int | None = None
    skipped_because: str | None = None
    failed_because: str | None = None
    answers_uris: list[str]
    dead_letter_uri: str
    report_uri: str
    report_html_uri: str | None
    changes: tuple[str, ...] = ()
    alerts: tuple[Alert, ...] = ()
    spec: dict[str, Any]
    answers: Answers
    comparison: Comparison | None = None
    samples: SampledRows
    series: Series | None = None
    privacy: PrivacyCounts | None = None

    def manifest(self) -> dict[str, Any]:
        """Returns the part that fits an XCom: counts and addresses, no rows."""
        return manifest(self.model_dump(mode="json"))


def build_report(
    spec: JobSpec,
    *,
    tally: Tally,
    answers_uris: list[str],
    dead_letter_uri: str,
    report_uri: str,
    report_html_uri: str | None,
    started_at: float,
    finished_at: float,
    estimate_accuracy: Callable[[JobSpec, RunUsage], EstimateAccuracy | None] | None = None,
    skipped_because: str | None = None,
    failed_because: str | None = None,
    budget_usd: float | None = None,
    deadline_at: float | None = None,
    batch_began_at: float | None = None,
    messages_left: int | None = None,
    masker: Masker | None = None,
) -> Report:
    """Builds the report from the sums.

    Args:
        spec: The job.
        tally: Sums over all rows.
        answers_uris: Addresses of the answers.
        dead_letter_uri: Address of the dead letter.
        report_uri: Address of the report.
        report_html_uri: Address of the report as a page; `None` for none.
        started_at: Unix time.
        finished_at: Unix time.
        estimate_accuracy: Compares the usage of the run with the estimate of the job, if there is one.
        skipped_because: Why the run was skipped; `None` if it was not.
        failed_because: Why the run failed; `None` if it did not.
        budget_usd: Budget of the whole run.
        deadline_at: Unix time by which the answers were needed.
        batch_began_at: Unix time at which the batch inference of the run began.
        messages_left: Number of messages that the run left to the next one.
        masker: Masks the prompt and the rows in the spec; `None` if nothing is masked.
    """
    seconds = tally.last_answered_at - tally.first_sent_at
    minutes = seconds / 60 if 0 < seconds < float("inf") else None
    sums, quota = tally.sums, spec.limits.requests_per_minute
    requests_per_minute = sums["requests"] / minutes if minutes else None
    cost = None if sums["unpriced"] else round(sums["cost_nano_usd"] / NANO, 6)
    boundaries = spec.batching.resolved_boundaries
    secrets = known_secrets(spec.secret_variables)
    plain_spec = spec.model_dump(mode="json")
    return Report(
        name=spec.name,
        model=f"{spec.model.type}:{spec.model.name}",
        server=ServerOfJob(kind=spec.server.kind, origin=spec.server.origin),
        started_at=started_at,
        finished_at=finished_at,
        duration_seconds=round(finished_at - started_at, 3),
        sending_seconds=round(seconds, 3) if minutes else None,
        rows=RowCounts(read=tally.read, answered=tally.answered.total(), dead_letter=tally.failed.total()),
        origins={origin: tally.answered[origin] for origin in get_args(Origin)},
        service_tiers=dict(sorted(tally.tiers.items())),
        dead_letter_by_kind=dict(sorted(tally.failed.items())),
        dead_letter_by_category=categories_of(tally.categories),
        dead_letter_words={kind: message[:500] for kind, message in sorted(tally.messages.items())},
        batch_errors=dict(tally.batch_errors.most_common(10)),
        moderation=moderation_of(spec.safety.moderation, tally.moderation),
        requests=RequestCounts(
            sent=sums["requests"],
            rejected=sums["rejections"],
            shed=sums["sheds"],
            unreturned=sums["unreturned"],
            retried=sums["retries"],
            mended=sums["mended"],
            per_minute=_rounded(requests_per_minute),
            quota_ratio=_rounded(requests_per_minute / quota if requests_per_minute and quota else None),
        ),
        tokens=TokenCounts(
            input=sums["input_tokens"],
            cached=sums["cached_tokens"],
            output=sums["output_tokens"],
            estimated=sums["estimated_tokens"],
            per_minute=_rounded((sums["input_tokens"] + sums["output_tokens"]) / minutes if minutes else None),
        ),
        cost_usd=cost,
        costs_usd={way: round(nano / NANO, 6) for way, nano in sorted(tally.costs.items()) if nano},
        budget_usd=budget_usd,
        deadline_at=deadline_at,
        batch_began_at=batch_began_at,
        truncated=sums["truncated"],
        latency_seconds=_latency(tally.latencies),
        latency_counts=latency_counts(tally.latencies),
        first_token_seconds=_latency(tally.first_tokens) if tally.first_tokens else None,
        padding_ratio=_padding_ratio(tally),
        length_buckets=[
            BucketCounts(
                input_tokens_range=bucket_label(boundaries, index),
                rows=rows,
                input_tokens=tally.buckets[index, "input_tokens"],
                output_tokens=tally.buckets[index, "output_tokens"],
            )
            for index in range(len(boundaries) + 1)
            if (rows := tally.buckets[index, "rows"])
        ],
        estimate=estimate_accuracy(spec, _usage(tally, cost)) if estimate_accuracy else None,
        messages_left=messages_left,
        skipped_because=skipped_because,
        failed_because=failed_because,
        answers_uris=answers_uris,
        dead_letter_uri=dead_letter_uri,
        report_uri=report_uri,
        report_html_uri=report_html_uri,
        # Rows, variables and options of the spec may hold secrets by mistake. Addresses are kept as they are.
        spec=redact_all(plain_spec if masker is None else masker.spec(plain_spec), secrets),
        answers=answers_of(tally.profile, tally.failed["invalid_output"]),
        samples=samples_of(tally.samples, lambda text: redact(text, secrets)),
        series=series_of(tally.series),
        privacy=None if masker is None else privacy_of(tally.masked, tally.sums),
    )


def _usage(tally: Tally, cost_usd: float | None) -> RunUsage:
    failed_prompts = sum(rows for kind, rows in tally.failed.items() if kind not in BEFORE_ANY_REQUEST)
    sums = tally.sums
    failed_prompts -= sums["known_failures"] + unsent_prompts(tally.moderation)
    return RunUsage(
        prompts=tally.answered["fresh"] + tally.answered["repaired"] + failed_prompts + sums["batch_prompts"],
        input_tokens=sums["input_tokens"] - sums["pilot_input_tokens"],
        output_tokens=sums["output_tokens"] - sums["pilot_output_tokens"],
        cost_usd=None if cost_usd is None else round(cost_usd - sums["pilot_cost_nano_usd"] / NANO, 6),
    )


def _padding_ratio(tally: Tally) -> float:
    padding = tally.sums["padding_tokens"]
    real = sum(number for (_, name), number in tally.buckets.items() if name == "input_tokens")
    return round(padding / (real + padding), 4) if padding else 0.0


def _latency(classes: Counter[int]) -> Latency:
    return Latency(
        p50=percentile_seconds(classes, 0.5),
        p95=percentile_seconds(classes, 0.95),
        p99=percentile_seconds(classes, 0.99),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
