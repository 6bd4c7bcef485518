"""`limits.budget` over the runs of a Dag, of its backfills and of a month, on a real scheduler."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from waiting import scaled, until

from airflow_provider_llmbeam.engine.pacing.ledger import Ledger
from airflow_provider_llmbeam.spec.protocol.counts import NANO
from tests.integration.cases import STEP_SECONDS

pytestmark = [
    pytest.mark.full,
    pytest.mark.promise(4),
    pytest.mark.xdist_group("airflow-jobs"),
    pytest.mark.timeout(scaled(600)),
]
DAG, USD, ROWS = "shared_budget", 400, 10
OVER = ("month", "dag", "backfill")


@pytest.fixture(scope="module")
def data(shared_data):
    folder = shared_data / "shared_budget"
    (folder / "in").mkdir(parents=True)
    rows = [{"id": number, "text": f"row number {number:02}"} for number in range(ROWS)]
    (folder / "in" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def ledger(data, over: str) -> Ledger:
    (file,) = (data / f"state-{over}" / "budgets").glob("*.json")
    return Ledger.read(file.read_bytes(), USD, over)


def spent(data, over: str) -> int:
    """Returns what the journals of all runs say, at one dollar per token."""
    segments = (data / f"state-{over}").glob("*/journal@*/*.jsonl")
    entries = [json.loads(line) for segment in segments for line in segment.read_text().splitlines()]
    return sum(entry["input_tokens"] + entry["output_tokens"] for entry in entries)


def test_runs_of_a_month_of_a_dag_and_of_its_backfills_stop_at_their_budget(cloud, model_connection, data):
    airflow = cloud.airflow
    airflow.command(
        "backfill", "create", f"--dag-id={DAG}", "--from-date=2026-09-01", "--to-date=2026-09-03",
        "--max-active-runs=2",
    )  # fmt: skip
    until(lambda: not airflow.is_backfilling(DAG), lambda: str(airflow.runs(DAG)), pause_seconds=1)
    days = airflow.runs(DAG)
    assert "failed" in days.values(), "three days cost more than the budget"
    for over in OVER:
        states = [airflow.task(DAG, run_id, over)["state"] for run_id in days]
        assert "success" in states, over
        assert "failed" in states, over
        assert 0 < spent(data, over) <= USD
        (file,) = (data / f"state-{over}" / "budgets").glob("*.json")
        assert file.name.startswith(f"{over}-{DAG.replace('_', '-')}-")
        assert file.stem.endswith(f"{datetime.now(UTC):%Y-%m}") == (over == "month")

    before = {over: spent(data, over) for over in OVER}
    manual = airflow.trigger(DAG)
    airflow.wait(DAG, manual, STEP_SECONDS)
    states = {over: airflow.task(DAG, manual, over)["state"] for over in OVER}
    assert states == {"month": "failed", "dag": "failed", "backfill": "success"}, "which is no backfill's run"
    assert spent(data, "backfill") > before["backfill"]
    for over in ("month", "dag"):
        assert spent(data, over) <= USD
        assert ledger(data, over).left_nano_usd < USD * NANO
