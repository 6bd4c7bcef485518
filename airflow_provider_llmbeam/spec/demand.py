"""The demand of a job: rows and tokens, and the rate at which an earlier job was served."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from airflow_provider_llmbeam.spec.base import SpecModel

#: Last second of the year 9999, as Unix time: `datetime` has no later one.
END_OF_TIME = 253_402_300_799.0


class EarlierRate(SpecModel):
    """Rate that an earlier job has learned of a server whose quota is not known.

    Attributes:
        requests_per_minute: Requests per minute of one machine, beside what others have used then.
        tokens_per_minute: Input and output tokens per minute of one machine, if the server limits tokens. Then
            `requests_per_minute` is that of requests of the mean length of that job.
        learned_at: Unix time at which it was learned.
    """

    requests_per_minute: Annotated[float, Field(gt=0)]
    tokens_per_minute: Annotated[float, Field(gt=0)] | None = None
    learned_at: Annotated[float, Field(ge=0, le=END_OF_TIME)]

    @property
    def words(self) -> str:
        """The rate and its time, e.g. '600 requests per minute on 2026-11-24 03:12 UTC'."""
        at = datetime.fromtimestamp(self.learned_at, UTC)
        rate, unit = (
            (self.requests_per_minute, "requests")
            if self.tokens_per_minute is None
            else (self.tokens_per_minute, "tokens")
        )
        return f"{rate:,.0f} {unit} per minute on {at:%Y-%m-%d %H:%M} UTC"

    def seconds(self, requests: float, tokens: float) -> float:
        """Returns the duration of requests with so many input and output tokens together, in seconds."""
        if self.tokens_per_minute is not None:
            return 60 * tokens / self.tokens_per_minute
        return 60 * requests / self.requests_per_minute


class Demand(SpecModel):
    """Number of rows and tokens per row that a job will send to a model.

    Attributes:
        rows: Number of rows to send, one request each: without duplicates and without rows that are answered
            already.
        input_tokens_per_row: Mean length of a prompt, in tokens.
        output_tokens_per_row: Mean length of an answer, in tokens.
        learned_rate: Rate that an earlier job has learned; `None` if there is none, or the job states a quota.
    """

    rows: Annotated[int, Field(ge=0)]
    input_tokens_per_row: Annotated[float, Field(ge=0)]
    output_tokens_per_row: Annotated[float, Field(ge=0)] = 0.0
    learned_rate: EarlierRate | None = None

    @property
    def tokens(self) -> float:
        """Input and output tokens of all rows."""
        return self.rows * (self.input_tokens_per_row + self.output_tokens_per_row)
