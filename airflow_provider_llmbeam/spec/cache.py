"""The cache: answers that several jobs share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.fields.names import CacheScope


class Cache(SpecModel):
    """Re-uses answers across runs and Dags: an equal prompt to an equal model is not paid for again.

    A text in its place is its `scope`.

    Attributes:
        scope: Jobs with the same scope and the same `state_uri` share their answers. Every run reads the whole
            scope, so use one scope per kind of prompt.
        max_age_days: Maximum age of an answer, in days; older ones are requested again. `None` sets no limit.
    """

    text_field = "scope"

    scope: CacheScope
    max_age_days: Annotated[float, Field(gt=0)] | None = None
