"""Base class of all spec values: frozen, without unknown fields, with readable validation errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo

from airflow_provider_llmbeam.exceptions import JobSpecError


@dataclass(frozen=True, kw_only=True)
class SpecProblem:
    """One problem of a spec.

    Attributes:
        field: Dotted path, e.g. `limits.max_in_flight`; empty for the spec as a whole.
        got: The value found there.
        want: The expected value, as the second half of a sentence.
    """

    field: str
    got: Any
    want: str

    def __str__(self) -> str:
        shown = repr(self.got)
        shown = shown if len(shown) <= 120 else f"{shown[:117]}..."
        return f"`{self.field or 'spec'}`: {self.want}; got {shown}."


class SpecModel(BaseModel):
    """A frozen value that rejects unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @classmethod
    def parse(cls, data: Mapping[str, Any] | Self) -> Self:
        """Builds the value from plain data.

        Raises:
            JobSpecError: Names each invalid field, its value and the expected value.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            found = " ".join(str(problem) for problem in problems_of(error))
            raise JobSpecError(f"{found} Nothing was sent or billed.") from None

    @classmethod
    def problems(cls, data: Mapping[str, Any], *, has_connection: bool = False) -> tuple[SpecProblem, ...]:
        """Returns the problems of `data`, without raising.

        Args:
            data: Plain data.
            has_connection: Whether an Airflow connection, unread so far, may provide the project of the model.
        """
        try:
            cls.model_validate(data, context={"has_connection": has_connection})
        except ValidationError as error:
            return problems_of(error)
        return ()


def may_have_project(project: str | None, info: ValidationInfo) -> bool:
    """Returns whether a model has a project, or an Airflow connection may provide one."""
    return bool(project) or bool((info.context or {}).get("has_connection"))


def problems_of(error: ValidationError, field: str = "") -> tuple[SpecProblem, ...]:
    """Converts the errors of a pydantic validation.

    Args:
        error: The validation error.
        field: Field of the enclosing value that was validated, if any.
    """
    above = (field,) if field else ()
    return tuple(_problem({**item, "loc": (*above, *item["loc"])}) for item in error.errors(include_url=False))


def files_by_default(data: Any) -> Any:
    """Sets `type` to `files` for a source or sink without a `type`."""
    return {"type": "files", **data} if isinstance(data, Mapping) else data


#: Fields that may hold a secret by mistake, where the name of the secret is expected: values are never quoted.
_NEVER_SHOWN = frozenset({"environment_secrets", "container_env", "hf_token_secret"})
#: Fields that hold one of several types; pydantic appends the name of the type to their path.
_UNIONS = ("source", "model", "sink", "runner")
#: An endpoint is such a union itself, without an enclosing field.
_ENDPOINT_TYPES = ("vertex", "cloud_run")


def _problem(item: dict[str, Any]) -> SpecProblem:
    path = [str(part) for part in item["loc"]]
    if len(path) > 1 and path[0] in _UNIONS:
        del path[1]
    elif path and path[0] in _ENDPOINT_TYPES:
        del path[0]
    field = ".".join(path)
    got, context = item.get("input"), item.get("ctx", {})
    if not _NEVER_SHOWN.isdisjoint(path):
        got = "…"
    match item["type"]:
        case "extra_forbidden":
            want = "there is no such field"
        case "missing":
            want, got = "this field is needed", None
        case "union_tag_not_found":
            field, want = f"{field}.type".lstrip("."), "this field is needed"
        case "union_tag_invalid":
            field, want = f"{field}.type".lstrip("."), f"must be one of {context['expected_tags']}"
            got = context["tag"]
        case "value_error":
            want = str(context["error"])
        case _:
            want = item["msg"][0].lower() + item["msg"][1:]
    return SpecProblem(field=field, got=got, want=want)
