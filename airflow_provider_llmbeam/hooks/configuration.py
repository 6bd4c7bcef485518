"""The options of this package in the configuration of Airflow."""

from __future__ import annotations

from airflow_provider_llmbeam.spec.allowed import read_options


def configured_lists() -> dict[str, tuple[str, ...]]:
    """Returns the items of each option of `[llmbeam]` that is a list."""
    from airflow.providers.common.compat.sdk import conf

    return read_options(lambda option: conf.get("llmbeam", option, fallback=""))
