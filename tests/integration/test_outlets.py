"""Asset events and lineage of a job on every path that writes answers, in Dags that run in this process."""

from __future__ import annotations

import json

import pytest
from airflow.models.asset import AssetEvent
from airflow.sdk import DAG, Asset
from airflow.utils.session import create_session
from llmbeam_sandbox import DataflowSettings, Sandbox
from llmbeam_sandbox.batch_inference.settings import BatchSettings
from sqlalchemy import select

from airflow_provider_llmbeam.operators import run_inference
from airflow_provider_llmbeam.operators.estimate import EstimateInferenceOperator
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

pytestmark = pytest.mark.slow
ROWS = 60
ON_DATAFLOW = {"type": "dataflow", "location": "europe-west1", "max_workers": 1}
ANSWERS = Asset("gs://rows/answers")


@pytest.fixture
def sandbox():
    with Sandbox(buckets=("rows",), dataflow=DataflowSettings(start_seconds=0.1)) as running:
        yield running


@pytest.fixture
def run(run_dag, google, quick_polls, monkeypatch):
    """Runs one task; returns its state, the extra of its asset event, and its lineage."""
    from google.cloud import storage

    text = "".join(json.dumps({"id": number, "text": f"planted row {number}"}) + "\n" for number in range(ROWS))
    storage.Client().bucket("rows").blob("in/rows.jsonl").upload_from_string(text)
    storage.Client().bucket("rows").blob("in/empty.jsonl").upload_from_string("")
    defer = RunInferenceOperator._defer_batch
    monkeypatch.setattr(run_inference, "MIN_DEFERRED_SECONDS", 0.1)
    monkeypatch.setattr(
        RunInferenceOperator, "_defer_batch", lambda self, seconds, since: defer(self, seconds / 100, since)
    )

    def start(name, operator=RunInferenceOperator, **changes):
        found = {}

        def lineage(context):
            task, ti = context["task"], context["ti"]
            found["complete"] = task.get_openlineage_facets_on_complete(ti)
            found["failure"] = task.get_openlineage_facets_on_failure(ti)

        arguments = {
            "source": {"uri": "gs://rows/in/rows.jsonl", "key": ["id"]},
            "prompt": "Say it: {{ row.text }}",
            "model": {"type": "gemini", "project": google.project},
            "sink": {"uri": f"gs://rows/{name}"},
        }
        callbacks = dict.fromkeys(("on_success_callback", "on_failure_callback", "on_skipped_callback"), lineage)
        with DAG(name, schedule=None) as dag:
            operator(task_id="answer", outlets=[ANSWERS], **callbacks, **arguments | changes)
        dag_run, states = run_dag(dag)
        with create_session() as session:
            events = session.scalars(select(AssetEvent).where(AssetEvent.source_run_id == dag_run.run_id)).all()
        return states["answer"], [event.extra for event in events], found

    return start


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("on_the_worker", {}),
        pytest.param("on_dataflow", {"runner": ON_DATAFLOW, "deferrable": False}, marks=pytest.mark.full),
        ("deferred", {"runner": ON_DATAFLOW}),
        pytest.param("by_batch", {"inference": {"mode": "batch"}}, marks=pytest.mark.full),
    ],
)
def test_each_path_tells_the_downstream_dag_and_the_lineage_the_same_numbers(run, sandbox, name, changes):
    sandbox.batches.settings = BatchSettings(run_seconds=2.0)
    state, (extra,), found = run(name, **changes)
    assert state == "success"
    assert extra["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    assert extra["report_uri"] == f"gs://rows/{name}/report.json"
    lineage = found["complete"]
    (source,), (answers, _) = lineage.inputs, lineage.outputs
    assert (source.namespace, source.name) == ("gs://rows", "in/rows.jsonl")
    assert (answers.namespace, answers.name) == ("gs://rows", name)
    assert answers.outputFacets["outputStatistics"].rowCount == ROWS
    facet = lineage.run_facets["llmbeam_inference"]
    assert facet.runner == ("dataflow" if "runner" in changes else "direct")
    assert (facet.inputTokens, facet.costUsd) == (extra["tokens"]["input"], extra["cost_usd"])
    assert facet.origins == {origin: count for origin, count in extra["origins"].items() if count}
    assert "planted row" not in str(lineage) + json.dumps(extra)
    assert "latency_counts" not in extra


def test_a_failed_task_has_no_asset_event_and_the_lineage_that_is_known(run, sandbox):
    state, events, found = run("failed", source={"uri": "gs://rows/in/none-*.jsonl", "key": ["id"]})
    assert (state, events) == ("failed", [])
    lineage = found["failure"]
    assert [each.name for each in lineage.inputs] == ["in"]
    assert lineage.outputs[0].name == "failed"
    assert lineage.run_facets["llmbeam_inference"].rowsRead is None


def test_a_task_that_fails_before_it_knows_its_job_reports_what_its_arguments_say(run):
    state, events, found = run("early", llmbeam_conn_id="not_there")
    assert (state, events) == ("failed", [])
    assert found["failure"].outputs[0].name == "early"


def test_a_skipped_task_has_no_asset_event_and_no_outputs(run):
    state, events, found = run(
        "skipped", source={"uri": "gs://rows/in/empty.jsonl", "key": ["id"], "on_empty": "skip"}
    )
    assert (state, events) == ("skipped", [])
    assert found["complete"].outputs == []
    assert found["complete"].run_facets["llmbeam_inference"].skippedBecause


def test_an_estimate_is_the_extra_of_its_asset_and_has_no_outputs(run):
    state, (extra,), found = run("estimate", EstimateInferenceOperator, sample_size=4)
    assert (state, extra["rows"]) == ("success", ROWS)
    assert found["complete"].outputs == []
    assert found["complete"].run_facets["llmbeam_inference"].rowsRead is None
