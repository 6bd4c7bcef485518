"""Rules on the parameters of the answers of a job: what its model and its other parts must allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_llmbeam.spec.base import FieldFaultError
from airflow_provider_llmbeam.spec.model.parameters import (
    combines_search_and_schema,
    given,
    parameter_column,
    refusal,
)

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job import JobSpec


def generation_fault(spec: JobSpec, *, has_project: bool) -> FieldFaultError | None:
    """Returns why the parameters of the answers of a job cannot be sent, or `None`.

    Args:
        spec: The job.
        has_project: Whether the model has a project, or an Airflow connection may provide one.
    """
    server = parameter_column(spec.model, has_project=has_project)
    for name in given(spec.generation):
        if why := refusal(name, spec.generation, spec.model, server):
            return FieldFaultError(f"generation.{name}", why, getattr(spec.generation, name), spec.model.name)
    return _restriction_fault(spec) or _online_fault(spec) or _search_fault(spec)


def _restriction_fault(spec: JobSpec) -> FieldFaultError | None:
    if spec.generation.structured_outputs is None or spec.prompt.output_schema is None:
        return None
    return FieldFaultError(
        "generation.structured_outputs",
        "must be left out with `prompt.output_schema`, which restricts the answer as well",
        spec.generation.structured_outputs,
    )


def _online_fault(spec: JobSpec) -> FieldFaultError | None:
    if spec.inference.mode == "online":
        return None
    for name in ("google_search", "model_armor"):
        if getattr(spec.generation, name):
            return FieldFaultError(
                "inference.mode",
                f"must be 'online' with `generation.{name}`: it is not implemented for request files",
                spec.inference.mode,
            )
    return None


def _search_fault(spec: JobSpec) -> FieldFaultError | None:
    if not spec.generation.google_search:
        return None
    if spec.prompt.output_schema is not None and not combines_search_and_schema(spec.model):
        return FieldFaultError(
            "generation.google_search",
            f"must be left out with `prompt.output_schema` and {spec.model.name!r}: models before Gemini 3 refuse "
            "both together",
            True,
            spec.model.name,
        )
    if spec.limits.budget_usd is not None:
        return FieldFaultError(
            "limits.budget_usd",
            "must be left out with `generation.google_search`: the provider bills each search besides the tokens, "
            "and a budget would not include them",
            spec.limits.budget_usd,
        )
    return None
