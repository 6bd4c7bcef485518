from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import ObjectStoragePath

from airflow_provider_llmbeam.operators.literal import is_pending, literal_problems, plain
from airflow_provider_llmbeam.spec import EchoModel, FilesSource, GeminiModel, JobSpec, Limits
from airflow_provider_llmbeam.spec.evaluation import Alternative
from airflow_provider_llmbeam.spec.safety import Moderation, PatternsDetector, Privacy, Safety


class Reference:
    """Stands for an `XComArg`, whose value is known only at run time."""

    def __repr__(self):
        return "Reference"


def job(**parts: Any) -> dict[str, Any]:
    return {
        "name": "nightly",
        "source": {"uri": "in/*.jsonl", "key": ["id"]},
        "prompt": {"template": "Say {{ row.text }}"},
        "model": {"type": "echo"},
        "sink": {"uri": "out/"},
        **parts,
    }


def problems(**parts: Any) -> list[str]:
    return [problem.field for problem in literal_problems(JobSpec, job(**parts))]


@pytest.mark.parametrize(
    "value",
    [
        "{{ ds }}",
        "gs://b/{{ ds }}/*.csv",
        "{% if a %}b{% endif %}",
        ["a", "{{ ds }}"],
        ("{{ ds }}",),
        {"a": {"b": ["{{ ds }}"]}},
        Reference(),
        [Reference()],
        {"a": Reference()},
    ],
    ids=repr,
)
def test_values_that_airflow_renders_later_are_pending(value: Any) -> None:
    assert is_pending(value)


@pytest.mark.parametrize(
    "value", ["", "a { b }", 0, 1.5, True, None, [], {}, {"a": [1, None, "b"]}, EchoModel(type="echo")], ids=repr
)
def test_literal_values_are_not_pending(value: Any) -> None:
    assert not is_pending(value)


def test_a_valid_job_has_no_problems() -> None:
    assert problems() == []


@pytest.mark.parametrize(
    "parts",
    [
        {"model": Reference()},
        {"model": "{{ ti.xcom_pull('provision') }}"},
        {"model": {"type": "{{ params.type }}"}},
        {"source": {"uri": "{{ params.uri }}", "key": ["id"]}},
        {"source": {"uri": "in/a.csv", "key": "{{ params.key }}"}},
        {"source": "{{ params.source }}"},
        {"name": "{{ dag.dag_id }}"},
        {"limits": {"max_in_flight": "{{ params.speed }}"}},
        {"limits": Reference()},
        {"generation": {"temperature": Reference()}},
    ],
    ids=str,
)
def test_pending_values_are_not_checked(parts: dict[str, Any]) -> None:
    assert problems(**parts) == []


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"name": "a/b"}, "name"),
        ({"limits": {"max_in_flight": 0, "max_attempts": "{{ params.n }}"}}, "limits.max_in_flight"),
        ({"limits": {"max_tries": 1}}, "limits.max_tries"),
        ({"source": {"uri": "{{ params.uri }}", "key": ["id", "id"]}}, "source.key"),
        ({"source": {"uri": "in/table", "key": ["id"]}}, "source"),
        ({"model": {"type": "claude"}}, "model.type"),
        ({"model": {}}, "model.type"),
        ({"sink": {"uri": "out/*"}}, "sink.uri"),
        ({"prompt": {}}, "prompt.template"),
    ],
    ids=str,
)
def test_invalid_literal_values_are_reported(parts: dict[str, Any], field: str) -> None:
    assert problems(**parts) == [field]


def test_braces_that_airflow_does_not_render_hide_no_problem() -> None:
    data = job(prompt={"template": "Say {{ row.text", "system": "{% if %}", "media": [{"uri": "{{ row.a"}]})
    found = literal_problems(JobSpec, data, ("prompt.template", "prompt.system", "prompt.media"))
    assert [problem.field for problem in found] == ["prompt.template", "prompt.system", "prompt.media.0.uri"]


def test_a_spec_value_becomes_plain_data_that_airflow_renders() -> None:
    source = FilesSource(uri="{{ params.uri }}", format="csv", key=("id",))
    assert plain(source) == {"type": "files", "uri": "{{ params.uri }}", "format": "csv", "key": ["id"]}


def test_only_the_type_and_fields_that_were_set_are_kept() -> None:
    assert plain(GeminiModel(name="gemini-2.5-pro")) == {"type": "gemini", "name": "gemini-2.5-pro"}
    assert plain(Limits(max_attempts=2)) == {"max_attempts": 2}


def test_the_types_of_values_within_others_and_within_mappings_are_kept() -> None:
    model, data = GeminiModel(name="gemini-2.5-pro"), {"type": "gemini", "name": "gemini-2.5-pro"}
    assert plain(Alternative(model=model)) == plain({"model": model}) == {"model": data}
    guard = Moderation(model=model, system="x", verdict="json")
    expected = {"moderation": {"model": data, "system": "x", "verdict": "json"}}
    assert plain(Safety(moderation=guard)) == plain({"moderation": guard}) == expected
    privacy = Privacy(key_env="KEY", detectors=(PatternsDetector(type="patterns"),))
    assert plain({"safety": {"privacy": privacy}})["safety"]["privacy"]["detectors"] == [{"type": "patterns"}]
    demand = plain(JobSpec.parse(job(safety=Safety(moderation=guard))))
    assert JobSpec.parse(demand).safety.moderation == guard
    assert [demand[part]["type"] for part in ("source", "model", "sink")] == ["files", "echo", "files"]


@pytest.mark.parametrize("value", [None, "{{ ds }}", {"uri": "a"}, {"a": {"b": ["c"]}}, 3])
def test_plain_data_is_not_copied(value: Any) -> None:
    assert plain(value) is value


@pytest.mark.parametrize("path", [Path("/data/out"), ObjectStoragePath("gs://bucket/out")])
def test_a_path_is_its_text(path: Any) -> None:
    assert plain(path) == str(path)
    assert plain({"uri": path, "key": ["id"]}) == {"uri": str(path), "key": ["id"]}


def test_data_that_contains_itself_is_left_to_the_check_of_the_spec() -> None:
    variables: dict[str, Any] = {}
    variables["again"] = variables
    assert plain({"variables": variables})["variables"] is variables


def test_problems_of_the_whole_spec_are_found_although_the_prompt_has_braces() -> None:
    on_dataflow = {"type": "dataflow", "location": "europe-west1"}
    never_rendered = ("prompt.template", "prompt.system")
    (problem,) = literal_problems(JobSpec, job(runner=on_dataflow), never_rendered)
    assert "`source.uri` 'in/*.jsonl'" in problem.want
    assert not literal_problems(JobSpec, job(runner=on_dataflow, sink={"uri": "{{ params.out }}"}), never_rendered)
