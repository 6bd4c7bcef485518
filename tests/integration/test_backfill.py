"""`dags/backfill.py` on a real scheduler: thirty days, twice."""

from __future__ import annotations

import json
import time
from datetime import date, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from local_airflow import local_airflow

from airflow_provider_llmbeam.sandbox import Sandbox

ROOT = Path(__file__).resolve().parents[2]
DAYS = [date(2026, 9, 1) + timedelta(days=number) for number in range(30)]
PER_DAY = 4


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as running:
        yield running


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    (directory / "reviews").mkdir()
    for day in DAYS:
        reviews = [{"review_id": f"{day}-{number}", "text": f"{day} {number}"} for number in range(PER_DAY)]
        path = directory / "reviews" / f"{day}.jsonl"
        path.write_text("".join(json.dumps(review) + "\n" for review in reviews))
    return directory


@pytest.fixture(scope="module")
def airflow(tmp_path_factory, sandbox, data, metadata_database):
    connection = {"conn_type": "llmbeam", "host": sandbox.gemini_url, "password": "k"}
    environment = {
        "LLMBEAM_DATA": str(data),
        "AIRFLOW_CONN_LLMBEAM_DEFAULT": json.dumps(connection),
        **metadata_database,
    }
    with local_airflow(tmp_path_factory.mktemp("airflow"), ROOT / "dags", environment) as running:
        yield running


def backfill(airflow) -> dict[str, str]:
    """Runs the command of the Dag's own documentation; returns the runs of all days and their states."""
    airflow.command(
        "backfill", "create", "--dag-id=backfill", f"--from-date={DAYS[0]}", f"--to-date={DAYS[-1]}",
        "--max-active-runs=4", "--reprocess-behavior=completed",
    )  # fmt: skip
    deadline = time.monotonic() + 280
    while airflow.is_backfilling("backfill"):
        assert time.monotonic() < deadline, airflow.runs("backfill")
        time.sleep(1)
    return airflow.runs("backfill")


def answers(rows: list[dict]) -> dict[str, str]:
    return {row["review_id"]: row["answer"] for row in rows}


@pytest.mark.timeout(600)
def test_thirty_days_are_thirty_partitions_and_a_second_backfill_sends_nothing(airflow, sandbox, data):
    first = backfill(airflow)
    assert set(first.values()) == {"success"}
    days = sorted(path.name for path in (data / "moods").iterdir())
    assert days == [f"day={day}" for day in DAYS]
    tables = {
        day: pq.read_table(data / "moods" / day / "answers-00000-of-00001.parquet").to_pylist() for day in days
    }
    assert {len(rows) for rows in tables.values()} == {PER_DAY}
    assert len(sandbox.requests) == len(DAYS) * PER_DAY

    again = backfill(airflow)
    assert again == first, "the same runs"
    assert len(sandbox.requests) == len(DAYS) * PER_DAY
    for day, rows in tables.items():
        repeated = pq.read_table(data / "moods" / day / "answers-00000-of-00001.parquet").to_pylist()
        assert {row["review_id"]: row["answer"] for row in repeated} == {
            row["review_id"]: row["answer"] for row in rows
        }
        assert {row["origin"] for row in repeated} == {"resumed"}
    shares = [airflow.xcom("backfill", run_id, "judge")["requests"]["quota_ratio"] for run_id in again]
    assert set(shares) == {None}, "nothing was sent"
