"""The rate that a job has learned, in a file: the next job may be on another machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState
from airflow_provider_llmbeam.engine.pacing.unknown_quota.shared_pool import is_pool
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.spec.demand import END_OF_TIME, EarlierRate

_log = logging.getLogger(__name__)

#: Least time between two writes, in seconds.
WRITE_SECONDS = 15.0
#: Age at which the rate counts as half of the evidence that it was: that of a month ago still helps a little.
HALF_LIFE_SECONDS = 7 * 86_400.0
#: Largest burst that is kept: a run may have its first 429 after millions of requests.
MOST_BURST = 1e6


class _Record(BaseModel):
    """Content of the file; anybody who may write to its directory may have written it."""

    model_config = ConfigDict(allow_inf_nan=False)

    learned_at: float = Field(ge=0, le=END_OF_TIME)
    requests_per_second: float = Field(ge=0, le=1e6)
    measured: float = Field(ge=0, le=1e6)
    rejection_seconds: float = Field(ge=0.002, le=1)
    trust: float = Field(ge=0, le=1)
    burst: float = Field(ge=0, le=MOST_BURST)
    chance: float = Field(default=LearnedRateState().chance, ge=0, le=1)
    unit_tokens: float = Field(default=0.0, ge=0, le=1e8)
    tokens_evidence: float = Field(default=LearnedRateState().tokens_evidence, ge=-10, le=10)
    share: float = Field(default=0.0, ge=0, le=0.9)

    @model_validator(mode="after")
    def _has_learned(self) -> Self:
        if not (self.share or (self.requests_per_second and self.measured >= 1)):
            raise ValueError("`requests_per_second` must be > 0, and `measured` >= 1, unless there is a `share`")
        if 0 < self.unit_tokens < 1:
            raise ValueError("`unit_tokens` must be 0 or >= 1, as no request has fewer tokens")
        return self


class LearnedRateFile:
    """What `LearnedRate` has learned about a server, for the next job.

    Each machine learns its own part of a quota. The last one that writes counts: machines without a common
    governor have similar parts.

    Args:
        directory: Its directory; ends in `/`.
        identity: Server, key and limits, as one name.
        now: Unix time, in seconds.

    Attributes:
        learned_at: Unix time at which the rate was learned with which this run begins; 0 without one.
    """

    def __init__(self, directory: str, identity: str, now: Callable[[], float] = time.time) -> None:
        self._uri = f"{directory}learned_rate-{identity}.json"
        self._now = now
        self.learned_at = 0.0
        self._written: LearnedRateState | None = None
        self._written_at = 0.0

    def read(self) -> LearnedRateState:
        """Returns the state with which this run begins; that of nothing learned if there is no valid file."""
        found = self._found()
        self.learned_at = 0.0 if found is None else found.learned_at
        return LearnedRateState() if found is None else self._state(found)

    def rate(self) -> EarlierRate | None:
        """Returns the rate with which this run begins, and its time; `None` if there is none."""
        found = self._found()
        if found is None or (state := self._state(found)).base_rps <= 0:
            return None
        return EarlierRate(
            requests_per_minute=60 * state.base_rps,
            tokens_per_minute=60 * state.base_rps * state.unit_tokens if state.unit_tokens else None,
            learned_at=found.learned_at,
        )

    def _state(self, found: _Record) -> LearnedRateState:
        measured = found.measured * 0.5 ** (max(0.0, self._now() - found.learned_at) / HALF_LIFE_SECONDS)
        return LearnedRateState(
            base_rps=found.requests_per_second,
            measured=measured,
            rejection_seconds=found.rejection_seconds,
            trust=found.trust,
            burst=found.burst,
            chance=found.chance,
            unit_tokens=found.unit_tokens,
            tokens_evidence=found.tokens_evidence,
            share=found.share,
        ).for_next_run()

    def _found(self) -> _Record | None:
        try:
            return _Record.model_validate_json(storage.read(self._uri)) if storage.exists(self._uri) else None
        except Exception as error:  # noqa: BLE001 - filesystems have errors of their own; the rate is learned again
            _log.warning("The rate of earlier runs in %r is not used, but learned again: %s", self._uri, error)
            return None

    def write(self, state: LearnedRateState) -> None:
        """Writes what was learned, unless that was done a moment ago; an error is not that of the job.

        A run without a 429 has learned nothing, unless the server is a pool: the file keeps its rate and its time.
        """
        now, learned = self._now(), state.for_next_run()
        is_known = self.learned_at > 0 and state.is_next_run > 0 and not is_pool(state)
        has_learned = learned.base_rps > 0 or learned.is_by_chance
        if not has_learned or is_known or learned == self._written or now - self._written_at < WRITE_SECONDS:
            return
        record = _Record.model_construct(
            learned_at=now,
            requests_per_second=learned.base_rps,
            measured=learned.measured,
            rejection_seconds=learned.rejection_seconds,
            trust=learned.trust,
            burst=min(learned.burst, MOST_BURST),
            chance=learned.chance,
            unit_tokens=learned.unit_tokens,
            tokens_evidence=learned.tokens_evidence,
            share=learned.share,
        )
        try:
            storage.replace(self._uri, record.model_dump_json().encode())
        except Exception as error:  # noqa: BLE001 - the next write follows
            _log.debug("The learned rate could not be written to %r: %s", self._uri, error)
        else:
            self._written, self._written_at = learned, now
