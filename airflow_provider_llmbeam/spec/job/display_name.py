"""Display names of what a job creates at a provider, by which a later run or a sweeper finds it."""

from __future__ import annotations

import hashlib

from airflow_provider_llmbeam.spec.job import JobSpec


def display_name_prefix(spec: JobSpec) -> str:
    """Returns the beginning of the display names of one job: batch-inference jobs, and cached contents."""
    identity = _digest(f"{spec.deployment}\n{spec.name}\n{spec.paths.home_uri}", 12)
    return f"{deployment_prefix(spec.deployment)}{identity}-"


def deployment_prefix(deployment: str) -> str:
    """Returns the beginning of the display names of all jobs of an Airflow.

    Args:
        deployment: Name of the Airflow; that of a job which no Airflow started is empty.
    """
    return f"llmbeam-{_digest(deployment, 8)}-"


def _digest(text: str, characters: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:characters]
