"""What can be known of a spec while the Dag is parsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from airflow_provider_llmbeam.spec.base import SpecModel, SpecProblem


def plain(value: Any) -> Any:
    """Turns a spec value into plain data: Airflow renders neither frozen values nor ones without fields."""
    if not isinstance(value, BaseModel):
        return value
    # Only what was set, so that a connection may fill in the rest; the type always decides.
    given = value.model_dump(mode="json", exclude_unset=True)
    return {"type": value.type, **given} if hasattr(value, "type") else given


def literal_problems(
    spec: type[SpecModel], data: Mapping[str, Any], never_rendered: tuple[str, ...] = ()
) -> list[SpecProblem]:
    """Lists what is wrong already now, leaving out whatever waits for Airflow to render it.

    Args:
        spec: What `data` should be.
        data: Plain data, with templates and references in it.
        never_rendered: Fields whose braces are not Airflow's.
    """
    return [
        problem
        for problem in spec.problems(data)
        if problem.field.startswith(never_rendered) or not is_pending(_rendered(problem, never_rendered))
    ]


def _rendered(problem: SpecProblem, never_rendered: tuple[str, ...]) -> Any:
    """What was found, without what Airflow leaves alone: the whole spec always holds the prompt's braces."""
    if problem.field or not isinstance(problem.got, Mapping):
        return problem.got
    left_alone = [field.split(".") for field in never_rendered]
    return {
        name: {part: inner for part, inner in value.items() if [name, part] not in left_alone}
        if isinstance(value, Mapping)
        else value
        for name, value in problem.got.items()
    }


def is_pending(value: Any) -> bool:
    """Whether a value holds a template or a reference that Airflow resolves at run time."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(map(is_pending, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(is_pending, value))
    return not isinstance(value, (int, float, BaseModel, type(None)))
