"""Checks of a spec while the Dag is parsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from airflow_provider_llmbeam.spec.base import NOT_SHOWN, SpecModel, SpecProblem

#: Levels of mappings above a spec value, one more than the most: `demand`, `safety`, `moderation` above `model`.
#: Data of users, such as `prompt.variables`, may be deeper than Python can recurse.
_LEVELS = 4


class Unrendered:
    """A value that Airflow shows among the rendered fields of a task, and does not render.

    Args:
        value: Plain data.
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    def serialize(self) -> Any:
        """Returns what is shown; Airflow calls it."""
        return self._value

    def __str__(self) -> str:
        return str(self._value)

    def __repr__(self) -> str:
        return repr(self._value)


def unrendered(data: Any, *fields: str) -> Any:
    """Returns plain data in which Airflow does not render some fields, as they are templates of the rows."""
    if not isinstance(data, Mapping):
        return data
    return {name: Unrendered(value) if name in fields else value for name, value in data.items()}


def with_unrendered(data: Any) -> Any:
    """Returns plain data with the values that Airflow did not render."""
    if isinstance(data, Unrendered):
        return data.serialize()
    if isinstance(data, Mapping):
        return {name: with_unrendered(value) for name, value in data.items()}
    return [with_unrendered(value) for value in data] if isinstance(data, list) else data


def plain(value: Any, levels: int = _LEVELS) -> Any:
    """Converts a spec value or a path to plain data, also within mappings; plain data is returned as it is.

    Airflow renders neither frozen values nor values without fields, and a connection completes plain data alone.

    Args:
        value: A spec value, or plain data.
        levels: Levels of mappings in which a spec value is looked for.
    """
    if isinstance(value, SpecModel):
        # Only the fields that were set, so that a connection can provide the rest.
        return _with_types(value.model_dump(mode="json", exclude_unset=True), value)
    if hasattr(value, "joinpath"):  # a path of `pathlib`, or Airflow's `ObjectStoragePath`
        return str(value)
    if not isinstance(value, Mapping) or not levels:
        return value
    parts = {name: plain(part, levels - 1) for name, part in value.items()}
    return parts if any(parts[name] is not part for name, part in value.items()) else value


def _with_types(data: Any, value: Any) -> Any:
    """Returns the plain data of a spec value with the types in it, which need not have been set."""
    match value:
        case SpecModel():
            given = {name: _with_types(part, getattr(value, name)) for name, part in data.items()}
            return {"type": value.type, **given} if hasattr(value, "type") else given
        case Mapping():
            parts = zip(data.items(), value.values(), strict=True)
            return {name: _with_types(part, inner) for (name, part), inner in parts}
        case list() | tuple():
            return [_with_types(part, inner) for part, inner in zip(data, value, strict=True)]
    return data


def literal_problems(
    spec: type[SpecModel], data: Mapping[str, Any], never_rendered: tuple[str, ...] = ()
) -> list[SpecProblem]:
    """Lists the problems of a spec, except those in values that Airflow has not rendered yet.

    Args:
        spec: Class of the spec that `data` describes.
        data: Plain data, which may contain templates and references.
        never_rendered: Fields whose braces Airflow does not render.
    """
    return [
        problem
        for problem in spec.problems(data, has_connection=True)
        if problem.field.startswith(never_rendered)
        or not (is_pending(_rendered(problem, never_rendered)) or is_pending(problem.related))
    ]


def _rendered(problem: SpecProblem, never_rendered: tuple[str, ...]) -> Any:
    """Returns the rejected value without the fields that Airflow never renders: prompts contain braces."""
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
    """Returns whether a value contains a template or a reference that Airflow resolves at run time."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(map(is_pending, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(is_pending, value))
    return value is not NOT_SHOWN and not isinstance(value, (int, float, type, BaseModel, type(None)))
