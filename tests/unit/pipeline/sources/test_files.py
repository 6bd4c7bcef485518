"""Rows of tables."""

from __future__ import annotations

import pyarrow as pa

from airflow_provider_llmbeam.pipeline.elements import FailedRow
from airflow_provider_llmbeam.pipeline.sources.files import parse_table


def test_a_time_in_a_zone_that_does_not_exist_fails_its_row_alone():
    times = pa.array([1, None], pa.timestamp("us", "Mars/Base"))
    failed, read = parse_table(pa.table({"id": [1, 2], "at": times}))
    assert isinstance(failed, FailedRow)
    assert failed.failure.kind == "unreadable_row"
    assert failed.failure.message.startswith("column 'at' cannot be read: ")
    assert read == {"id": 2, "at": None}
