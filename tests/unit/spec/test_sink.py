from __future__ import annotations

import pytest

from airflow_provider_llmbeam.spec import FilesSink


@pytest.mark.parametrize("uri", ["out", "out/", "  out/  "])
def test_a_directory_ends_in_a_slash(uri: str) -> None:
    assert FilesSink(uri=uri).uri == "out/"


@pytest.mark.parametrize("uri", ["out/*", "out-?/", "out[1]/"])
def test_a_glob_is_refused(uri: str) -> None:
    (problem,) = FilesSink.problems({"uri": uri})
    assert str(problem) == f"`uri`: must be one directory, not a glob; got {uri!r}."


@pytest.mark.parametrize("uri", ["", "   "])
def test_no_directory_is_refused_and_never_becomes_the_root(uri: str) -> None:
    (problem,) = FilesSink.problems({"uri": uri})
    assert problem.field == "uri"


@pytest.mark.parametrize("shards", [0, 1001])
def test_an_odd_number_of_shards_is_refused(shards: int) -> None:
    (problem,) = FilesSink.problems({"uri": "out/", "shards": shards})
    assert problem.field == "shards"
    assert problem.got == shards


def test_an_unknown_format_is_refused() -> None:
    (problem,) = FilesSink.problems({"uri": "out/", "format": "csv"})
    assert problem.field == "format"
    assert "'jsonl' or 'parquet'" in problem.want
