from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from airflow_provider_llmbeam.spec.base import SpecModel


class Inner(SpecModel):
    a: int


class Value(SpecModel):
    text: Annotated[str, Field(min_length=1)] = "a"
    items: Annotated[tuple[str, ...], Field(min_length=1)] = ("a",)
    pair: Annotated[tuple[str, ...], Field(min_length=2)] = ("a", "b")
    number: Annotated[float, Field(gt=0, le=1)] = 0.5
    count: Annotated[int, Field(ge=1, lt=10**6)] = 1
    flag: bool = True
    choice: Literal["a", "b"] = "a"
    inner: Inner | None = None
    mapping: dict[str, int] = Field(default_factory=dict)
    function: Callable[[], Any] | None = None


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("text", 1, "`text`: must be a text; got 1."),
        ("text", "", "`text`: must not be empty; got ''."),
        ("items", 5, "`items`: must be a list; got 5."),
        ("items", [], "`items`: must have at least 1 item; got []."),
        ("pair", [], "`pair`: must have at least 2 items; got []."),
        ("number", "x", "`number`: must be a number; got 'x'."),
        ("number", 0, "`number`: must be greater than 0; got 0."),
        ("number", 2, "`number`: must be less than or equal to 1; got 2."),
        ("number", float("nan"), "`number`: must be a finite number; got nan."),
        ("count", 0.5, "`count`: must be a whole number; got 0.5."),
        ("count", "x", "`count`: must be a whole number; got 'x'."),
        ("count", 0, "`count`: must be greater than or equal to 1; got 0."),
        ("count", 10**6, "`count`: must be less than 1000000; got 1000000."),
        ("flag", "perhaps", "`flag`: must be true or false; got 'perhaps'."),
        ("choice", "c", "`choice`: must be 'a' or 'b'; got 'c'."),
        ("inner", 5, "`inner`: must be an object with named fields; got 5."),
        ("mapping", [], "`mapping`: must be an object with named fields; got []."),
        ("inner", {}, "`inner.a`: this field is needed."),
        ("function", "len", "`function`: must be a function; got 'len'."),
    ],
)
def test_an_error_says_what_the_field_takes_without_words_of_the_validator(
    field: str, value: Any, sentence: str
) -> None:
    assert [str(problem) for problem in Value.problems({field: value})] == [sentence]


def test_a_long_value_is_cut() -> None:
    (problem,) = Value.problems({"choice": "x" * 1000})
    assert len(str(problem)) < 130
