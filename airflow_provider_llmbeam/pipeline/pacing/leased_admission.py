"""Admits no request while another process may have taken over the job of this one."""

from __future__ import annotations

from airflow_provider_llmbeam.engine.pacing.gate import Admission
from airflow_provider_llmbeam.pipeline.lease.leased_object import are_sure, holds_any
from airflow_provider_llmbeam.server_reply import QuotaUnit

#: Time after which the lease is checked again, in seconds.
_PAUSE_SECONDS = 0.5


class LeasedAdmission:
    """A governor that admits nothing while a lease of this process is not renewed.

    Args:
        admission: The governor.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def admit(self, now: float, tokens: float, backlog: float = 0.0) -> float:
        """See `Admission.admit`."""
        return self._admission.admit(now, tokens, backlog) if are_sure() else _PAUSE_SECONDS

    def settle(self, reserved_tokens: float, used_tokens: float, *, is_answered: bool = False) -> None:
        """See `Admission.settle`."""
        self._admission.settle(reserved_tokens, used_tokens, is_answered=is_answered)

    def rejected(
        self,
        now: float,
        retry_after_seconds: float | None,
        chance: float = 0.0,
        sent_at: float | None = None,
        tokens: float = 0.0,
        unit: QuotaUnit | None = None,
    ) -> float:
        """See `Admission.rejected`."""
        return self._admission.rejected(now, retry_after_seconds, chance, sent_at, tokens, unit)


def leased_admission(admission: Admission) -> Admission:
    """Returns the governor of a process; with its lease, if it holds one."""
    return LeasedAdmission(admission) if holds_any() else admission
