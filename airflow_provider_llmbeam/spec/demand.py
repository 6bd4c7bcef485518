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
        learned_at: Unix time at which it was learned.
    """

    requests_per_minute: Annotated[float, Field(gt=0)]
    learned_at: Annotated[float, Field(ge=0, le=END_OF_TIME)]

    @property
    def words(self) -> str:
        """The rate and its time, e.g. '600 requests per minute on 2026-11-24 03:12 UTC'."""
        at = datetime.fromtimestamp(self.learned_at, UTC)
        return f"{self.requests_per_minute:,.0f} requests per minute on {at:%Y-%m-%d %H:%M} UTC"


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
