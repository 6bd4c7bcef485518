"""Answers that several jobs share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from airflow_provider_llmbeam.spec.base import SpecModel


class Cache(SpecModel):
    """Re-uses answers across runs and Dags: an equal prompt to an equal model is not paid for again.

    Attributes:
        scope: Jobs that name the same scope, below the same `state_uri`, share their answers. Every run reads the
            whole scope, so let it hold one kind of prompt.
        max_age_days: Older answers are asked again; `None` keeps them for good.
    """

    scope: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,126}$")]
    max_age_days: Annotated[float, Field(gt=0)] | None = None
