"""Admits no request while another process may have taken over the job of this one."""

from __future__ import annotations

from airflow_provider_llmbeam.engine.pacing.gate import Admission
from airflow_provider_llmbeam.pipeline.lease.leased_object import are_sure

#: Time after which the lease is checked again, in seconds.
_PAUSE_SECONDS = 0.5


class LeasedAdmission:
    """A governor that admits nothing while a lease of this process is not renewed.

    Args:
        admission: The governor.
    """

    def __init__(self, admission: Admission) -> None:
        self._admit = admission.admit
        self.settle = admission.settle
        self.rejected = admission.rejected

    def admit(self, now: float, tokens: float, backlog: float = 0.0) -> float:
        """See `Admission.admit`."""
        return self._admit(now, tokens, backlog) if are_sure() else _PAUSE_SECONDS
