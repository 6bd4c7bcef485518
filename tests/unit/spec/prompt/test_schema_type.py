from __future__ import annotations

import dataclasses
import enum
import typing
from typing import Annotated, Any, Literal, TypedDict

import jsonschema
import pytest
import typing_extensions
from pydantic import BaseModel

from airflow_provider_llmbeam.spec import JobSpec, PromptTemplate
from airflow_provider_llmbeam.spec.prompt import prompt_data


class Topic(TypedDict):
    name: str


class Mood(TypedDict, total=False):
    """The mood of a review."""

    mood: typing.Required[Literal["good", "bad"]]
    score: Annotated[int, "from 1 to 5"]
    topics: list[Topic]
    first: Topic | None


class MoodClass(BaseModel):
    mood: Literal["good", "bad"]
    topics: list[Topic2] = []


class Topic2(BaseModel):
    name: str


@dataclasses.dataclass
class MoodData:
    mood: Literal["good", "bad"]


class Grade(enum.Enum):
    A = "a"
    B = "b"


MoodExtended = typing_extensions.TypedDict("MoodExtended", {"mood": Literal["good", "bad"]})  # noqa: UP013


def is_valid(schema: Any, value: Any) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize("kind", [Mood, MoodClass, MoodData, MoodExtended])
def test_a_class_is_the_schema_of_its_values(kind: Any) -> None:
    schema = PromptTemplate(template="{{ row.a }}", output_schema=kind).output_schema
    assert is_valid(schema, {"mood": "good"})
    assert not is_valid(schema, {"mood": "mixed"})
    assert not is_valid(schema, {})


def test_nested_typed_dicts_are_checked_too() -> None:
    schema = PromptTemplate(template="{{ row.a }}", output_schema=Mood).output_schema  # type: ignore[arg-type]
    assert schema is not None
    assert schema["description"] == "The mood of a review."
    assert is_valid(schema, {"mood": "good", "score": 1, "topics": [{"name": "price"}], "first": None})
    assert not is_valid(schema, {"mood": "good", "topics": [{"nome": "price"}]})
    assert not is_valid(schema, {"mood": "good", "first": {}})


@pytest.mark.parametrize(("kind", "good", "bad"), [(Grade, "a", "c"), (list[str], ["a"], "a"), (int, 1, "1")])
def test_an_enum_or_a_generic_is_a_schema_too(kind: Any, good: Any, bad: Any) -> None:
    schema = PromptTemplate(template="{{ row.a }}", output_schema=kind).output_schema
    assert is_valid(schema, good)
    assert not is_valid(schema, bad)


@pytest.mark.parametrize(
    "schema",
    [{"mood": "string"}, {"title": "string", "price": "number"}, {"name": "mood", "schema": {"type": "object"}}],
)
def test_names_of_fields_in_place_of_keywords_are_no_schema(job, schema: dict[str, Any]) -> None:
    (problem,) = JobSpec.problems(job(prompt={"template": "{{ row.text }}", "output_schema": schema}))
    assert problem.field == "prompt.output_schema"
    assert problem.want.startswith("accepts any answer, as ")


@pytest.mark.parametrize(
    "schema",
    [{}, {"title": "Any"}, {"$defs": {"a": {"type": "string"}}, "$ref": "#/$defs/a"}, {"type": "string", "x": 1}],
)
def test_a_schema_without_a_keyword_that_is_wrong_is_accepted(job, schema: dict[str, Any]) -> None:
    assert not JobSpec.problems(job(prompt={"template": "{{ row.text }}", "output_schema": schema}))


def test_a_schema_may_be_text(job) -> None:
    spec = JobSpec.parse(job(prompt={"template": "{{ row.a }}", "output_schema": '{"type": "string"}'}))
    assert spec.prompt.output_schema == {"type": "string"}


def test_a_class_without_a_schema_is_refused_by_its_reason() -> None:
    class Odd:
        pass

    given = {"template": "{{ row.a }}", "output_schema": Odd}
    (problem,) = PromptTemplate.problems(given)
    assert problem.field == "output_schema"
    assert problem.want.startswith("is a type without a JSON Schema (")
    assert prompt_data(given) is given


def test_the_prompt_of_an_operator_is_plain_data() -> None:
    assert prompt_data({"template": "a", "output_schema": Grade}) == {
        "template": "a",
        "output_schema": {"enum": ["a", "b"], "title": "Grade", "type": "string"},
    }
    assert prompt_data("a {{ row.a }}") == {"template": "a {{ row.a }}"}


def test_a_spec_with_a_class_round_trips_through_json(job) -> None:
    spec = JobSpec.parse(job(prompt={"template": "{{ row.a }}", "output_schema": MoodClass}))
    assert JobSpec.from_json(spec.model_dump_json()) == spec
