"""`dags/backfill.py` on a real scheduler: some days, twice."""

from __future__ import annotations

import json
from datetime import date, timedelta

import pyarrow.parquet as pq
import pytest
from waiting import scaled, until

pytestmark = [
    pytest.mark.full,
    pytest.mark.promise(2),
    pytest.mark.xdist_group("airflow-jobs"),
    pytest.mark.timeout(scaled(600)),
]
DAYS = [date(2026, 9, 1) + timedelta(days=number) for number in range(3)]
PER_DAY = 4
GEMINI = "gemini.generateContent"


@pytest.fixture(scope="module")
def data(shared_data):
    (shared_data / "reviews").mkdir()
    for day in DAYS:
        reviews = [{"review_id": f"{day}-{number}", "text": f"{day} {number}"} for number in range(PER_DAY)]
        path = shared_data / "reviews" / f"{day}.jsonl"
        path.write_text("".join(json.dumps(review) + "\n" for review in reviews))
    return shared_data


@pytest.fixture
def airflow(cloud, model_connection):
    return cloud.airflow


@pytest.fixture
def sandbox(cloud):
    return cloud.sandbox


def backfill(airflow) -> dict[str, str]:
    """Runs the command of the Dag's own documentation; returns the runs of all days and their states."""
    airflow.command(
        "backfill", "create", "--dag-id=backfill", f"--from-date={DAYS[0]}", f"--to-date={DAYS[-1]}",
        "--max-active-runs=4", "--reprocess-behavior=completed",
    )  # fmt: skip
    until(lambda: not airflow.is_backfilling("backfill"), lambda: str(airflow.runs("backfill")), pause_seconds=1)
    return airflow.runs("backfill")


def answers(rows: list[dict]) -> dict[str, str]:
    return {row["review_id"]: row["answer"] for row in rows}


def test_each_day_is_a_partition_and_a_second_backfill_sends_nothing(airflow, sandbox, data):
    first = backfill(airflow)
    assert set(first.values()) == {"success"}
    days = sorted(path.name for path in (data / "moods").iterdir())
    assert days == [f"day={day}" for day in DAYS]
    tables = {
        day: pq.read_table(data / "moods" / day / "answers-00000-of-00001.parquet").to_pylist() for day in days
    }
    assert {len(rows) for rows in tables.values()} == {PER_DAY}
    assert sandbox.stats()["methods"][GEMINI]["calls"] == len(DAYS) * PER_DAY

    again = backfill(airflow)
    assert again == first, "the same runs"
    assert sandbox.stats()["methods"][GEMINI]["calls"] == len(DAYS) * PER_DAY
    for day, rows in tables.items():
        repeated = pq.read_table(data / "moods" / day / "answers-00000-of-00001.parquet").to_pylist()
        assert answers(repeated) == answers(rows)
        assert {row["llmbeam_origin"] for row in repeated} == {"resumed"}
    shares = [airflow.xcom("backfill", run_id, "judge")["requests"]["quota_ratio"] for run_id in again]
    assert set(shares) == {None}, "nothing was sent"
