"""OpenLineage events of a real Airflow, through the file transport, and a Dag that an asset event starts."""

from __future__ import annotations

import hashlib
import json

import pytest
from waiting import scaled, until

from tests.integration.cases import STEP_SECONDS

pytestmark = [pytest.mark.xdist_group("airflow"), pytest.mark.timeout(scaled(600))]
ROWS = 20
TEMPLATE = "What is the mood of {{ row.text }}?"


@pytest.fixture(scope="module")
def finished(cloud, model_connection):
    """The run of the Dag whose events are read: its last task fails."""
    cloud.upload("lineage/in.jsonl", ({"id": number, "text": f"planted row {number}"} for number in range(ROWS)))
    run_id = cloud.airflow.trigger("moods")
    assert cloud.airflow.wait("moods", run_id, 2 * STEP_SECONDS) == "failed"
    states = {name: task["state"] for name, task in cloud.airflow.tasks("moods", run_id).items()}
    log = cloud.airflow.log_lines("moods", run_id, "on_dataflow")
    assert states == {"on_worker": "success", "on_dataflow": "success", "fails": "failed"}, log
    assert any("Pausing task as DEFERRED" in line for line in log)
    return run_id


@pytest.fixture(scope="module")
def events(finished, openlineage_events):
    """The last event of each task, and all events as text."""
    text = openlineage_events.read_text()
    found = {}
    for event in map(json.loads, text.splitlines()):
        found[event["job"]["name"], event["eventType"]] = event
    return found, text


def test_a_task_on_the_worker_emits_what_it_read_and_wrote(cloud, finished, events, shared_data):
    event, manifest = events[0]["moods.on_worker", "COMPLETE"], cloud.airflow.xcom("moods", finished, "on_worker")
    (source,), (answers, dead_letter) = event["inputs"], event["outputs"]
    assert (source["namespace"], source["name"]) == ("gs://rows", "lineage/in.jsonl")
    assert source["inputFacets"]["inputStatistics"]["rowCount"] == ROWS
    assert (answers["namespace"], answers["name"]) == ("file", f"{shared_data}/moods")
    assert answers["outputFacets"]["outputStatistics"]["rowCount"] == ROWS
    assert [field["name"] for field in answers["facets"]["schema"]["fields"]][:2] == ["id", "answer"]
    assert dead_letter["outputFacets"]["outputStatistics"]["rowCount"] == 0
    asked, used = (event["run"]["facets"][name] for name in ("llmbeam_inference", "llmbeam_usage"))
    assert asked["promptSha256"] == hashlib.sha256(TEMPLATE.encode()).hexdigest()
    assert asked["modelName"] == "gemini-2.5-flash"
    assert (used["inputTokens"], used["outputTokens"]) == (
        manifest["tokens"]["input"],
        manifest["tokens"]["output"],
    )
    assert used["costUsd"] == manifest["cost_usd"] > 0


def test_a_task_that_was_deferred_emits_the_same(cloud, finished, events):
    event, manifest = (
        events[0]["moods.on_dataflow", "COMPLETE"],
        cloud.airflow.xcom("moods", finished, "on_dataflow"),
    )
    assert [(each["namespace"], each["name"]) for each in event["outputs"]] == [
        ("gs://rows", "lineage/out"),
        ("gs://rows", "lineage/out/dead_letter-00000-of-00001.jsonl"),
    ]
    asked, used = (event["run"]["facets"][name] for name in ("llmbeam_inference", "llmbeam_usage"))
    assert (asked["runner"], asked["region"]) == ("dataflow", "europe-west1")
    assert used["rowsAnswered"] == manifest["rows"]["answered"] == ROWS
    assert used["origins"] == {"fresh": ROWS}


def test_a_failed_task_emits_what_is_known(events):
    event = events[0]["moods.fails", "FAIL"]
    assert [each["name"] for each in event["inputs"]] == ["lineage/none.jsonl"]
    assert event["outputs"][0]["name"] == "lineage/none"
    assert "llmbeam_inference" in event["run"]["facets"]
    assert "llmbeam_usage" not in event["run"]["facets"]


def test_no_event_has_a_row_or_a_key(events):
    assert "planted" not in events[1]
    assert "moods.on_worker" in events[1]


def test_only_the_dag_that_enables_lineage_emits_events(events):
    assert {name.partition(".")[0] for name, _ in events[0]} == {"moods"}


def test_the_dag_that_the_asset_starts_reads_the_manifest(cloud, finished):
    airflow = cloud.airflow
    (run_id,) = until(lambda: list(airflow.runs("after_moods")), "a run that the asset starts", STEP_SECONDS)
    assert airflow.wait("after_moods", run_id, STEP_SECONDS) == "success"
    extra = airflow.xcom("after_moods", run_id, "read")
    assert extra == airflow.xcom("moods", finished, "on_dataflow")
    assert extra["rows"]["answered"] == ROWS
