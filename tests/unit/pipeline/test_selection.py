"""Which rows of its source a job reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.elements import failed_row
from airflow_provider_llmbeam.pipeline.measure.portions import read_source
from airflow_provider_llmbeam.pipeline.prompt_of_row import RowPrompts, selection
from airflow_provider_llmbeam.spec import FilesSource, RowsSource

keys = st.none() | st.integers() | st.text(max_size=5)


def source(**changes: Any) -> FilesSource:
    return FilesSource.parse({"uri": "a.jsonl", "key": ["id"], **changes})


def test_a_job_without_a_selection_reads_all_rows_without_a_step_for_it():
    assert selection(source()) is None


@given(st.floats(0.001, 0.999), keys)
def test_each_row_belongs_to_exactly_one_of_two_shares(border: float, key: Any):
    shares = [selection(source(share=share)) for share in ((0, border), (border, 1))]
    assert sum(is_selected({"id": key}) for is_selected in shares) == 1


def test_a_share_has_about_its_part_of_the_rows_and_the_same_ones_in_every_run():
    few, more = selection(source(share=[0, 0.05])), selection(source(share=[0, 0.1]))
    found = [number for number in range(10_000) if few({"id": number})]
    assert 400 < len(found) < 600
    assert found[:3] == [22, 27, 69], "a different hash would send other rows to the other model"
    assert all(more({"id": number}) for number in found)


def test_rows_without_a_key_are_read_by_one_of_the_jobs_which_reports_them():
    invalid = failed_row({"llmbeam_raw": "{"}, "unreadable_row", "no JSON")
    assert selection(source(share=[0, 0.5]))(invalid)
    assert not selection(source(share=[0.5, 1]))(invalid)


def test_only_rows_that_failed_in_one_of_these_ways_are_read():
    is_selected = selection(source(failed_kinds=["truncated", "invalid_output"]))
    kinds = ["truncated", "blocked", "invalid_output"]
    assert [is_selected({"id": 1, "llmbeam_error": {"kind": kind}}) for kind in kinds] == [True, False, True]
    assert not is_selected({"id": 1})
    for foreign in ("truncated", {"kind": ["truncated"]}, {"kind": {}}, {"kind": None}, {}, None):
        assert not is_selected({"id": 1, "llmbeam_error": foreign})
    assert not is_selected({"llmbeam_raw": "{", "llmbeam_error": {"kind": "unreadable_row"}})


def test_an_estimate_reads_the_rows_of_the_job(job):
    rows = [{"id": number} for number in range(100)]
    part = RowsSource.parse({"type": "rows", "rows": rows, "key": "id", "share": [0, 0.3]})
    spec = job(source=part.model_dump())
    (portion,) = read_source(spec, RowPrompts(spec), "").portions()
    assert portion.rows == list(filter(selection(part), rows)) != rows


@pytest.mark.parametrize("share", [[0.5, 0.5], [0.6, 0.5], [-0.1, 1], [0, 1.1], [0.5]])
def test_a_share_that_is_no_range_is_refused(share):
    with pytest.raises(JobSpecError, match="share"):
        source(share=share)
