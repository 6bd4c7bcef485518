"""How fast, how patiently and in what portions."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.model.price import Price

#: Powers of two: at most 28 % waste per class whatever the lengths (limit of a geometric ratio of 2,
#: 1 - 1/(2 ln 2)), and 12 classes reach any model's context.
DEFAULT_BUCKET_BOUNDARIES = tuple(2**power for power in range(7, 18))


class Limits(SpecModel):
    """What the job may use.

    Attributes:
        requests_per_minute: Quota of requests. `None`: unknown; the rate is learned from the server's 429s, or,
            for a server of one's own, the number in flight from its latency.
        tokens_per_minute: Quota of tokens, input and output together. `None`: unknown.
        max_in_flight: Requests under way at once, per worker process.
        share_ratio: The part of these quotas that this job may take, so that a backfill leaves the nightly run its
            own. All jobs of one machine that name the same quotas and share pace together.
        expected_workers: Machines that share the quotas above (the processes of one machine share a governor).
            Each starts with its part and finds out by itself when others leave some. `None`: on Dataflow the most
            workers that the job may have, else one.
        max_attempts: Tries per row for 5xx, timeouts and broken connections. A 429 costs time, not attempts.
        request_timeout_seconds: Of one try.
        max_throttled_seconds: A row that the server has answered with nothing but 429 for this long ends in
            the dead letter.
        max_dead_letter_ratio: The share of the rows that may end in the dead letter. Beyond it the job fails and
            the previous output stays; the answers are kept, so that another try pays for the bad rows alone.
        budget_usd: What the tokens of one run may cost. A run that has spent more sends nothing more and fails;
            its answers are kept, and another run, with a budget of its own, goes on from there. The requests under
            way are not cut off, so it may cost as much more as they do. Each worker process watches what it
            spends itself.
        price: Of the model's tokens, for the budget and the cost in the report. `None`: the list price of a Gemini
            model, and unknown for a server of one's own.
    """

    requests_per_minute: Annotated[float, Field(gt=0)] | None = None
    tokens_per_minute: Annotated[float, Field(gt=0)] | None = None
    max_in_flight: Annotated[int, Field(ge=1, le=10_000)] = 64
    share_ratio: Annotated[float, Field(gt=0, le=1)] = 1.0
    expected_workers: Annotated[int, Field(ge=1)] | None = None
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 5
    request_timeout_seconds: Annotated[float, Field(gt=0)] = 120.0
    max_throttled_seconds: Annotated[float, Field(gt=0)] = 1800.0
    max_dead_letter_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    budget_usd: Annotated[float, Field(gt=0)] | None = None
    price: Price | None = None

    @model_validator(mode="after")
    def _share_of_something(self) -> Self:
        if self.share_ratio < 1 and self.requests_per_minute is None and self.tokens_per_minute is None:
            raise ValueError("`share_ratio` needs `requests_per_minute` or `tokens_per_minute`: a share of what?")
        return self


class Batching(SpecModel):
    """How rows are grouped on their way to the server.

    Attributes:
        bucket_boundaries: Input tokens, ascending, lower-inclusive: `(128, 512)` gives [0, 128), [128, 512),
            [512, ∞). Each length bucket is a cost class with its own forecast of output tokens and its own
            line in the report. `None`: powers of two from 128 to 131,072.
        max_batch_size: Rows that one `run_inference` call plans together. Between two batches the requests under
            way run dry: once per 8,192 rows costs 0.2 s of 13 s at 200 ms and 128 in flight.
        max_padded_tokens: Of one request to a server that takes several prompts per request: number of prompts ×
            tokens of the longest. Others ignore it.
        max_instances: Prompts in one such request. `None`: as many as the API takes, e.g. for embeddings 2,048
            of OpenAI's, 100 of the Gemini Developer API's and 250 of Vertex AI's. A server of one's own may take
            fewer, and refuse the rest.
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
        """The boundaries given, or the default ones."""
        return self.bucket_boundaries or DEFAULT_BUCKET_BOUNDARIES
