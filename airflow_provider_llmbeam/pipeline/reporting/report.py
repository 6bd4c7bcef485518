"""The report of a run: the values in `report.json`; docs/reference/report-fields.md describes each field."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from airflow_provider_llmbeam.pipeline.cascade.distilled.counts import DistilledCounts
from airflow_provider_llmbeam.spec.model.server import ServerKind
from airflow_provider_llmbeam.spec.protocol.alert import Alert
from airflow_provider_llmbeam.spec.protocol.manifest import manifest

#: Why a row is skipped, for a reader.
SKIPPED = {
    "empty": "without a value in `source.skip_empty`",
    "duplicate_key": "with the key of an answered row",
    "identical": "identical to an answered row",
}


class Part(BaseModel):
    """Part of a report."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class RowCounts(Part):
    """Rows read = answered + dead letter + skipped."""

    read: int
    answered: int
    dead_letter: int
    skipped: int = 0


class RequestCounts(Part):
    """Requests of this run.

    Attributes:
        sent: All requests.
        rejected: Those that received a 429.
        shed: Those for which the flex tier had no capacity; they are not in `rejected`.
        unreturned: Answers of batch inference that the provider counted, and did not return in a line that can be
            read, e.g. of a cancelled job: it bills them, and they are neither in `sent` nor in the tokens and the
            cost.
        retried: Those after an error.
        mended: Answers of this run that needed no repair by another request, as their JSON was taken out of a code
            fence, or freed of the text after it and of control characters.
        per_minute: Requests per minute after the first one, until the last answer; `None` for fewer than two, and
            with batch inference.
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
        cache_written: Input tokens written to that cache, which `input` includes, where they have their own price.
        output: Output tokens, thoughts included.
        reasoning: Those of thoughts, as far as the server counts them.
        estimated: Those of all these that the server did not report: they, and their cost, are estimated from the
            length of the texts.
        per_minute: Input and output tokens per minute, from the first request to the last answer; `None` with
            batch inference.
    """

    input: int
    cached: int = 0
    cache_written: int = 0
    output: int
    reasoning: int = 0
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


class Series(Part):
    """Events of the run by time: each list has one number per interval, from the first event to the last one."""

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
    gpu_busy: list[float | None] = Field(default_factory=list)


class FailedSample(Part):
    """A failed row. Longer texts are cut, and end in `…`."""

    row: str
    message: str
    http_status: int | None
    attempts: int
    origin: str


class AnswerSample(Part):
    """An answered row. Longer texts are cut, and end in `…`; `characters` is the length of the whole answer."""

    row: str
    answer: str
    characters: int
    model: str
    origin: str
    finish_reason: str


class SampledRows(Part):
    """Rows of the run, without secrets: at most three failed rows by kind of failure, and five answers."""

    failed: dict[str, list[FailedSample]]
    answers: list[AnswerSample]


#: Why a row is a span, see `spec.Traces`.
TraceReason = Literal["failed", "flagged", "judged", "sampled"]


class TracedRow(Part):
    """A row that becomes a span; texts are there with `traces.include_text` alone.

    Attributes:
        reason: Why it is traced.
        key_hash: SHA-256 of its key, as the audit has it; of the whole row for one without a key.
        began_at: Unix time of its first request; 0 if this run has sent none, as are then all counts.
        ended_at: Unix time of the answer or the failure; 0 likewise.
        error: Kind of failure; empty for an answer.
        labels: What a guard found, by the name of the evaluation.
        scores: Marks of metrics, from 0 to 1, by their name.
    """

    reason: TraceReason
    key_hash: str
    began_at: float
    ended_at: float
    error: str = ""
    http_status: int | None = None
    request_id: str | None = None
    model: str = ""
    finish_reason: str = ""
    attempts: int
    rejections: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cost_usd: float | None
    service_tier: str
    labels: dict[str, str] = {}
    scores: dict[str, float] = {}
    row: str | None = None
    answer: str | None = None
    message: str | None = None


class LengthCount(Part):
    """Number of answers of at least this length, in characters, and below the next one."""

    characters: int
    answers: int


class Answers(Part):
    """What the answers of all rows look like in sum, wherever they come from."""

    models: dict[str, int]
    empty: int
    repaired: int
    invalid: int
    lengths: list[LengthCount]
    labels: dict[str, dict[str, int]]


