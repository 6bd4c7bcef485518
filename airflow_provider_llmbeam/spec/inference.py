"""How the prompts of a job reach the model: online or by batch inference, and by when."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, field_validator

from airflow_provider_llmbeam.spec.base import SpecModel

_WANTED = "must be a time with its zone, or a duration above zero, e.g. 'PT6H'"


class Inference(SpecModel):
    """How the prompts of a job reach the model.

    Attributes:
        mode: `online` sends one request per prompt and waits for its answer. `batch` submits the prompts that have
            no answer yet as batch-inference jobs of the provider, at half the price, and sends only what these
            leave unanswered online. `auto` chooses the cheapest way that is finished by `finish_by`.
        finish_by: Time by which the answers are needed, or the time that the run may take from its start. Batch
            inference that is not finished in time is cancelled, and the rest is sent online.
        max_batch_wait_seconds: Longest wait for batch inference, in seconds, also without `finish_by`.
        prefix_cache: Whether the beginning that all prompts have in common is stored at Gemini while the job runs,
            where that costs less than to send it with each request.
    """

    mode: Literal["online", "batch", "auto"] = "online"
    finish_by: AwareDatetime | timedelta | None = None
    max_batch_wait_seconds: Annotated[float, Field(gt=0)] = 86_400.0
    prefix_cache: bool = True

    @field_validator("finish_by", mode="before")
    @classmethod
    def _no_number(cls, finish_by: Any) -> Any:
        if isinstance(finish_by, int | float):  # seconds since 1970, or of a duration?
            raise ValueError(_WANTED)
        return finish_by

    @field_validator("finish_by")
    @classmethod
    def _is_positive(cls, finish_by: Any) -> Any:
        if isinstance(finish_by, timedelta) and finish_by <= timedelta(0):
            raise ValueError(_WANTED)
        return finish_by
