"""The rate that a run has learned, in a file beside the journal: the next run may be on another machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pydantic import BaseModel, ConfigDict, Field

from airflow_provider_llmbeam.engine.pacing.learned_rate_state import LearnedRateState
from airflow_provider_llmbeam.pipeline import storage

_log = logging.getLogger(__name__)

#: Least time between two writes, in seconds.
WRITE_SECONDS = 15.0
#: Age at which the rate counts as half of the evidence that it was: that of a month ago still helps a little.
HALF_LIFE_SECONDS = 7 * 86_400.0


class _Record(BaseModel):
    """Content of the file; anybody who may write to the directory of the journal may have written it."""

    model_config = ConfigDict(allow_inf_nan=False)

    learned_at: float = Field(ge=0)
    requests_per_second: float = Field(gt=0, le=1e6)
    measured: float = Field(ge=1, le=1e6)
    rejection_seconds: float = Field(ge=0.002, le=1)
    trust: float = Field(ge=0, le=1)
    burst: float = Field(ge=0, le=1e6)
    chance: float = Field(default=LearnedRateState().chance, ge=0, le=1)


class LearnedRateFile:
    """What `LearnedRate` has learned about a server, for the next run.

    Each machine learns its own part of a quota. The last one that writes counts: machines without a common
    governor have similar parts.

    Args:
        directory: Directory of the journal; ends in `/`.
        identity: Server, key and limits, as one name.
        now: Unix time, in seconds.
    """

    def __init__(self, directory: str, identity: str, now: Callable[[], float] = time.time) -> None:
        self._uri = f"{directory}learned_rate-{identity}.json"
        self._now = now
        self._written: LearnedRateState | None = None
        self._written_at = 0.0

    def read(self) -> LearnedRateState:
        """Returns the state with which this run begins; that of nothing learned if there is no valid file."""
        try:
            if not storage.exists(self._uri):
                return LearnedRateState()
            found = _Record.model_validate_json(storage.read(self._uri))
        except Exception as error:  # noqa: BLE001 - filesystems have errors of their own; the rate is learned again
            _log.warning("The rate of earlier runs in %r is not used, but learned again: %s", self._uri, error)
            return LearnedRateState()
        measured = found.measured * 0.5 ** (max(0.0, self._now() - found.learned_at) / HALF_LIFE_SECONDS)
        return LearnedRateState(
            base_rps=found.requests_per_second,
            measured=measured,
            rejection_seconds=found.rejection_seconds,
            trust=found.trust,
            burst=found.burst,
            chance=found.chance,
        ).for_next_run()

    def write(self, state: LearnedRateState) -> None:
        """Writes what was learned, unless that was done a moment ago; an error is not that of the job."""
        now, learned = self._now(), state.for_next_run()
        if learned.base_rps <= 0 or learned == self._written or now - self._written_at < WRITE_SECONDS:
            return
        record = _Record.model_construct(
            learned_at=now,
            requests_per_second=learned.base_rps,
            measured=learned.measured,
            rejection_seconds=learned.rejection_seconds,
            trust=learned.trust,
            burst=learned.burst,
            chance=learned.chance,
        )
        try:
            storage.replace(self._uri, record.model_dump_json().encode())
        except Exception as error:  # noqa: BLE001 - the next write follows
            _log.debug("The learned rate could not be written to %r: %s", self._uri, error)
        else:
            self._written, self._written_at = learned, now
