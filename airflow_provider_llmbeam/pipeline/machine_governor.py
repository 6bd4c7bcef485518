"""The governor of the requests of one machine."""

from __future__ import annotations

import logging
import math
import os

from airflow_provider_llmbeam.engine.pacing.gate import Admission
from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.pacing.learned_rate import LearnedRate
from airflow_provider_llmbeam.engine.pacing.shared_governor import SharedGovernor, shared_path
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.model import EchoModel, GeminiModel, Model, OpenAIModel, VertexEndpointModel

_log = logging.getLogger(__name__)


def machine_governor(model: Model, limits: Limits) -> Admission:
    """Returns the governor that all processes of this machine share for a model, its key and its limits.

    It is a governor of this process only if files cannot be shared, and for `echo`.
    """
    if isinstance(model, EchoModel):
        return Governor(requests_per_minute=limits.requests_per_minute or math.inf)
    governor = governor_of(limits)
    key = key_of(model)
    quota = (limits.requests_per_minute, limits.tokens_per_minute, limits.share_ratio, limits.expected_workers)
    try:
        return SharedGovernor(governor, shared_path(model.model_dump(), key, quota))
    except OSError as error:
        _log.warning("Each process has its own governor, since no file can be shared: %s", error)
        return governor


def key_of(model: GeminiModel | OpenAIModel | VertexEndpointModel) -> str | None:
    """Returns the API key of a model, which has its own quota; `None` for a token."""
    match model:
        case OpenAIModel(id_token_audience=None):
            return os.environ.get(model.api_key_env)
        case GeminiModel():
            return os.environ.get("GOOGLE_API_KEY")
    return None


def governor_of(limits: Limits) -> Governor | LearnedRate:
    """Returns a governor of this process only: of the known quotas, or of a rate to be learned."""
    if limits.requests_per_minute is None and limits.tokens_per_minute is None:
        return LearnedRate()
    return Governor(
        requests_per_minute=_share(limits.requests_per_minute, limits.share_ratio),
        tokens_per_minute=_share(limits.tokens_per_minute, limits.share_ratio),
        expected_workers=limits.expected_workers or 1,
    )


def _share(per_minute: float | None, ratio: float) -> float | None:
    return None if per_minute is None else per_minute * ratio
