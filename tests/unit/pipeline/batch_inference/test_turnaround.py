from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.batch_inference import turnaround
from airflow_provider_llmbeam.pipeline.batch_inference.turnaround import (
    HALF_LIFE_SECONDS,
    MAX_BYTES,
    MAX_OBSERVATIONS,
    UNFINISHED_SECONDS,
    Turnaround,
    TurnaroundHistory,
    TurnaroundRecord,
)

NOW = 1_800_000_000.0
HOUR_OF_DAY = int(NOW // 3600) % 24


def record(**changes):
    usual = {
        "model": "m",
        "location": "global",
        "hour": HOUR_OF_DAY,
        "rows": 100,
        "queue_seconds": 100.0,
        "run_seconds": 500.0,
        "outcome": "answered",
        "ended_at": NOW,
    }
    return TurnaroundRecord(**usual | changes)


def history(*records):
    found = TurnaroundHistory()
    for each in records:
        found = found.add(each)
    return found


def of(found, rows=100):
    return found.turnaround("m", "global", rows, NOW)


def test_without_observations_the_providers_statements_count():
    assert of(history()).quantile(0.5) == 1_200
    assert of(history()).quantile(0.9) == 86_400
    assert of(history()).quantile(1.0) == 172_800


def test_many_observations_outweigh_the_prior():
    found = of(history(*[record()] * 100))
    assert found.quantile(0.5) == found.quantile(0.9) == 600


def test_other_models_and_locations_do_not_count():
    assert of(history(*[record(model="x")] * 50, *[record(location="x")] * 50)) == Turnaround()


def test_larger_files_run_longer_and_queue_as_long():
    found = history(*[record()] * 100)
    assert of(found, rows=400).quantile(0.5) == 100 + 2 * 500
    assert of(found, rows=10**6).quantile(0.5) == 100 + 4 * 500


def test_an_unfinished_job_counts_as_a_day():
    assert of(history(*[record(outcome="unfinished")] * 100)).quantile(0.5) == UNFINISHED_SECONDS


def test_old_observations_and_those_of_another_hour_count_less():
    far = record(hour=(HOUR_OF_DAY + 12) % 24)
    old = record(ended_at=NOW - HALF_LIFE_SECONDS)
    weights = [weight for seconds, weight in of(history(record(), far, old)).points if seconds == 600]
    assert sorted(weights) == [0.5, 0.5, 1.0]


def test_the_chance_of_an_end_grows_with_the_time():
    assert [Turnaround().chance(seconds) for seconds in (1, 3_600, 10**6)] == [0, 0.75, 1]


def test_the_oldest_observations_of_a_model_are_dropped():
    other = record(model="x")
    found = history(other, *(record(rows=rows) for rows in range(1, MAX_OBSERVATIONS + 11)))
    assert found.records[0] == other
    assert [each.rows for each in found.records[1:]] == list(range(11, MAX_OBSERVATIONS + 11))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"records": 1}',
        b" " * (MAX_BYTES + 1),
        b'{"records": [{"model": "m"}]}',
        b"[" * 10**5,
    ],
)
def test_an_invalid_file_is_an_empty_history(content):
    assert TurnaroundHistory.decode(content) == TurnaroundHistory()


@pytest.mark.parametrize(
    "fault",
    [{"hour": 24}, {"rows": 0}, {"queue_seconds": -1}, {"run_seconds": 1e9}, {"ended_at": -1}, {"more": 1}],
)
def test_a_record_out_of_bounds_is_refused(fault):
    content = json.dumps({"records": [record().model_dump() | fault]}).encode()
    assert TurnaroundHistory.decode(content) == TurnaroundHistory()


@pytest.mark.fuzz
@given(st.binary(max_size=500))
def test_no_content_raises(content):
    TurnaroundHistory.decode(content)


@given(st.lists(st.builds(record, rows=st.integers(1, 1000), model=st.sampled_from("mn")), max_size=20))
def test_the_history_survives_its_way_through_json(records):
    found = history(*records)
    assert TurnaroundHistory.decode(found.encode()) == found


def test_the_file_stays_below_the_size_that_is_read(monkeypatch):
    monkeypatch.setattr(turnaround, "MAX_RECORDS", 3)
    assert len(history(*(record(model=f"m{number}") for number in range(5))).records) == 3
    # 10,000 records of 300 characters in both names would not fit; those of usual names are below 200 bytes.
    assert len(history(record(model="gemini-3.1-flash-lite")).encode()) < MAX_BYTES / 10_000


def test_a_file_with_too_many_observations_of_a_model_is_read_without_the_oldest():
    records = tuple(record(rows=rows) for rows in range(1, MAX_OBSERVATIONS + 3))
    found = TurnaroundHistory.decode(TurnaroundHistory(records).encode())
    assert found.records == records[2:]
