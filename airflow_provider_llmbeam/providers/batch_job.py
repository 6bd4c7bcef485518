"""A batch-inference job as its provider reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Jobs that are `partial`, `cancelled` or `expired` may have results, too.
BatchPhase = Literal["queued", "running", "cancelling", "succeeded", "partial", "failed", "cancelled", "expired"]

ENDED: frozenset[BatchPhase] = frozenset({"succeeded", "partial", "failed", "cancelled", "expired"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedFile:
    """A request file that the provider keeps.

    Attributes:
        name: Name or id of the file at the provider, by which it is deleted.
        display_name: Display name of the job that it was uploaded for.
        created_at: Unix time of its upload; 0 if the provider does not say so.
    """

    name: str
    display_name: str
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """A batch-inference job.

    Attributes:
        name: Name of the job at the provider, by which it is polled and cancelled.
        display_name: Name given at its creation, by which it is found again.
        state: State in the words of the provider.
        phase: The same for all providers; an unknown state counts as `running`.
        created_at: Unix time of its creation; 0 if the provider does not say so.
        started_at: Unix time at which the provider began to answer; `None` if it has not, or does not say so.
        ended_at: Unix time of its end; `None` if it has not ended.
        answered: Number of answered rows, as far as the provider counts them; `None` if it does not.
        failed: Number of failed rows; `None` if the provider does not count them.
        error: Error of the job as a whole, in the words of the provider.
        results: Places of its results: directories or files at the provider or on Cloud Storage. Empty before its
            end, and if it has none.
    """

    name: str
    display_name: str
    state: str
    phase: BatchPhase
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    answered: int | None = None
    failed: int | None = None
    error: str | None = None
    results: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended, with or without results."""
        return self.phase in ENDED

    @property
    def was_over_quota(self) -> bool:
        """Whether it failed because of the tokens of other jobs, after whose end it can be submitted again."""
        # OpenAI accepts such a job, and then lets it fail: github.com/openai/openai-python/issues/1643, 2084.
        return self.phase == "failed" and (self.error or "").startswith("token_limit_exceeded")
