"""Display names of what a job creates at a provider, by which a later run finds it."""

from __future__ import annotations

import hashlib

from airflow_provider_llmbeam.spec.job import JobSpec


def display_name_prefix(spec: JobSpec) -> str:
    """Returns the beginning of the display names of one job: batch-inference jobs, and cached contents."""
    identity = hashlib.sha256(f"{spec.deployment}\n{spec.name}\n{spec.home_uri}".encode()).hexdigest()[:12]
    return f"llmbeam-{identity}-"
