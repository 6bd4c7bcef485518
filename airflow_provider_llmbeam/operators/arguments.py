"""Unknown arguments of operators and sensors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.fields.suggestion import instead_of_argument
from airflow_provider_llmbeam.spec.job import JobSpec


def check_arguments(operator: type, given: Mapping[str, Any]) -> None:
    """Refuses unknown arguments of an operator with a sentence; Airflow's own quotes the values.

    Args:
        operator: Class of the operator or sensor.
        given: Its arguments.

    Raises:
        JobSpecError: One is unknown.
    """
    known = _arguments(operator)
    unknown = sorted(name for name in given if name not in known and not name.startswith("_airflow"))
    if not unknown:
        return
    name = unknown[0]
    instead = instead_of_argument(name, {one for one in known if not one.startswith("_")}, JobSpec)
    raise JobSpecError(
        f"Task {given.get('task_id')!r}: `{name}`: {operator.__name__} has no such argument"
        f"{instead and f'; {instead}'}{'' if instead.endswith('?') else '.'}"
    )


@cache
def _arguments(operator: type) -> frozenset[str]:
    return frozenset(
        name
        for one in operator.__mro__
        if "__init__" in vars(one)
        for name, parameter in inspect.signature(one.__init__).parameters.items()  # type: ignore[misc]
        if parameter.kind is not parameter.VAR_KEYWORD
    )
