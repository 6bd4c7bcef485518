"""Limits of a job (rates, retries, timeouts, budget) and the size of its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.base import NOT_SHOWN, FieldFaultError, SpecModel
from airflow_provider_llmbeam.spec.facts import USAGE_TIERS
from airflow_provider_llmbeam.spec.model.price import Price, price_of

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.model import Model

#: Powers of two: at most 28 % waste per class whatever the lengths (limit of a geometric ratio of 2,
#: 1 - 1/(2 ln 2)), and 12 classes reach any model's context.
DEFAULT_BUCKET_BOUNDARIES = tuple(2**power for power in range(7, 18))


#: What a shared budget can be for, beside a name; Airflow alone knows which run belongs to which.
OVER_RUNS = ("backfill", "month", "dag")
#: What a budget of a stream can be for, and the length of each window, in seconds. Windows begin in UTC.
OVER_WINDOWS = {"hour": 3600, "day": 86_400}


class SharedBudget(SpecModel):
    """A budget that many runs share.

    Attributes:
        usd: Maximum cost of the tokens of all of them, in US dollars. May be another one in a later run: what was
            spent counts against it.
        over: Which runs. `dag`: all of the Dag; `month`: all of the Dag that start in the same month, in the time
            zone of the Dag; `backfill`: its backfill runs, and others have no such budget (Airflow does not tell
            a task which backfill its run belongs to). `hour`, `day`: all members of a stream, and each hour or
            day of UTC has its own, and messages beyond it wait for the next. Any other word is a name: all runs
            with this `state_uri` and the same name, e.g. of several Dags.
    """

    usd: Annotated[float, Field(gt=0)]
    over: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$")]

    def begins_at(self, now: float) -> float | None:
        """Returns when the hour or day of a time has begun, as Unix time; `None` for another budget."""
        seconds = OVER_WINDOWS.get(self.over)
        return None if seconds is None else now // seconds * seconds

    def seconds_to_next(self, now: float) -> float | None:
        """Returns the time until the budget begins anew, in seconds; `None` if it does not."""
        begun = self.begins_at(now)
        return None if begun is None else begun + OVER_WINDOWS[self.over] - now


class PerKey(SpecModel):
    """A rate of each key of a topic, e.g. of each user, for `llmbeam stream` alone.

    A key is in one partition, and so with one member of the group. When its partition goes to another one, its
    rate begins anew: the key may have up to `burst` messages more.

    Attributes:
        requests_per_minute: Maximum number of messages of a key that are sent in a minute, evenly.
        burst: Number of messages of a key that are sent at once after a rest.
        on_exceeded: Policy for a message above the rate. `dead_letter`: it is not sent. `wait`: it is sent later;
            meanwhile the answers after it in its partition are held, and so are they of other keys.
    """

    requests_per_minute: Annotated[float, Field(gt=0)]
    burst: Annotated[int, Field(ge=1)] = 1
    on_exceeded: Literal["dead_letter", "wait"] = "dead_letter"


class Limits(SpecModel):
    """Rates, retries, timeouts and budget of a job.

    Attributes:
        requests_per_minute: Quota of requests. `None`: unknown; the rate is learned from the 429s of the server,
            or, for a self-hosted server, the number of requests in flight from its latency.
        tokens_per_minute: Quota of tokens, input and output together. `None`: unknown; if `requests_per_minute` is
            unknown, too, it is learned which of them is exhausted first.
        usage_tier: Usage tier of your organisation in Vertex AI's Standard PayGo: 1, 2 or 3, or the threshold of a
            custom one in tokens per minute, from 1,000 on. Requests up to the threshold of the model are served
            first, so the job begins there, evenly, and probes what the shared pool admits above it. A rate that is
            stated counts instead. Also in the extra fields of the connection.
        max_in_flight: Maximum number of concurrent requests per worker process.
        share_ratio: Fraction of these quotas that this job may use, so that a backfill leaves quota to the nightly
            run. All jobs of one machine with the same quotas and share use one governor.
        expected_workers: Number of machines that share the quotas above (the processes of one machine share a
            governor). Each starts with its fraction and increases it while the server returns no 429. `None`: the
            maximum number of workers of the job on Dataflow, else one. In a stream, each machine has the share
            that its members have of the partitions, and a change of the group changes it.
        max_attempts: Maximum number of attempts per row for 5xx, timeouts, broken connections, and replies without
            an answer. A 429 or 503 costs time, not attempts.
        request_timeout_seconds: Timeout of one attempt, in seconds.
        max_throttled_seconds: A row that has received nothing but 429s and 503s for this time, in seconds, goes to
            the dead letter.
        max_outage_seconds: Longest time for which a server that has replied before may answer nothing, in seconds;
            meanwhile a request every few seconds looks for it. A server that has never replied has a minute.
        max_dead_letter_ratio: Maximum fraction of the rows in the dead letter. Above it the job fails and the
            previous output is kept; so are the answers, and another run pays for the failed rows only.
        budget_usd: Maximum cost of the tokens of one run, in US dollars. A run that has spent more sends no
            further requests and fails; its answers are kept, and another run, with its own budget, continues from
            there. Requests in flight are completed, so the cost can exceed the budget by theirs. Each worker
            process counts its own cost.
        budget: Budget that many runs share, see `SharedBudget`, e.g. `{"usd": 200, "over": "month"}`. A run that
            would exceed it stops as with `budget_usd`, which may be set, too. The ledger is below `state_uri`, on
            a disk that all workers share or on Cloud Storage. What a request may cost is reserved before it is
            sent; a process that is killed keeps what it had reserved, the cost of some seconds.
        price: Price of the tokens, for the budget and the cost in the report. `None`: the list price of a Gemini
            model; unknown for a self-hosted server.
        per_key: Rate of each key of a topic, see `PerKey`.
        retry_refused: Whether rows whose answer was refused by an earlier run (blocked, cut at
            `max_output_tokens`, or not valid against `output_schema`) are sent again, and paid for again. By
            default only a changed prompt, model, schema or `generation`, or more repairs, sends them again.
    """

    requests_per_minute: Annotated[float, Field(gt=0)] | None = None
    tokens_per_minute: Annotated[float, Field(gt=0)] | None = None
    usage_tier: Annotated[int, Field(ge=1)] | None = None
    max_in_flight: Annotated[int, Field(ge=1, le=10_000)] = 64
    share_ratio: Annotated[float, Field(gt=0, le=1)] = 1.0
    expected_workers: Annotated[int, Field(ge=1)] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 5
    request_timeout_seconds: Annotated[float, Field(gt=0)] = 120.0
    max_throttled_seconds: Annotated[float, Field(gt=0)] = 1800.0
    max_outage_seconds: Annotated[float, Field(gt=0)] = 1800.0
    max_dead_letter_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    budget_usd: Annotated[float, Field(gt=0)] | None = None
    budget: SharedBudget | None = None
    price: Price | None = None
    per_key: PerKey | None = None
    retry_refused: bool = False

    @field_validator("budget", mode="before")
    @classmethod
    def _many_runs(cls, budget: Any) -> Any:
        if isinstance(budget, int | float):
            raise ValueError(
                "must be like {'usd': 200, 'over': 'month'}, for many runs; `budget_usd` is that of one"
            )
        return budget

    @field_validator("usage_tier")
    @classmethod
    def _tier_or_threshold(cls, usage_tier: int | None) -> int | None:
        if usage_tier is not None and not (usage_tier in USAGE_TIERS["flash"] or usage_tier >= 1000):
            raise ValueError("must be 1, 2 or 3, or the tokens per minute of a custom tier, at least 1000")
        return usage_tier

    @model_validator(mode="after")
    def _share_of_a_quota(self) -> Self:
        quotas = (self.requests_per_minute, self.tokens_per_minute, self.usage_tier)
        if self.share_ratio < 1 and quotas == (None, None, None):
            raise ValueError(
                "`share_ratio` needs the quota that it divides: `requests_per_minute`, `tokens_per_minute` or "
                "`usage_tier`"
            )
        return self

    @property
    def budget_field(self) -> str | None:
        """Name of the field that limits the cost; `None` if none does."""
        return next((each for each in ("budget_usd", "budget") if getattr(self, each) is not None), None)


class Batching(SpecModel):
    """Grouping of rows into batches, length buckets and requests.

    Attributes:
        bucket_boundaries: Input tokens, ascending, lower-inclusive: `(128, 512)` gives [0, 128), [128, 512),
            [512, ∞). Each length bucket has its own prediction of output tokens and its own line in
            the report. `None`: powers of two from 128 to 131,072.
        max_batch_size: Maximum number of rows per `run_inference` call. No request is in flight between two
            batches: once per 8,192 rows costs 0.2 s of 13 s at 200 ms and 128 in flight.
        max_padded_tokens: Maximum size of one request to a server that takes several prompts per request: number
            of prompts × tokens of the longest. Other servers ignore it.
        max_instances: Maximum number of prompts in one such request. `None`: the limit of the API, e.g. for
            embeddings 2,048 (OpenAI), 100 (Gemini Developer API) and 250 (Vertex AI). A self-hosted server may
            accept fewer.
    """

    bucket_boundaries: tuple[int, ...] | None = None
    max_batch_size: Annotated[int, Field(ge=1, le=100_000)] = 8192
    max_padded_tokens: Annotated[int, Field(ge=1)] = 16_384
    max_instances: Annotated[int, Field(ge=1)] | None = None

    @field_validator("bucket_boundaries")
    @classmethod
    def _ascending(cls, boundaries: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if boundaries is not None and (
            not boundaries or boundaries[0] < 1 or list(boundaries) != sorted(set(boundaries))
        ):
            raise ValueError("must ascend and hold token counts of at least 1, e.g. [128, 512]")
        return boundaries

    @property
    def resolved_boundaries(self) -> tuple[int, ...]:
        """The given boundaries, or the default."""
        return self.bucket_boundaries or DEFAULT_BUCKET_BOUNDARIES


def unpriced_fault(model: Model, limits: Limits) -> FieldFaultError | None:
    """Returns the fault of the budget of a guard or a judge, e.g. that its price is not known, or `None`."""
    if limits.budget is not None:
        return FieldFaultError("limits.budget", "belongs into the `limits` of the job", NOT_SHOWN)
    if limits.budget_usd is None or price_of(model, limits.price) is not None:
        return None
    return FieldFaultError(
        "limits.price",
        f"this field is needed with `budget_usd`, as the price of {model.type} model {model.name!r} is not known",
        NOT_SHOWN,
        model.name,
    )
