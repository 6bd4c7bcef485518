from __future__ import annotations

import pytest
from pydantic import ValidationError

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import JobSpec, Limits, OpenAIModel
from airflow_provider_llmbeam.spec.base import SpecProblem

SECRET = "sk-0123-topsecret"


def test_a_value_is_frozen() -> None:
    limits = Limits()
    with pytest.raises(ValidationError):
        limits.max_attempts = 3  # type: ignore[misc]


def test_an_unknown_field_is_refused_by_name() -> None:
    (problem,) = Limits.problems({"max_tries": 3})
    assert str(problem) == "`max_tries`: there is no such field; did you mean `max_attempts`?"


def test_a_missing_field_is_named() -> None:
    (problem,) = OpenAIModel.problems({"type": "openai"})
    assert str(problem) == "`name`: this field is needed."


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
    assert str(problem) == "`model.type`: this field is needed; got {'name': …}."


def test_the_problem_of_an_unknown_type_lists_the_types(job) -> None:
    (problem,) = JobSpec.problems(job(model={"type": "claude"}))
    assert (
        str(problem) == "`model.type`: must be one of 'gemini', 'openai', 'anthropic', 'vertex_endpoint', 'echo', "
        "'distilled' (did you mean 'anthropic'?); got 'claude'."
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


@pytest.mark.parametrize(
    "model",
    [
        {"type": "openai", "name": "m", "api_key": SECRET},
        {"type": "openai", "name": "m", "apikei": SECRET},
        {"type": "openai", "name": "m", "headers": {"Authorization": SECRET}},
        {"type": "openai", "name": "m", "api_key_env": SECRET},
        {"type": "openai", "name": "m", "base_url": f"https://user:{SECRET}@host/v1"},
        {"type": "openai", "name": "m", "base_url": f"https://user:a/b{SECRET}@host/v1"},
        {"type": "openai", "name": "m", "base_url": f"https://host/v1?key={SECRET}"},
        {"type": "openai", "name": "m", "base_url": f"host/v1?key={SECRET}"},
        {"type": "gemini", "base_url": f"https://host#{SECRET}"},
        {"name": "m", "api_key": SECRET},
        {"type": "opnai", "api_key": SECRET},
    ],
)
def test_a_problem_never_repeats_a_value_that_may_be_a_secret(job, model) -> None:
    problems = JobSpec.problems(job(model=model))
    assert problems
    assert SECRET not in f"{problems} {' '.join(map(str, problems))}"
    with pytest.raises(JobSpecError) as caught:
        JobSpec.parse(job(model=model))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "parts",
    [
        {"sink": {"type": "postgres", "table": "t", "dsn_env": f"postgresql://u:{SECRET}@h/d"}, "state_uri": "s"},
        {"sink": {"uri": f"s3://key:{SECRET}@bucket/out"}},
        {"sink": {"uri": "out", "token": SECRET}},
        {"source": {"uri": f"s3://key:{SECRET}@bucket/in.jsonl", "key": ["id"]}},
        {"state_uri": f"gs://key:{SECRET}@bucket"},
        {"password": SECRET},
        {"password": SECRET, "source": {"type": "bigquery", "table": "p.d.t", "key": ["id"]}},
        {"runner": {"type": "dataflow", "location": "europe-west1", "options": {"token": {"a": SECRET}}}},
    ],
)
def test_a_problem_of_any_part_never_repeats_a_value_that_may_be_a_secret(job, parts) -> None:
    problems = JobSpec.problems(job(**parts))
    assert problems
    assert SECRET not in " ".join(map(str, problems))


def test_an_error_of_the_class_of_a_value_never_repeats_the_value() -> None:
    """In a Dag file it is an import error, which the UI shows."""
    with pytest.raises(ValidationError) as caught:
        OpenAIModel(type="openai", name="m", api_key=SECRET)  # type: ignore[call-arg]
    assert "api_key" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_the_problem_of_an_address_with_a_password_says_where_that_belongs(job) -> None:
    (problem,) = JobSpec.problems(job(model={"type": "gemini", "base_url": "https://u:p@h"}))
    assert str(problem) == (
        "`model.base_url`: must not hold a user or a password, as it is written to logs and reports: a key "
        "belongs in the password of the connection, or in the environment variable that the spec names; got '…'."
    )


@pytest.mark.parametrize("address", ["http://127.0.0.1:8000/v1", "https://a-b.example.org", "http://[::1]:80/v1/"])
def test_an_address_without_a_password_is_accepted(job, address: str) -> None:
    assert JobSpec.problems(job(model={"type": "gemini", "base_url": address})) == ()


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"model": {"type": "openai", "name": 3}}, "model.name"),
        ({"sink": {"type": "bigquery", "table": 3}}, "sink.table"),
        ({"source": {"type": "rows", "rows": 3, "key": ["id"]}}, "source.rows"),
        ({"safety": {"audit": {"type": "files", "uri": 3}}}, "safety.audit.uri"),
        ({"safety": {"moderation": {"model": {"type": "openai", "name": 3}}}}, "safety.moderation.model.name"),
        (
            {"safety": {"privacy": {"detectors": [{"type": "patterns", "entities": 3}]}}},
            "safety.privacy.detectors.0.entities",
        ),
    ],
)
def test_the_path_of_a_field_names_no_type_of_a_union(job, parts, field) -> None:
    assert field in {problem.field for problem in JobSpec.problems(job(**parts))}
