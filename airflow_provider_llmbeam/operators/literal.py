"""What can be known of a spec while the Dag is parsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from airflow_provider_llmbeam.spec.base import SpecModel, SpecProblem


def plain(value: Any) -> Any:
    """Turns a spec value into plain data: Airflow renders neither frozen values nor ones without fields."""
    return value.model_dump(mode="json", exclude_unset=True) if isinstance(value, BaseModel) else value


def literal_problems(spec: type[SpecModel], data: Mapping[str, Any]) -> list[SpecProblem]:
    """Lists what is wrong already now, leaving out whatever waits for Airflow to render it."""
    return [problem for problem in spec.problems(data) if not is_pending(problem.got)]


def is_pending(value: Any) -> bool:
    """Whether a value holds a template or a reference that Airflow resolves at run time."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(map(is_pending, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(is_pending, value))
    return not isinstance(value, (int, float, BaseModel, type(None)))
