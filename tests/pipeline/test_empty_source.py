"""A source without rows, or with too few: what is there stays, and nothing is sent."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError, SourceEmptyError
from airflow_provider_llmbeam.pipeline.__main__ import main
from airflow_provider_llmbeam.pipeline.command import EXIT_BAD_SPEC, EXIT_SKIPPED
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.spec import JobSpec
from tests.pipeline.conftest import read_lines

ROWS = [{"id": number, "text": f"row {number}"} for number in range(3)]


def files_of(job) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in job.out.iterdir() if path.is_file()}


def spec_of(job, **source) -> JobSpec:
    return JobSpec.parse(job.spec | {"source": job.spec["source"] | source})


@pytest.fixture
def yesterdays(echo_job):
    echo_job.run(ROWS)
    return echo_job


@pytest.fixture(params=["zero bytes", "blank lines", "csv header", "parquet", "rows", "gzip"])
def empty(request, yesterdays):
    """Sources without rows."""
    directory = yesterdays.directory
    match request.param:
        case "zero bytes":
            path = directory / "e.jsonl"
            path.touch()
        case "blank lines":
            path = directory / "e.jsonl"
            path.write_text("\n\n")
        case "csv header":
            path = directory / "e.csv"
            path.write_text("id,text\n")
        case "parquet":
            path = directory / "e.parquet"
            pd.DataFrame({"id": pd.Series(dtype=int), "text": pd.Series(dtype=str)}).to_parquet(path)
        case "gzip":
            path = directory / "e.jsonl.gz"
            pd.DataFrame().to_csv(path, index=False, header=False)
        case "rows":
            yesterdays.spec["source"] = {"type": "rows", "rows": [], "key": ["id"]}
            return yesterdays
    yesterdays.spec["source"] = {"uri": str(path), "key": ["id"]}
    return yesterdays


def test_an_empty_source_fails_and_the_output_stays(empty):
    before = files_of(empty)
    with pytest.raises(SourceEmptyError) as failed:
        run(spec_of(empty))
    source = empty.spec["source"]
    name = f"`source.uri` {source['uri']!r}" if "uri" in source else "`source.rows`"
    assert str(failed.value) == (
        f"{name} has no rows, so the output was left as it is. If that is no mistake, set `source.on_empty` to "
        "'skip', or to 'write' to publish no answers. Nothing was sent or billed."
    )
    assert files_of(empty) == before


def test_an_empty_source_is_skipped_on_request_and_the_output_stays(yesterdays):
    before = files_of(yesterdays)
    yesterdays.write([])
    manifest = run(spec_of(yesterdays, on_empty="skip"))
    uri = yesterdays.spec["source"]["uri"]
    assert manifest["skipped_because"] == f"`source.uri` {uri!r} has no rows, so the output was left as it is."
    assert manifest["rows"] == {"read": 0, "answered": 0, "dead_letter": 0, "skipped": 0}
    assert manifest["answers_uris"] == []
    assert json.loads(Path(manifest["report_uri"]).read_text())["skipped_because"]
    assert files_of(yesterdays) == before


def test_the_next_run_with_rows_is_not_skipped(yesterdays):
    yesterdays.write([])
    run(spec_of(yesterdays, on_empty="skip"))
    yesterdays.write([{"id": 7, "text": "new"}])
    manifest = run(spec_of(yesterdays, on_empty="skip"))
    assert manifest["skipped_because"] is None
    assert manifest["rows"]["answered"] == 1


def test_no_answers_are_published_on_request(yesterdays):
    yesterdays.write([])
    assert run(spec_of(yesterdays, on_empty="write"))["rows"]["answered"] == 0
    assert read_lines(yesterdays.out / "answers-00000-of-00001.jsonl") == []


def test_the_command_line_says_why_a_job_was_skipped_and_ends_with_99(yesterdays, capfd):
    yesterdays.write([])
    path = yesterdays.directory / "spec.json"
    path.write_text(spec_of(yesterdays, on_empty="skip").model_dump_json())
    assert main(["--spec", str(path)]) == EXIT_SKIPPED == 99
    printed = capfd.readouterr()
    assert json.loads(printed.out)["skipped_because"].endswith("has no rows, so the output was left as it is.")
    path.write_text(spec_of(yesterdays).model_dump_json())
    assert main(["--spec", str(path)]) == EXIT_BAD_SPEC


def test_fewer_rows_than_the_smallest_number_fail_before_anything_is_sent(job, sandbox):
    job.run(ROWS)
    before, sent = files_of(job), sandbox.stats()["billed_answers"]
    job.write([{"id": 1, "text": "other"}, "{"])
    with pytest.raises(SourceEmptyError, match=r"has 2 rows, and `source\.min_rows` is 3, so the output was left"):
        run(spec_of(job, min_rows=3))
    assert sandbox.stats()["billed_answers"] == sent
    assert files_of(job) == before
    assert run(spec_of(job, min_rows=2))["rows"]["read"] == 2


def test_rows_whose_answers_are_known_are_counted_too(job):
    job.run(ROWS)
    with pytest.raises(SourceEmptyError, match="has 3 rows"):
        run(spec_of(job, min_rows=4))


def test_a_smallest_number_and_no_rows_at_all_contradict_each_other(echo_job):
    with pytest.raises(JobSpecError, match=r"`min_rows` is 1, and `on_empty` 'write' accepts a source"):
        spec_of(echo_job, min_rows=1, on_empty="write")


def test_a_source_that_matches_no_file_is_never_skipped(yesterdays):
    with pytest.raises(JobSpecError, match="matches no file"):
        run(spec_of(yesterdays, uri=str(yesterdays.directory / "typo-*.jsonl"), on_empty="skip"))
