"""The governor of the requests of one machine."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from typing import Any

from airflow_provider_llmbeam.engine.pacing.gate import Admission
from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.pacing.prioritized import PrioritizedRate
from airflow_provider_llmbeam.engine.pacing.shared_governor import Law, SharedGovernor, shared_path
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState
from airflow_provider_llmbeam.pipeline.pacing.learned_rate_file import LearnedRateFile
from airflow_provider_llmbeam.spec.demand import EarlierRate
from airflow_provider_llmbeam.spec.facts import MOST_REQUESTS_PER_MINUTE
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.model import DistilledModel, EchoModel, Model
from airflow_provider_llmbeam.spec.usage_tier import threshold_of

_log = logging.getLogger(__name__)


class MachineGovernor:
    """The governor that all processes of this machine share for a model, its key and its limits.

    It is a governor of this process only if files cannot be shared, and for `echo`. A rate that is learned begins
    with that of the last job, of this machine or of another one.

    Args:
        model: The model; the key is in the environment.
        limits: Quotas, if they are known.
        rates_uri: Directory of the learned rates; `None` for none.

    Attributes:
        admission: The governor.
    """

    def __init__(self, model: Model, limits: Limits, rates_uri: str | None) -> None:
        self.admission: Admission
        self._rate_file: LearnedRateFile | None = None
        if isinstance(model, EchoModel | DistilledModel):
            self.admission = Governor(requests_per_minute=limits.requests_per_minute or math.inf)
            return
        governor = governor_of(limits, threshold_of(model, limits))
        identity, learned_at = identity_of(model, limits), 0.0
        if rates_uri is not None and isinstance(governor, LearnedRate):
            self._rate_file = LearnedRateFile(rates_uri, identity)
            governor.state, learned_at = self._rate_file.read(), self._rate_file.learned_at
        self.admission = shared(governor, identity, learned_at)

    def batch_ended(self) -> None:
        """Keeps the learned rate for the next run."""
        if self._rate_file is not None and isinstance(self.admission, SharedGovernor | LearnedRate):
            state = self.admission.state
            if isinstance(state, LearnedRateState):
                self._rate_file.write(state)


def shared(governor: Law, identity: str, learned_at: float = 0.0) -> Admission:
    """Returns a governor that the processes of this machine share, or the given one if files cannot be shared.

    Args:
        governor: A governor of this process.
        identity: Name of what it governs.
        learned_at: See `SharedGovernor`.
    """
    try:
        return SharedGovernor(governor, shared_path(identity), learned_at)
    except OSError as error:
        _log.warning("Each process has its own governor, since no file can be shared: %s", error)
        return governor


def identity_of(model: Model, limits: Limits) -> str:
    """Returns a name of a server, the key in the environment and the limits.

    It has neither the Airflow deployment nor labels: a quota is the server's, and all jobs of one user share it.
    """
    quota = (limits.requests_per_minute, limits.tokens_per_minute, limits.share_ratio, limits.expected_workers)
    known: tuple[Any, ...] = (model.model_dump(exclude={"labels"}), model.api.key(os.environ), quota)
    if (threshold := threshold_of(model, limits)) is not None:
        known += (threshold,)
    return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


def learned_rate(model: Model, limits: Limits, rates_uri: str) -> EarlierRate | None:
    """Returns the rate that the last job has learned on one machine; `None` if a quota is known, or nothing is."""
    if isinstance(model, EchoModel | DistilledModel) or not isinstance(
        governor_of(limits, threshold_of(model, limits)), LearnedRate
    ):
        return None
    return LearnedRateFile(rates_uri, identity_of(model, limits)).rate()


def governor_of(limits: Limits, threshold: float | None = None) -> Law:
    """Returns a governor of this process only: of the known quotas, or of a rate to be learned.

    Args:
        limits: Quotas, if they are known.
        threshold: Rate up to which requests are served first, see `threshold_of`.
    """
    if threshold is not None:
        return PrioritizedRate(
            tokens_per_minute=threshold,
            requests_per_minute=MOST_REQUESTS_PER_MINUTE * limits.share_ratio,
            expected_workers=limits.expected_workers or 1,
        )
    if limits.requests_per_minute is None and limits.tokens_per_minute is None:
        return LearnedRate()
    return Governor(
        requests_per_minute=_share(limits.requests_per_minute, limits.share_ratio),
        tokens_per_minute=_share(limits.tokens_per_minute, limits.share_ratio),
        expected_workers=limits.expected_workers or 1,
    )


def _share(per_minute: float | None, ratio: float) -> float | None:
    return None if per_minute is None else per_minute * ratio