class InspectionCounts(Part):
    """The texts of a job that Sensitive Data Protection inspected: requests, and bytes, by which it bills.

    The first GiB of a month is free, and the cost of the job does not include the list price.
    """

    requests: int
    bytes: int
    list_price_usd: float


class PrivacyCounts(Part):
    """Personal data of the rows, and what the model made of its placeholders, see docs/privacy.md."""

    masked: dict[str, int]
    issued: int
    returned: int
    lost: int
    altered: int
    invented: int
    repaired: int = 0
    inspection: InspectionCounts | None = None


class JudgedSide(Part):
    """What the guard judged on one side: the prompts, or the answers.

    Attributes:
        texts: Distinct texts of which it was asked in this run; the verdicts on others are in the journal.
        safe: Rows whose text it calls safe.
        unsafe: Rows whose text it calls unsafe.
        unreadable: Rows on whose text its answer is no verdict.
        unjudged: Rows that failed as its server gave no answer; a retry asks for them again.
        actions: Rows by what followed from an unsafe or unreadable verdict: `fail`, `flag`, `replace` or `allow`.
        categories: Rows by category; a row of several counts in each.
    """

    texts: int
    safe: int
    unsafe: int
    unreadable: int
    unjudged: int
    actions: dict[str, int]
    categories: dict[str, int]


class ModerationCounts(Part):
    """The requests of the guard in this run, which are not among those of the job, and its verdicts by side."""

    model: str
    requests_sent: int
    requests_rejected: int
    requests_retried: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    input: JudgedSide | None
    output: JudgedSide | None


class CascadeStage(Part):
    """A stage of a cascade, or at the end `model`, in this run.

    Attributes:
        name: Its name, as in the column `llmbeam_answered_by`.
        threshold: Smallest score that it keeps; `None` for a stage that is not asked, and for `model`.
        rows: Rows that it was asked for, the sample not included.
        answered: Rows that have its answer.
        failed: Rows that it could not answer, and that escalated.
        requests: Requests of this run, with those for the sample.
        cost_usd: Their cost; `None` if the price is not known.
        distilled: What a distilled stage has learned; `None` for a model.
    """

    name: str
    threshold: float | None
    rows: int
    answered: int
    failed: int
    requests: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    distilled: DistilledCounts | None = None


class CascadePoint(Part):
    """Thresholds that the calibration has considered: see `cascade.calibration.CurvePoint`."""

    escalated_ratio: float
    agreement: float
    low: float
    is_certified: bool


class CascadeClass(Part):
    """A class by the label of `model`: test draws, agreement, and the lower end of its one-sided interval."""

    label: str
    draws: int
    agreement: float
    low: float


class CascadeCounts(Part):
    """The cascade of a run.

    Attributes:
        stages: Its stages, and at the end `model`.
        reason: Why `model` answers every row; empty if a stage is asked.
        target_agreement: What the thresholds keep.
        confidence: With which probability.
        is_guaranteed: Whether the rows are those from which the sample was drawn; else they are only monitored.
        calibrated_at: Unix time of the calibration; `None` without one.
        draws: Number of draws.
        agreement: Share of the test draws whose final answer agrees with that of `model`.
        low: Lower end of the one-sided interval of the agreement.
        high: Upper end.
        classes: Classes whose agreement is guaranteed.
        not_guaranteed: Classes that escalate, as they have too few draws.
        escalated_ratio: Share of the answered rows that have the answer of `model`.
        sample_cost_usd: Cost of the calibration in this run.
        judge_cost_usd: Cost of the judges of `agreement` in this run.
        all_by_model_usd: Cost if `model` had answered every prompt of this run, as the sample has cost; `None`
            without a calibration.
        audited: Rows of the audit sample of this run.
        disagreements: Those whose answer of a stage disagrees with that of `model`.
        audited_before: Audited rows of earlier runs since the calibration.
        disagreements_before: Those of them that disagree.
        curve: Agreement against the escalated share.
    """

    stages: list[CascadeStage]
    reason: str
    target_agreement: float
    confidence: float
    is_guaranteed: bool
    calibrated_at: float | None
    draws: int
    agreement: float | None
    low: float | None
    high: float | None
    classes: list[CascadeClass]
    not_guaranteed: list[str]
    escalated_ratio: float | None
    sample_cost_usd: float
    judge_cost_usd: float = 0.0
    all_by_model_usd: float | None
    audited: int
    disagreements: int
    audited_before: int
    disagreements_before: int
    curve: list[CascadePoint]


