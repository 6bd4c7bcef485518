"""How the prompts of a job reach the model: online or by batch inference, and by when."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AwareDatetime, Field, ValidationError, ValidatorFunctionWrapHandler, field_validator

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.model.tier import FLEX_TIERS, RequestedTier

_WANTED = (
    "must be a time of day with its zone, e.g. '07:00 Europe/Berlin', a date and time with its zone, a duration "
    "above zero, e.g. 'PT6H', or 'deadline'"
)
#: Pydantic reads 06:00 as a duration of six hours.
_CLOCK = re.compile(r"[+-]?\d+:\d\d(:\d\d(\.\d+)?)?")
_TIME_OF_DAY = re.compile(r"(?P<time>\d?\d:\d\d(:\d\d)?) +(?P<zone>[A-Za-z][\w+/-]*)")


#: Number of prompts that are sent online first, so that a wrong prompt or model is found in a minute and not after
#: hours. The job keeps their answers.
PILOT_ROWS = 32

TimeOfDay = Annotated[str, Field(pattern=_TIME_OF_DAY)]


class Inference(SpecModel):
    """How the prompts of a job reach the model. A text in its place is its `mode`.

    Attributes:
        mode: `online` sends one request per prompt and waits for its answer. `batch` submits the prompts that have
            no answer yet as batch-inference jobs of the provider, at half the price, and sends only what these
            leave unanswered online. `auto` chooses the cheapest way that is finished by `finish_by`.
        finish_by: Time by which the answers are needed; a time of day with its zone, `07:00 Europe/Berlin`, is the
            next one after the start of the run; a duration counts from that start; `deadline` is the earliest
            `DeadlineAlert` of the Dag, which an operator replaces by its time. Batch inference that is not
            finished in time is cancelled, and the rest is sent online.
        max_batch_wait_seconds: Longest wait for batch inference, in seconds, also without `finish_by`.
        service_tier: Tier of the requests that are sent online. `flex` costs half of `standard`, takes up to 15
            minutes a request, and may be shed: the server then has no capacity for it, and the request is sent
            again. With `flex_then_standard` a row that was shed four times, and every row where `finish_by` is
            near, is sent at the standard tier. `priority` costs 1.7 to 2.5 times as much as `standard`, by the
            model, and is served first; above its limit the server answers at the standard tier and price.
            `provisioned` uses Provisioned Throughput of Vertex AI alone, which is prepaid and costs nothing more;
            what is above it waits. `provisioned_then_flex` sends that at flex instead. `standard` and `priority`
            use Provisioned Throughput first, too, and `flex` never does.
        prefix_cache: Whether the beginning that all prompts have in common is stored at Gemini while the job runs,
            where that costs less than to send it with each request, or marked to be stored by Anthropic.
    """

    text_field = "mode"

    mode: Literal["online", "batch", "auto"] = "online"
    finish_by: AwareDatetime | timedelta | TimeOfDay | Literal["deadline"] | None = None
    max_batch_wait_seconds: Annotated[float, Field(gt=0)] = 86_400.0
    service_tier: RequestedTier = "standard"
    prefix_cache: bool = True

    def end_of_run(self, started_at: datetime) -> datetime | None:
        """Returns the time by which the answers of a run are needed; `None` for no such time.

        Args:
            started_at: Start of the run, with its zone.
        """
        match self.finish_by:
            case timedelta():
                return started_at + self.finish_by
            case str() if self.finish_by != "deadline":
                return _next_time(self.finish_by, started_at)
            case datetime():
                return self.finish_by
        return None

    @property
    def needs_pilot(self) -> bool:
        """Whether some prompts are sent online first, to learn what the rest costs and takes."""
        return self.mode != "online" or (self.service_tier in FLEX_TIERS and self.finish_by is not None)

    @field_validator("finish_by", mode="wrap")
    @classmethod
    def _time_or_duration(cls, finish_by: Any, validated: ValidatorFunctionWrapHandler) -> Any:
        if _is_number(finish_by):  # seconds since 1970, or of a duration?
            raise ValueError(_WANTED)
        if isinstance(finish_by, str):
            finish_by = finish_by.strip()
            if _CLOCK.fullmatch(finish_by):  # six o'clock, or in six hours?
                raise ValueError(f"{_WANTED}: a time of day needs its zone")
            if _TIME_OF_DAY.fullmatch(finish_by):
                _next_time(finish_by, datetime.now(UTC))
                return finish_by
        try:
            found = validated(finish_by)
        except ValidationError:  # one error for each type of the union
            raise ValueError(_WANTED) from None
        if isinstance(found, timedelta) and found <= timedelta(0):
            raise ValueError(_WANTED)
        return found


def _next_time(time_of_day: str, after: datetime) -> datetime:
    """Returns the next time at which a clock shows a time of day.

    Args:
        time_of_day: E.g. `07:00 Europe/Berlin`.
        after: A time with its zone.

    Raises:
        ValueError: There is no such time or zone; the message is the second half of a sentence.
    """
    clock, _, zone_name = time_of_day.partition(" ")
    try:
        zone = ZoneInfo(zone_name.strip())
        wanted = time.fromisoformat(clock.zfill(len("07:00")))
    except (ZoneInfoNotFoundError, ValueError):
        raise ValueError(_WANTED) from None
    day = after.astimezone(zone).date()
    found = datetime.combine(day, wanted, zone)
    return found if found > after else datetime.combine(day + timedelta(days=1), wanted, zone)


def _is_number(value: Any) -> bool:
    """Whether a value is a number, or the text of one, to which Airflow renders a number in a template."""
    if not isinstance(value, str):
        return isinstance(value, int | float)
    try:
        float(value)
    except ValueError:
        return False
    return True
