"""Results of a task as a run of Vertex AI Experiments."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.operators.identity import job_name
from airflow_provider_llmbeam.spec.identity import identity

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_llmbeam.spec.job import JobSpec


def check_experiment(experiment: Any) -> None:
    """Checks a literal name when the Dag is parsed.

    Raises:
        JobSpecError: It is invalid.
    """
    from airflow_provider_llmbeam.operators.literal import is_pending

    if experiment is not None and not is_pending(experiment):
        from airflow_provider_llmbeam.hooks.experiments import read_experiment

        read_experiment(experiment)


def log_experiment(
    experiment: str, spec: JobSpec, found: Mapping[str, Any], context: Context, gcp_conn_id: str
) -> str:
    """Records an evaluation or a comparison as the run of its task in its Dag run: a retry writes the same one.

    Args:
        experiment: Name of the experiment, see `hooks.experiments.read_experiment`.
        spec: The job.
        found: Manifest of the step.
        context: Context of the task.
        gcp_conn_id: Airflow connection of type Google Cloud.

    Returns:
        Resource name of the run.

    Raises:
        JobSpecError: The name is invalid.
        CloudError: Vertex AI did not answer; a retry sends no prompt again.
    """
    from airflow_provider_llmbeam.hooks.experiments import ExperimentsHook, read_experiment

    project, location, name = read_experiment(experiment)
    hook = ExperimentsHook(location, project, gcp_conn_id)
    return hook.log_run(name, identity(job_name(context["ti"])), params_of(spec), metrics_of(found))


def params_of(spec: JobSpec) -> dict[str, str | float]:
    """Returns the parameters of a job: model, digest of the prompt, and what is set in `generation`."""
    prompt = f"{spec.prompt.system or ''}\n{spec.prompt.template}"
    given = spec.generation.model_dump(mode="json", exclude_defaults=True)
    simple = {key: value for key, value in given.items() if isinstance(value, str | int | float)}
    return {"model": spec.model.name, "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest()[:12], **simple}


def metrics_of(found: Mapping[str, Any]) -> dict[str, float]:
    """Returns scores with their intervals, cost and counts of an evaluation or a comparison."""
    scores = found.get("scores") or found.get("agreement") or {}
    metrics = {
        f"{name}{suffix}": score[field]
        for name, score in scores.items()
        for suffix, field in (("", "score"), ("_low", "low"), ("_high", "high"))
    }
    costs = {"cost_usd": found.get("cost_usd"), "judge_cost_usd": found.get("judge_cost_usd")}
    for side in ("job", "other"):
        if isinstance(one := found.get(side), Mapping):
            costs[f"{side}_cost_usd"] = one.get("cost_usd")
    counts = {name: found.get(name) for name in ("rows", "requests", "passed", "usd_per_thousand_rows")}
    numbers = metrics | costs | counts
    return {name: float(value) for name, value in numbers.items() if value is not None}