class Figure(Part):
    """One figure of this run and of the last one, and its mean over the compared runs; `None` if not known."""

    now: float | None
    last: float | None
    mean: float | None


class LabelDrift(Part):
    """Number of answers by label of one field, now and summed over the compared runs."""

    field: str
    now: dict[str, int]
    before: dict[str, int]
    psi: float | None
    psi_expected: float | None


class RunComparison(Part):
    """This run and the earlier ones of its task, whose distributions `drift.Stability` compares."""

    runs: int
    last_run: str
    last_finished_at: float
    figures: dict[str, Figure]
    failed_ratio_difference: float | None
    lengths_psi: float | None
    lengths_psi_expected: float | None
    labels: list[LabelDrift]
    new_models: list[str]
    changes: list[str]

    @property
    def before(self) -> str:
        """The compared runs in words."""
        return "the last run" if self.runs == 1 else f"the last {self.runs} runs"

    @property
    def line(self) -> str:
        """The comparison as one line of a log."""
        ended = datetime.fromtimestamp(self.last_finished_at, UTC).isoformat(" ", "minutes").removesuffix("+00:00")
        changes = "; ".join(self.changes) or "nothing notable has changed"
        return f"Compared with {self.before}, until {ended} UTC: {changes}."


class FullPrice(Part):
    """Rows of batch inference that were sent online instead.

    Attributes:
        rows: Number of distinct prompts.
        extra_usd: What their requests in this run have cost beyond the price of batch inference, in US dollars;
            `None` if a price is not known.
        because: Why batch inference has not answered them.
    """

    rows: int
    extra_usd: float | None
    because: str


class ServedModel(Part):
    """One deployed model of the endpoint while the job ran, whoever asked it.

    Attributes:
        name: Name of the model, or of its version.
        responses: Responses to all clients.
        failed: Those of them with a 5xx.
        gpu_minutes: Minutes times replicas; the GPUs of one replica count once.
        idle_minutes: Those of them in which its GPUs did not work: the rest of the duty cycle.
        waiting: Mean number of requests in the queue of vLLM; `None` if not known.
    """

    name: str
    responses: int
    failed: int
    gpu_minutes: float
    idle_minutes: float
    waiting: float | None


class Serving(Part):
    """The endpoint on Vertex AI while the job ran, from Cloud Monitoring.

    Attributes:
        models: Its deployed models by their ids.
        until: End of the last minute that Cloud Monitoring showed, which is 2 to 6 minutes late.
        sentences: What follows for the number of replicas, for each model.
    """

    models: dict[str, ServedModel]
    until: float
    sentences: list[str]


class Report(Part):
    """The report of a run. Times are Unix seconds; all sums are those of this run; costs are in US dollars.

    Each field is described in docs/reference/report-fields.md, where users look for it.
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
    all_rows: RowCounts | None = None
    origins: dict[str, int]
    service_tiers: dict[str, int]
    skipped_by_reason: dict[str, int] = Field(default_factory=dict)
    dead_letter_by_kind: dict[str, int]
    dead_letter_by_category: dict[str, dict[str, int]] = Field(default_factory=dict)
    dead_letter_words: dict[str, str]
    batch_errors: dict[str, int] = Field(default_factory=dict)
    full_price: FullPrice | None = None
    moderation: ModerationCounts | None = None
    cascade: CascadeCounts | None = None
    requests: RequestCounts
    tokens: TokenCounts
    cost_usd: float | None
    costs_usd: dict[str, float]
    budget_usd: float | None = None
    budget_left_usd: float | None = None
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
    comparison: RunComparison | None = None
    samples: SampledRows
    series: Series | None = None
    serving: Serving | None = None
    trace_id: str | None = None
    trace_url: str | None = None
    traced_rows: list[TracedRow] = Field(default_factory=list)
    privacy: PrivacyCounts | None = None

    @property
    def skipped_words(self) -> str:
        """The numbers of skipped rows with their reasons, in words."""
        return ", ".join(f"{rows:,} {SKIPPED[reason]}" for reason, rows in self.skipped_by_reason.items())

    def manifest(self) -> dict[str, Any]:
        """Returns the part that fits an XCom: counts and addresses, no rows."""
        return manifest(self.model_dump(mode="json"))
