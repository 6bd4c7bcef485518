"""Turnaround of batch-inference jobs: what earlier ones took, and how long the next one may take."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

#: Number of observations that are kept for each model and location.
MAX_OBSERVATIONS = 200
#: Number of observations of all models, and size of the file, beyond which it is not ours.
MAX_RECORDS = 10_000
MAX_BYTES = 4_000_000
#: Age at which an observation counts half: load and capacity of a model change within weeks.
HALF_LIFE_SECONDS = 14 * 86_400.0
#: Weight of an observation that was submitted at another time of the day, more than `NEAR_HOURS` away.
OTHER_HOUR_WEIGHT = 0.5
NEAR_HOURS = 3
#: Limits on the factor by which the run time of a file of another size is scaled.
MAX_SCALE = 4.0
#: Turnaround of a job that failed, expired or was cancelled: no answer within the providers' target of 24 h.
UNFINISHED_SECONDS = 86_400.0
#: Turnaround in seconds and weight before anything is observed; counts as 4 observations. Providers say: target
#: 24 h, usually much quicker (Gemini), most within 1 h (Anthropic). Seen: 4 min for three rows on Vertex AI
#: (litellm#37208); jobs that stay queued for 48 h to 72 h until they expire (python-genai#1482, #2221).
PRIOR = ((300.0, 1.0), (1_200.0, 1.0), (3_600.0, 1.0), (10_800.0, 0.5), (86_400.0, 0.4), (172_800.0, 0.1))

_Seconds = Annotated[float, Field(ge=0, le=30 * 86_400)]


class TurnaroundRecord(BaseModel):
    """Observation of one ended job.

    Attributes:
        model: Name of the model.
        location: Location of the provider, or its address.
        hour: Hour of the day of the submission, UTC.
        rows: Number of rows of the job.
        queue_seconds: Time from its creation to the first answer being worked on.
        run_seconds: Time from then to its end.
        outcome: Whether it returned answers.
        ended_at: Unix time of its end.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: Annotated[str, Field(min_length=1, max_length=300)]
    location: Annotated[str, Field(max_length=300)]
    hour: Annotated[int, Field(ge=0, le=23)]
    rows: Annotated[int, Field(ge=1, le=10_000_000)]
    queue_seconds: _Seconds
    run_seconds: _Seconds
    outcome: Literal["answered", "unfinished"]
    ended_at: Annotated[float, Field(ge=0, le=1e11)]


class _Content(BaseModel):
    """Content of the file; anybody who may write to its directory may have written it."""

    records: Annotated[tuple[TurnaroundRecord, ...], Field(max_length=MAX_RECORDS)]


@dataclass(frozen=True, slots=True)
class Turnaround:
    """Distribution of the turnaround of a job: pairs of seconds and weight, in ascending order."""

    points: tuple[tuple[float, float], ...] = PRIOR

    def quantile(self, share: float) -> float:
        """Returns the seconds within which a share of the jobs has ended; `share` is above 0 and at most 1."""
        least = share * math.fsum(weight for _, weight in self.points)
        total = 0.0
        for seconds, weight in self.points[:-1]:
            total += weight
            if total >= least:
                return seconds
        return self.points[-1][0]

    def chance(self, by_seconds: float) -> float:
        """Returns the probability that a job ends within a time."""
        ended = math.fsum(weight for seconds, weight in self.points if seconds <= by_seconds)
        return ended / math.fsum(weight for _, weight in self.points)


@dataclass(frozen=True, slots=True)
class TurnaroundHistory:
    """Observations of earlier jobs, the oldest first."""

    records: tuple[TurnaroundRecord, ...] = ()

    def add(self, record: TurnaroundRecord) -> TurnaroundHistory:
        """Returns the history with one more observation, without the oldest of this model and location."""
        same = [old for old in self.records if _key(old) == _key(record)]
        dropped = {id(old) for old in same[: max(0, len(same) + 1 - MAX_OBSERVATIONS)]}
        kept = tuple(old for old in self.records if id(old) not in dropped)
        return TurnaroundHistory((*kept, record)[-MAX_RECORDS:])

    def turnaround(self, model: str, location: str, rows: int, now: float) -> Turnaround:
        """Returns the distribution for a file of `rows` rows that is submitted at `now`, a Unix time."""
        hour = int(now // 3600) % 24
        points = list(PRIOR)
        for record in self.records:
            if _key(record) == (model, location):
                weight = 0.5 ** (max(0.0, now - record.ended_at) / HALF_LIFE_SECONDS)
                apart = abs(record.hour - hour)
                weight *= 1.0 if min(apart, 24 - apart) <= NEAR_HOURS else OTHER_HOUR_WEIGHT
                points.append((_seconds(record, rows), weight))
        return Turnaround(tuple(sorted(points)))

    def encode(self) -> bytes:
        """Returns the content of its file."""
        return _Content.model_construct(records=self.records).model_dump_json().encode()

    @classmethod
    def decode(cls, content: bytes) -> TurnaroundHistory:
        """Reads what `encode` returned; anything else is an empty history, as it is observed again."""
        if len(content) > MAX_BYTES:
            return cls()
        try:
            records: Sequence[TurnaroundRecord] = _Content.model_validate_json(content).records
        except ValidationError:
            return cls()
        counts: Counter[tuple[str, str]] = Counter()
        kept = []
        for record in reversed(records):
            counts[_key(record)] += 1
            if counts[_key(record)] <= MAX_OBSERVATIONS:
                kept.append(record)
        return cls(tuple(reversed(kept)))


def _key(record: TurnaroundRecord) -> tuple[str, str]:
    return record.model, record.location


def _seconds(record: TurnaroundRecord, rows: int) -> float:
    """Returns what a job of so many rows would have taken; its run time grows with the root of its rows."""
    if record.outcome == "unfinished":
        return max(UNFINISHED_SECONDS, record.queue_seconds + record.run_seconds)
    scale = min(MAX_SCALE, max(1 / MAX_SCALE, math.sqrt(rows / record.rows)))
    return record.queue_seconds + record.run_seconds * scale
