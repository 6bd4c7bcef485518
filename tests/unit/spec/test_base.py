from __future__ import annotations

import pytest
from pydantic import ValidationError

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import JobSpec, Limits, OpenAIModel
from airflow_provider_llmbeam.spec.base import SpecProblem


def test_a_value_is_frozen() -> None:
    limits = Limits()
    with pytest.raises(ValidationError):
        limits.max_attempts = 3  # type: ignore[misc]


def test_an_unknown_field_is_refused_by_name() -> None:
    (problem,) = Limits.problems({"max_tries": 3})
    assert str(problem) == "`max_tries`: there is no such field; got 3."


def test_a_missing_field_is_named() -> None:
    (problem,) = OpenAIModel.problems({"type": "openai"})
    assert str(problem) == "`name`: this field is needed; got None."


def test_a_nested_field_is_named_by_its_path(job) -> None:
    (problem,) = JobSpec.problems(job(limits={"max_in_flight": 0}))
    assert problem.field == "limits.max_in_flight"
    assert problem.got == 0
    assert "greater than or equal to 1" in problem.want


def test_the_problem_of_a_spec_that_is_not_an_object_names_the_spec() -> None:
    (problem,) = JobSpec.problems([1])  # type: ignore[arg-type]
    assert str(problem).startswith("`spec`: ")
    assert str(problem).endswith("got [1].")


def test_the_problem_of_a_model_without_a_type_names_the_field(job) -> None:
    (problem,) = JobSpec.problems(job(model={"name": "gemini-2.5-flash"}))
    assert str(problem) == "`model.type`: this field is needed; got {'name': 'gemini-2.5-flash'}."


def test_the_problem_of_an_unknown_type_lists_the_types(job) -> None:
    (problem,) = JobSpec.problems(job(model={"type": "claude"}))
    assert (
        str(problem) == "`model.type`: must be one of 'gemini', 'openai', 'vertex_endpoint', 'echo'; got 'claude'."
    )


def test_every_problem_is_listed_at_once() -> None:
    fields = {problem.field for problem in Limits.problems({"max_attempts": 0, "expected_workers": 0, "no": 1})}
    assert fields == {"max_attempts", "expected_workers", "no"}


def test_a_valid_value_has_no_problems() -> None:
    assert Limits.problems({"max_attempts": 1}) == ()


def test_the_error_names_each_field_and_that_nothing_was_billed() -> None:
    with pytest.raises(JobSpecError) as caught:
        Limits.parse({"max_attempts": 0, "max_in_flight": "many"})
    words = str(caught.value)
    assert "`max_attempts`" in words
    assert "`max_in_flight`" in words
    assert "'many'" in words
    assert words.endswith("Nothing was sent or billed.")


def test_parsing_a_spec_value_returns_an_equal_value() -> None:
    limits = Limits(max_attempts=2)
    assert Limits.parse(limits) == limits


def test_a_long_value_is_shown_in_part() -> None:
    words = str(SpecProblem(field="prompt.template", got="x" * 1000, want="must be short"))
    assert len(words) < 200
    assert words.endswith("x....")


@pytest.mark.parametrize("field", ["requests_per_minute", "request_timeout_seconds", "max_throttled_seconds"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_that_json_cannot_represent_is_refused(field: str, value: float) -> None:
    """It would be serialised as `null`, which is refused or has another meaning."""
    assert [problem.field for problem in Limits.problems({field: value})] == [field]
