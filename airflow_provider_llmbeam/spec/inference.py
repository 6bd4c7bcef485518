"""How the prompts of a job reach the model: online or by batch inference, and by when."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, ValidationError, ValidatorFunctionWrapHandler, field_validator

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.model.tier import FLEX_TIERS, RequestedTier

_WANTED = "must be a time with its zone, a duration above zero, e.g. 'PT6H', or 'deadline'"
#: Pydantic reads 06:00 as a duration of six hours.
_CLOCK = re.compile(r"[+-]?\d+:\d\d(:\d\d(\.\d+)?)?")


class Inference(SpecModel):
    """How the prompts of a job reach the model.

    Attributes:
        mode: `online` sends one request per prompt and waits for its answer. `batch` submits the prompts that have
            no answer yet as batch-inference jobs of the provider, at half the price, and sends only what these
            leave unanswered online. `auto` chooses the cheapest way that is finished by `finish_by`.
        finish_by: Time by which the answers are needed, or the time that the run may take from its start, or
            `deadline`: the earliest `DeadlineAlert` of the Dag, which an operator replaces by its time. Batch
            inference that is not finished in time is cancelled, and the rest is sent online.
        max_batch_wait_seconds: Longest wait for batch inference, in seconds, also without `finish_by`.
        service_tier: Tier of the requests that are sent online. `flex` costs half of `standard`, takes up to 15
            minutes a request, and may be shed: the server then has no capacity for it, and the request is sent
            again. With `flex_then_standard` a row that was shed four times, and every row where `finish_by` is
            near, is sent at the standard tier. `priority` costs 1.7 to 2.5 times as much as `standard`, by the
            model, and is served first; above its limit the server answers at the standard tier and price.
        prefix_cache: Whether the beginning that all prompts have in common is stored at Gemini while the job runs,
            where that costs less than to send it with each request.
    """

    mode: Literal["online", "batch", "auto"] = "online"
    finish_by: AwareDatetime | timedelta | Literal["deadline"] | None = None
    max_batch_wait_seconds: Annotated[float, Field(gt=0)] = 86_400.0
    service_tier: RequestedTier = "standard"
    prefix_cache: bool = True

    @property
    def needs_pilot(self) -> bool:
        """Whether some prompts are sent online first, to learn what the rest costs and takes."""
        return self.mode != "online" or (self.service_tier in FLEX_TIERS and self.finish_by is not None)

    @field_validator("finish_by", mode="wrap")
    @classmethod
    def _time_or_duration(cls, finish_by: Any, validated: ValidatorFunctionWrapHandler) -> Any:
        if _is_number(finish_by):  # seconds since 1970, or of a duration?
            raise ValueError(_WANTED)
        if isinstance(finish_by, str) and _CLOCK.fullmatch(finish_by.strip()):  # six o'clock, or in six hours?
            raise ValueError(f"{_WANTED}: a time of day needs its date and zone")
        try:
            found = validated(finish_by)
        except ValidationError:  # one error for each type of the union
            raise ValueError(_WANTED) from None
        if isinstance(found, timedelta) and found <= timedelta(0):
            raise ValueError(_WANTED)
        return found


def _is_number(value: Any) -> bool:
    """Whether a value is a number, or the text of one, to which Airflow renders a number in a template."""
    if not isinstance(value, str):
        return isinstance(value, int | float)
    try:
        float(value)
    except ValueError:
        return False
    return True
