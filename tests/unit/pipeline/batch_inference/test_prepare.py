from __future__ import annotations

import json
import math

import pytest
from apache_beam import Pipeline
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.batch_inference.prepare import (
    FileLimits,
    files_needed,
    prepare,
    read_prepared,
)
from airflow_provider_llmbeam.spec import JobSpec

ROWS = 200


def prepared(directory, limits, rows, **model):
    directory.mkdir()
    (directory / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": f"{directory}/in.jsonl", "key": ["id"]},
            "prompt": {"template": "Say it: {{ row.text }}"},
            "model": {"type": "gemini", **model},
            "sink": {"uri": f"{directory}/out/"},
        }
    )
    with Pipeline(runner=FnApiRunner()) as pipeline:
        prepare(pipeline, spec, limits)
    return read_prepared(spec)


def lines(directory, file):
    path = directory / f"out/.llmbeam/job/batch/requests-{file.digest}.jsonl"
    return path.read_bytes().splitlines(keepends=True)


ROWS_OF_TEXT = [{"id": number, "text": f"text {number}"} for number in range(ROWS)]


@pytest.mark.parametrize(
    "limits",
    [
        FileLimits(max_rows=30, max_bytes=10**9),
        FileLimits(max_rows=10**6, max_bytes=6000),
    ],
)
def test_every_prompt_is_in_one_file_and_no_file_exceeds_its_limits(tmp_path, limits):
    files = prepared(tmp_path / "a", limits, ROWS_OF_TEXT)
    assert len(files) > 1
    keys = [json.loads(line)["key"] for file in files for line in lines(tmp_path / "a", file)]
    assert len(keys) == len(set(keys)) == ROWS == sum(file.rows for file in files)
    for file in files:
        content = lines(tmp_path / "a", file)
        assert (len(content), sum(map(len, content))) == (file.rows, file.size)
        assert file.rows <= limits.max_rows
        assert file.size <= limits.max_bytes


def test_the_same_prompts_make_the_same_files_in_any_order_of_rows(tmp_path):
    limits = FileLimits(max_rows=30, max_bytes=10**9)
    forwards = prepared(tmp_path / "a", limits, ROWS_OF_TEXT)
    backwards = prepared(tmp_path / "b", limits, ROWS_OF_TEXT[::-1])
    assert [file.digest for file in forwards] == [file.digest for file in backwards]
    others = prepared(tmp_path / "c", limits, [{"id": 0, "text": "other"}, *ROWS_OF_TEXT[1:]])
    assert {file.digest for file in others} != {file.digest for file in forwards}


def test_equal_prompts_are_sent_once(tmp_path):
    rows = [{"id": number, "text": "same"} for number in range(ROWS)]
    (file,) = prepared(tmp_path / "a", FileLimits(max_rows=1000, max_bytes=10**9), rows)
    assert file.rows == 1


def test_without_a_prompt_there_is_no_file(tmp_path):
    rows = [{"id": number} for number in range(5)]
    assert prepared(tmp_path / "a", FileLimits(max_rows=1000, max_bytes=10**9), rows) == []


@given(rows=st.integers(1, 10**7), size=st.integers(1, 10**11))
def test_the_files_have_room_for_all_requests(rows, size):
    count = files_needed(rows, size, FileLimits(max_rows=50_000, max_bytes=2 * 10**8))
    assert count >= max(math.ceil(rows / 50_000), math.ceil(size / (2 * 10**8)))
