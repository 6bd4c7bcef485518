from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_llmbeam.spec import FilesSink, JobSpec, MilvusSink


@pytest.mark.parametrize("uri", ["out", "out/", "  out/  "])
def test_a_directory_ends_in_a_slash(uri: str) -> None:
    assert FilesSink(uri=uri).uri == "out/"


@pytest.mark.parametrize("uri", ["out/*", "out-?/", "out[1]/"])
def test_a_glob_is_refused(uri: str) -> None:
    (problem,) = FilesSink.problems({"uri": uri})
    assert str(problem).startswith("`uri`: must be one directory, not a glob: a path with *, ? or [ matches")
    assert str(problem).endswith(f"; got {uri!r}.")


@pytest.mark.parametrize(
    ("uri", "beginning"),
    [
        (str(Path("gs://my-bucket/out")), "gs:/"),
        ("file:/tmp/out", "file:/"),
        ("~/out", "~"),
        ("~", "~"),
        ("$HOME/out", "$HOME"),
        ("${DATA}/out", "${DATA}"),
    ],
)
@pytest.mark.parametrize("field", ["source.uri", "sink.uri", "state_uri"])
def test_an_address_that_would_be_a_directory_of_the_worker_by_mistake_is_refused(
    job: Any, uri: str, beginning: str, field: str
) -> None:
    part, _, name = field.partition(".")
    given = {"source": {"key": ["id"], "format": "jsonl"}, "sink": {}}
    (problem,) = JobSpec.problems({**job(), part: {**given[part], name: uri} if name else uri})
    assert str(problem).startswith(f"`{field}`: would be a local path that begins with {beginning!r}: a scheme")


@pytest.mark.parametrize(
    "uri", ["gs://b/out", "file:///tmp/out", "out~/", "~tmp/out", "a$b/out", "C:/out", "a:b/"]
)
def test_other_paths_are_taken_as_they_are(uri: str) -> None:
    assert FilesSink(uri=uri).uri == f"{uri.rstrip('/')}/"


@pytest.mark.parametrize("uri", ["", "   "])
def test_an_empty_directory_name_is_refused_and_never_becomes_the_root(uri: str) -> None:
    (problem,) = FilesSink.problems({"uri": uri})
    assert problem.field == "uri"


@pytest.mark.parametrize("shards", [0, 1001])
def test_an_invalid_number_of_shards_is_refused(shards: int) -> None:
    (problem,) = FilesSink.problems({"uri": "out/", "shards": shards})
    assert problem.field == "shards"
    assert problem.got == shards


def test_an_unknown_format_is_refused() -> None:
    (problem,) = FilesSink.problems({"uri": "out/", "format": "csv"})
    assert problem.field == "format"
    assert "'jsonl' or 'parquet'" in problem.want


def milvus_problem(**changes: object) -> str:
    (problem,) = MilvusSink.problems({"type": "milvus", "uri": "a.db", "collection": "notes", **changes})
    return str(problem)


@pytest.mark.parametrize(
    ("uri", "expected", "is_local"),
    [
        ("http://h:19530/", "http://h:19530", False),
        ("https://h/database.db", "https://h/database.db", False),
        ("/data/notes.db", "/data/notes.db", True),
        ("notes.db", "notes.db", True),
    ],
)
def test_milvus_is_a_server_or_a_local_file(uri: str, expected: str, is_local: bool) -> None:
    sink = MilvusSink(type="milvus", uri=uri, collection="notes")
    assert (sink.uri, sink.is_local) == (expected, is_local)


@pytest.mark.parametrize("uri", ["", "notes", "gs://b/notes.db", "tcp://h:1", "h:19530"])
def test_another_address_of_milvus_is_refused(uri: str) -> None:
    assert "must start with http:// or https://, or be a local file that ends in .db" in milvus_problem(uri=uri)


def test_an_address_with_a_password_is_refused() -> None:
    assert "must not hold a user or a password" in milvus_problem(uri="https://root:Milvus@h:19530")


@pytest.mark.parametrize("collection", ["", "1a", "a-b", "a b", "ä" * 300, "x" * 256])
def test_a_name_that_milvus_does_not_accept_is_refused(collection: str) -> None:
    assert "collection" in milvus_problem(collection=collection)


def milvus_job(job: Any, **parts: Any) -> dict[str, Any]:
    sink = {"type": "milvus", "uri": "a.db", "collection": "notes"}
    return job(sink=sink, state_uri="state/", task="embed", **parts)


def test_milvus_takes_the_vectors_of_an_embedding_job(job) -> None:
    assert isinstance(JobSpec.parse(milvus_job(job)).sink, MilvusSink)


def test_milvus_takes_nothing_but_vectors(job) -> None:
    (problem,) = JobSpec.problems({**milvus_job(job), "task": "generate"})
    assert "`task`: must be 'embed' with a sink of type 'milvus', which stores vectors" in str(problem)


@pytest.mark.parametrize("column", ["vector", "llmbeam_id", "a b", "1a", "größe", ""])
def test_a_key_column_that_cannot_be_a_field_is_refused(job, column: str) -> None:
    (problem,) = JobSpec.problems(milvus_job(job, source={"uri": "in/*.csv", "key": ["id", column]}))
    assert f"`source.key`: has ['{column}'], which cannot be fields of a sink of type 'milvus'" in str(problem)
