from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.source import OUTPUT_COLUMNS

words = st.text("abcXYZ019 äß漢😀-_", max_size=12)
names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,20}\Z")
columns = words.filter(lambda column: column and column not in OUTPUT_COLUMNS)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)


def maybe(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


positive = st.floats(1e-3, 1e9)
models = st.one_of(
    maybe(name=words.filter(bool), project=st.none() | words, location=words, base_url=st.just("http://h/")).map(
        lambda fields: {"type": "gemini", **fields}
    ),
    maybe(base_url=st.just("https://h/v1/"), api_key_env=words).map(
        lambda fields: {"type": "openai", "name": "m", **fields}
    ),
    maybe(latency_seconds=st.floats(0, 9)).map(lambda fields: {"type": "echo", **fields}),
)
jobs = st.fixed_dictionaries(
    {
        "name": names,
        "source": st.fixed_dictionaries(
            {"uri": st.just("in/*.csv"), "key": st.lists(columns, min_size=1, max_size=3, unique=True)},
            optional={"format": st.sampled_from(["jsonl", "csv", "parquet"])},
        ),
        "prompt": st.fixed_dictionaries(
            {"template": words.filter(bool)},
            optional={
                "system": st.none() | words,
                "variables": st.dictionaries(words, values, max_size=3),
                "output_schema": st.sampled_from([None, {}, {"type": "object", "required": ["a"]}]),
                "media": st.lists(st.just({"uri": "{{ row.image }}"}), max_size=2),
            },
        ),
        "model": models,
        "sink": st.fixed_dictionaries(
            {"uri": words.filter(str.strip)},
            optional={"format": st.sampled_from(["jsonl", "parquet"]), "shards": st.integers(1, 1000)},
        ),
    },
    optional={
        "generation": maybe(
            max_output_tokens=st.integers(1, 9999),
            temperature=st.none() | st.floats(0, 2),
            seed=st.none() | st.integers(),
            stop_sequences=st.lists(words, max_size=2),
        ),
        "limits": maybe(
            requests_per_minute=st.none() | positive,
            max_in_flight=st.integers(1, 10_000),
            request_timeout_seconds=positive,
        ),
        "batching": maybe(
            bucket_boundaries=st.none() | st.sets(st.integers(1, 9999), min_size=1).map(sorted),
            max_batch_size=st.integers(1, 100_000),
        ),
        "state_uri": st.none() | words,
    },
)


@given(jobs)
@settings(deadline=None, max_examples=60)
def test_a_job_round_trips_through_json(data: dict[str, Any]) -> None:
    spec = JobSpec.parse(data)
    again = JobSpec.from_json(spec.model_dump_json())
    assert again == spec
    assert again.model_dump_json() == spec.model_dump_json()


def test_the_smallest_job_has_the_defaults(job) -> None:
    spec = JobSpec.parse(job())
    assert spec.version == 1
    assert spec.limits.max_in_flight == 64
    assert spec.generation.temperature == 0.0


@pytest.mark.parametrize("name", ["", "-a", ".hidden", "a/b", "../up", "a b", "ä", "a\n", "x" * 128])
def test_a_name_that_could_leave_its_directory_is_refused(job, name: str) -> None:
    (problem,) = JobSpec.problems(job(name=name))
    assert problem.field == "name"
    assert problem.got == name
    assert "should match pattern" in problem.want


@pytest.mark.parametrize("name", ["a", "0", "nightly-enrichment", "a.b_c-d", "x" * 127])
def test_a_plain_name_is_accepted(job, name: str) -> None:
    assert JobSpec.parse(job(name=name)).name == name


def test_another_version_is_refused(job) -> None:
    (problem,) = JobSpec.problems(job(version=2))
    assert (problem.field, problem.got) == ("version", 2)


@pytest.mark.parametrize("part", ["name", "source", "prompt", "model", "sink"])
def test_a_job_needs_each_of_its_parts(job, part: str) -> None:
    data = job()
    del data[part]
    (problem,) = JobSpec.problems(data)
    assert (problem.field, problem.want) == (part, "this field is needed")


@pytest.mark.parametrize(
    ("state_uri", "expected"),
    [
        (None, "out/.llmbeam/nightly/journal/"),
        ("gs://b/state", "gs://b/state/nightly/journal/"),
        ("gs://b/state/", "gs://b/state/nightly/journal/"),
    ],
)
def test_the_journal_lies_below_the_state_or_the_sink(job, state_uri: str | None, expected: str) -> None:
    assert JobSpec.parse(job(state_uri=state_uri)).journal_uri == expected


@pytest.mark.parametrize("text", ["", "{", b"\xff\xfe\xfa", "{'name': 1}"])
def test_text_that_is_not_json_is_refused_as_such(text: str | bytes) -> None:
    with pytest.raises(JobSpecError, match=r"^The job spec is not JSON: .*Nothing was sent or billed\.$"):
        JobSpec.from_json(text)


@pytest.mark.parametrize("text", ["[]", "null", '"nightly"', "3"])
def test_json_that_is_not_an_object_is_refused(text: str) -> None:
    with pytest.raises(JobSpecError, match="`spec`"):
        JobSpec.from_json(text)


def test_json_can_be_bytes(job) -> None:
    assert JobSpec.from_json(json.dumps(job()).encode()) == JobSpec.parse(job())
