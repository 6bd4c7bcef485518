"""Conversion of a spec's runner to the environment of a Flex Template."""

from __future__ import annotations

from typing import Any

from airflow_provider_llmbeam.spec.runner import DataflowRunner

_FLEXRS = {"cost_optimized": "FLEXRS_COST_OPTIMIZED", "speed_optimized": "FLEXRS_SPEED_OPTIMIZED"}


def environment(runner: DataflowRunner, temp_uri: str) -> dict[str, Any]:
    """Returns the fields of `FlexTemplateRuntimeEnvironment`, without those that the runner does not set.

    Args:
        runner: Runner of the spec.
        temp_uri: Directory in which Dataflow stages files.
    """
    experiments = runner.options.get("experiments", [])
    fields = {
        "temp_location": temp_uri,
        "staging_location": temp_uri,
        "machine_type": runner.machine_type,
        "num_workers": runner.num_workers,
        "max_workers": runner.max_workers,
        "service_account_email": runner.service_account,
        "network": runner.network,
        "subnetwork": runner.subnetwork,
        "ip_configuration": "WORKER_IP_PUBLIC" if runner.use_public_ips else "WORKER_IP_PRIVATE",
        "flexrs_goal": _FLEXRS.get(runner.flexrs or ""),
        "sdk_container_image": runner.container_image,
        "additional_experiments": experiments if isinstance(experiments, list) else [str(experiments)],
        "additional_pipeline_options": [
            argument
            for name, value in runner.options.items()
            if name != "experiments"
            for argument in _arguments(name, value)
        ],
    }
    return {name: value for name, value in fields.items() if value not in (None, [])}


def _arguments(name: str, value: bool | int | float | str | list[str]) -> list[str]:
    """Returns an option as arguments of Beam's command line; an option that is off is omitted."""
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    return [f"--{name}={each}" for each in (value if isinstance(value, list) else [value])]
