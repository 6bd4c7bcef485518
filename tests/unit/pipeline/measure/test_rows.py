"""The rows of a source that are selected for a preview, a comparison or a review."""

from __future__ import annotations

import re

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.measure.rows import sample_rows

NOTHING_SENT = "Nothing was sent or billed."


def test_an_empty_source_has_no_rows_and_is_named(job, tmp_path):
    path = tmp_path / "empty.jsonl"
    path.touch()
    with pytest.raises(JobSpecError, match=re.escape(f"`source.uri` '{path}' has no rows. {NOTHING_SENT}")):
        sample_rows(job(source={"uri": str(path), "key": ["id"]}), 3)


def test_where_no_row_has_the_key_column_its_name_and_the_columns_of_a_row_are_shown(job, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{\n{"id": 1, "text": "a"}\n{"id": 2}\n')
    with pytest.raises(JobSpecError) as caught:
        sample_rows(job(source={"uri": str(path), "key": ["idd"]}), 3)
    assert str(caught.value) == (
        "`source`: none of its rows can be sent: no value in key column 'idd'; the row has ['id', 'text']. "
        f"{NOTHING_SENT}"
    )


def test_where_no_line_can_be_read_the_reason_of_the_first_one_is_shown(job, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("one\ntwo\n")
    with pytest.raises(JobSpecError, match="none of its rows can be sent: not JSON: Expecting value"):
        sample_rows(job(source={"uri": str(path), "key": ["id"]}), 3)


def test_rows_with_a_key_are_selected_beside_others(job, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('one\n{"text": "a"}\n{"id": 2}\n')
    found = sample_rows(job(source={"uri": str(path), "key": ["id"]}), 3)
    assert (found.rows, found.read) == ({'{"id": 2}': {"id": 2}}, 1)


def test_each_seed_selects_other_rows_and_always_the_same(job):
    spec = job(source={"type": "rows", "rows": [{"id": number} for number in range(200)], "key": "id"})
    found = [tuple(sample_rows(spec, 5, seed=seed).rows) for seed in range(-3, 4)]
    assert len({*found}) == 7
    assert found[3] == tuple(sample_rows(spec, 5).rows)
