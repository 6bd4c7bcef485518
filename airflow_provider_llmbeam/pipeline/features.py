"""The features of a job."""

from __future__ import annotations

from typing import Any

from airflow_provider_llmbeam.pipeline.audit.feature import AuditFeature
from airflow_provider_llmbeam.pipeline.feature import Feature
from airflow_provider_llmbeam.pipeline.media.feature import MediaFeature
from airflow_provider_llmbeam.pipeline.moderation.feature import ModerationFeature
from airflow_provider_llmbeam.pipeline.privacy.feature import PrivacyFeature
from airflow_provider_llmbeam.spec.job import JobSpec

#: All features. Prompts and answers pass through them in this order: a file is identified before its prompt is
#: judged, and an answer is repaired before it is judged.
FEATURES: tuple[type[Feature[Any]], ...] = (AuditFeature, MediaFeature, PrivacyFeature, ModerationFeature)


def features_of(spec: JobSpec) -> tuple[Feature[Any], ...]:
    """Returns the features that a job has."""
    return tuple(feature(spec, part) for feature in FEATURES if (part := feature.part_of(spec)))
