"""Settings of the emulated batch inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Outcome = Literal["succeeded", "partially_succeeded", "failed", "expired", "stuck", "stuck_at"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
Lack = Literal["batches", "files", "cancel", "metadata", "filename", "error_file"]
_SECONDS = ("queue_seconds", "run_seconds", "cancel_seconds")
_RATIOS = ("fail_ratio", "malformed_ratio", "missing_ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Settings of the jobs of batch inference. All durations are by the sandbox's clock.

    A job keeps the settings of its creation. The rows of its results are always in a random order.

    Attributes:
        outcome: End of a job. `partially_succeeded` is a state of Vertex AI only, the others succeed; `expired`
            expires after `run_seconds` with 99 % of its rows finished; `stuck` is queued and `stuck_at` runs at
            99 % until it expires or is cancelled.
        queue_seconds: Time in the queue, in seconds, >= 0.
        run_seconds: Time from the start to the end, in seconds, >= 0; rows are finished at a constant rate.
        cancel_seconds: Time from the request to cancel to the end, in seconds, >= 0.
        expires_seconds: Time from the creation after which a job expires, in seconds, > 0; None is that of the
            provider. Vertex AI and OpenAI return the rows that are finished by then, the Developer API none.
        cancel_returns_rows: Whether a cancelled job returns the rows that were finished.
        fail_ratio: Share of rows that have an error, 0 to 1; rounded up to whole rows, as the next two.
        malformed_ratio: Share of rows whose line is cut or is not JSON, 0 to 1.
        missing_ratio: Share of rows without a line, 0 to 1.
        reorders_echo: Whether Vertex AI returns requests with their fields in another order and numbers in another
            format, e.g. 1.0 for 1.
        pads_echo: Whether Vertex AI returns `"fileData": null` in a part with a text, and `"text": null` in one
            with a file. Source: the example of a result in
            docs.cloud.google.com/vertex-ai/generative-ai/docs/multimodal/batch-prediction-from-cloud-storage.
        echoes_input: Whether a job of the Developer API names its request file in `metadata.inputConfig`; whether
            it does is not documented.
        rows_per_shard: Maximum number of lines in a file of Vertex AI, >= 1.
        failure: Message of a failed job; "" is a usual one of the provider.
        max_jobs: Maximum number of jobs of the Developer API that have not ended, >= 1.
        max_enqueued_tokens: Maximum of input tokens per model in jobs that have not ended, of the Developer API
            and of OpenAI, >= 1; None is no limit.
        without: What a server with OpenAI's API lacks, now and not by job: `batches`, `files`, `cancel`, the
            `metadata` of batches, the `filename` of uploads, the `error_file`.

    Raises:
        ValueError: A value is out of bounds.
    """

    outcome: Outcome = "succeeded"
    queue_seconds: float = 0.0
    run_seconds: float = 0.0
    cancel_seconds: float = 0.0
    expires_seconds: float | None = None
    cancel_returns_rows: bool = True
    fail_ratio: float = 0.0
    malformed_ratio: float = 0.0
    missing_ratio: float = 0.0
    reorders_echo: bool = False
    pads_echo: bool = True
    echoes_input: bool = False
    rows_per_shard: int = 1000
    failure: str = ""
    max_jobs: int = 100
    max_enqueued_tokens: int | None = None
    without: Sequence[Lack] = ()

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(
                f"`BatchSettings.outcome` must be one of {', '.join(OUTCOMES)}; got {self.outcome!r}."
            )
        for name in _SECONDS:
            if not getattr(self, name) >= 0:
                raise ValueError(f"`BatchSettings.{name}` must be >= 0; got {getattr(self, name)!r}.")
        if self.expires_seconds is not None and not self.expires_seconds > 0:
            raise ValueError(f"`BatchSettings.expires_seconds` must be > 0; got {self.expires_seconds!r}.")
        if unknown := sorted(set(self.without) - set(get_args(Lack))):
            raise ValueError(
                f"`BatchSettings.without` must have some of {', '.join(get_args(Lack))}; got {unknown!r}."
            )
        ratios = [getattr(self, name) for name in _RATIOS]
        if not all(ratio >= 0 for ratio in ratios) or not sum(ratios) <= 1:
            raise ValueError(
                f"`BatchSettings`: {', '.join(_RATIOS)} must be >= 0, and at most 1 in all; got {ratios!r}."
            )
        for name in ("rows_per_shard", "max_jobs", "max_enqueued_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`BatchSettings.{name}` must be >= 1; got {value!r}.")
