"""Looks for a sensor, without a worker slot."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.hooks.patience import Patience, PatientWatch
from airflow_provider_llmbeam.hooks.poller import FIRST_LOOK_SECONDS
from airflow_provider_llmbeam.hooks.progress_log import Log
from airflow_provider_llmbeam.hooks.wait import End, Watch
from airflow_provider_llmbeam.triggers.look import LookTrigger

#: Of the first wait: sensors that were deferred at once do not look at once.
_JITTER_RATIO = 0.1


class PatientTrigger(LookTrigger[PatientWatch]):
    """Looks until it is so, or patience is at its end, and fires one event: `PatientEnd.to_event`.

    A class of its own for each sensor says in `looker` what looks, and serialises `patience` with its arguments.

    Args:
        patience: `Patience.to_dict`.
    """

    def __init__(self, *, patience: Mapping[str, Any]) -> None:
        self.patience = dict(patience)
        known, now = Patience.from_dict(self.patience), time.time()
        first = known.wait_seconds(known.looks, now)
        super().__init__(max(FIRST_LOOK_SECONDS, first), _JITTER_RATIO * first)

    @abstractmethod
    def looker(self, log: Log) -> Watch[End]:
        """Makes what looks."""

    def watch(self, log: Log) -> PatientWatch:
        """Makes what looks as long as patience has it; its lines go to `log`."""
        return PatientWatch(self.looker(log), Patience.from_dict(self.patience), log=log)
