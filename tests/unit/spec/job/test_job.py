from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.fields.names import is_job_name
from airflow_provider_llmbeam.spec.sink import OUTPUT_COLUMNS
from tests.hostile import examples

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
    maybe(base_url=st.just("https://h/v1/"), api_key_env=st.from_regex(r"[A-Z_][A-Z0-9_]*", fullmatch=True)).map(
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
            {"template": words.map(lambda text: f"{{{{ row.text }}}} {text}")},
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
        "state_uri": st.none() | words.filter(str.strip),
    },
)


@pytest.mark.fuzz
@examples(0.3)
@given(jobs)
def test_a_job_round_trips_through_json(data: dict[str, Any]) -> None:
    spec = JobSpec.parse(data)
    again = JobSpec.from_json(spec.model_dump_json())
    assert again == spec
    assert again.model_dump_json() == spec.model_dump_json()


@pytest.mark.parametrize("levels", [990, 50_000])
def test_a_job_with_more_levels_than_python_decodes_is_refused_before_anything_is_billed(levels: int) -> None:
    with pytest.raises(JobSpecError, match=r"(nested|recursion|named fields).* Nothing was sent or billed\."):
        JobSpec.from_json("[" * levels + "]" * levels)


@pytest.mark.parametrize("field", ["name", "source", "model"])
def test_the_message_about_a_field_of_hundreds_of_levels_is_short(job, field: str) -> None:
    value: Any = []
    for _ in range(900):
        value = [value]
    problems = JobSpec.problems(job(**{field: value}))
    assert problems
    assert all(len(str(problem)) < 400 for problem in problems)
    assert "[[[[[…]]]]]" in " ".join(map(str, problems))


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": {"template": "t", "output_schema": {"type": "x" * 100_000}}},
        {"x" * 100_000: 1},
        {"generation": {"x" * 100_000: 1}},
        {"source": {"type": "x" * 100_000}},
        {"name": "x" * 100_000},
    ],
    ids=["quoted", "unknown", "unknown inside", "type", "value"],
)
def test_the_message_about_a_long_part_is_short(job, changes: dict[str, Any]) -> None:
    (problem,) = JobSpec.problems(job(**changes))
    assert len(str(problem)) <= 1400


def test_the_smallest_job_has_the_defaults(job) -> None:
    spec = JobSpec.parse(job())
    assert spec.version == 1
    assert spec.limits.max_in_flight == 64
    assert spec.generation.temperature is None  # the choice of the server


@pytest.mark.parametrize("name", ["", "-a", ".hidden", "a/b", "../up", "a b", "ä", "a\n", "x" * 128])
def test_a_name_that_could_leave_its_directory_is_refused(job, name: str) -> None:
    (problem,) = JobSpec.problems(job(name=name))
    assert problem.field == "name"
    assert problem.got == name
    assert problem.want.startswith("must be a name of at most 127 letters, digits and . _ -")


@pytest.mark.parametrize("name", ["cache", "conversations", "history", "rates", "History"])
def test_a_name_of_a_directory_that_jobs_share_is_refused(job, name: str) -> None:
    """`forget --all-jobs` passed over its answers, and said that nothing was left."""
    (problem,) = JobSpec.problems(job(name=name))
    assert problem.want.startswith("must be none of cache, conversations, history, rates")
    assert not is_job_name(name)


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
    assert JobSpec.parse(job(state_uri=state_uri)).paths.journal_uri == expected


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


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("state_uri", {"state_uri": "runs[1]"}),
        ("state_uri", {"state_uri": "gs://b/runs-*/"}),
        ("state_uri", {"state_uri": "runs?/"}),
        ("state_uri", {"state_uri": ""}),
        ("state_uri", {"state_uri": "  "}),
        (
            "source.export_uri",
            {
                "state_uri": "gs://b/s",
                "source": {"type": "bigquery", "table": "p.d.t", "key": ["id"], "export_uri": "gs://b/x[1]/"},
            },
        ),
        ("name", {"name": "nightly[1]"}),
        ("cache.scope", {"state_uri": "s", "cache": {"scope": "moods*"}}),
    ],
    ids=str,
)
def test_a_directory_of_state_that_would_be_a_glob_is_refused(job, field: str, change: dict[str, Any]) -> None:
    problems = JobSpec.problems(job(**change))
    assert [problem.field for problem in problems] == [field]


@pytest.mark.parametrize("uri", ["runs{1,2}", "runs\\1", "runs ü", "runs%5B", "  runs  "])
def test_other_signs_are_part_of_a_directory(job, uri: str) -> None:
    assert JobSpec.parse(job(state_uri=uri)).state_uri == f"{uri.strip()}/"


@pytest.fixture
def journal_of(job):
    def found(**change: Any) -> tuple[str, tuple[str, ...]]:
        spec = JobSpec.parse(job(**{"state_uri": "s", "model": {"type": "gemini"}, **change}))
        return spec.paths.journal_uri, spec.paths.journal_uris

    return found


CUSTOM = {"type": "openai", "name": "m", "base_url": "http://vllm:8000/v1"}
LOOPBACK = {"type": "gemini", "base_url": "http://127.0.0.1:8787"}


def test_the_answers_of_another_server_never_reach_a_job_with_a_provider(journal_of) -> None:
    scope = {"scope": "moods"}
    assert journal_of(cache=scope) == ("s/cache/moods/", ("s/cache/moods/",))
    assert journal_of() == ("s/nightly/journal/", ("s/nightly/journal/",))
    for model in (CUSTOM, LOOPBACK):
        for change in ({"model": model}, {"model": model, "cache": scope}):
            assert journal_of(**change)[0] not in (*journal_of()[1], *journal_of(cache=scope)[1])


def test_a_job_with_another_server_uses_the_answers_of_a_provider_too(journal_of) -> None:
    scope = {"scope": "moods"}
    own = "s/cache/moods@http-vllm%3A8000/"
    assert journal_of(model=CUSTOM, cache=scope) == (own, (own, "s/cache/moods/"))
    own = "s/nightly/journal@loopback/"
    assert journal_of(model=LOOPBACK) == (own, (own, "s/nightly/journal/"))


def test_a_job_keeps_its_own_answers_when_its_server_moves(journal_of) -> None:
    moved = {**CUSTOM, "base_url": "http://10.0.0.8:8000/v1"}
    assert journal_of(model=CUSTOM) == journal_of(model=moved)
    assert journal_of(model=CUSTOM, cache={"scope": "a"}) != journal_of(model=moved, cache={"scope": "a"})


def test_behind_the_proxy_of_the_sandbox_no_answer_is_that_of_a_provider(
    journal_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMBEAM_SANDBOX_URL", "http://127.0.0.1:8787")
    assert journal_of(model={"type": "gemini"}, cache={"scope": "a"})[0] == "s/cache/a@loopback/"


def test_a_source_that_matches_the_report_of_its_own_sink_is_refused(job):
    fields = {"source": {"uri": "data/*.json", "key": ["id"]}, "sink": {"uri": "data"}}
    (problem,) = JobSpec.problems({**job(), **fields})
    assert problem.want.startswith("would read its own answers: `source.uri` 'data/*.json' matches the files that")
    assert not JobSpec.problems({**job(), **fields, "sink": {"uri": "data/out"}})


@pytest.mark.parametrize("uri", ["data/**/*.json", "data/**/report.json", "**/*.json"])
def test_two_stars_and_a_slash_include_the_folder_of_the_sink(job, uri):
    fields = {"source": {"uri": uri, "key": ["id"]}, "sink": {"uri": "data"}}
    assert "would read its own answers" in JobSpec.problems({**job(), **fields})[0].want
