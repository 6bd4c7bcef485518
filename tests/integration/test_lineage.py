"""What a real Airflow emits of a job: OpenLineage events, an asset event that starts a Dag, metrics and spans."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing

import pytest
from waiting import scaled, until

from tests.integration.cases import STEP_SECONDS, Cloud
from tests.integration.conftest import CONNECTION_KEY, new_database
from tests.otlp import IS_BELOW_3_2, attributes, receiver

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(scaled(600))]
ROWS = 20
TEMPLATE = "What is the mood of {{ row.text }}?"
MODEL = {"gen_ai.provider.name": "gcp.gen_ai", "gen_ai.request.model": "gemini-3.5-flash-lite"}


@pytest.fixture(scope="module")
def collector():
    """The receiver of metrics and spans."""
    with receiver() as running:
        yield running


@pytest.fixture(scope="module")
def event_file(tmp_path_factory):
    """The file of the OpenLineage events."""
    return tmp_path_factory.mktemp("openlineage") / "events.jsonl"


@pytest.fixture(scope="module")
def cloud(shared_sandbox, start_airflow, postgres, collector, event_file):
    """An Airflow of this module: the shared one starts no Dag by its schedule, and so none by an asset either."""
    shared_sandbox.reset()
    variables = {
        "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "True",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
            {"type": "file", "log_file_path": str(event_file), "append": True}
        ),
        "AIRFLOW__OPENLINEAGE__SELECTIVE_ENABLE": "True",
        **collector.environment(),
    }
    with new_database(postgres) as database, start_airflow(database, "lineage.py", **variables) as airflow:
        dsn = database["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].replace("+psycopg", "")
        with closing(Cloud(shared_sandbox, airflow, dsn)) as cloud:
            yield cloud


@pytest.fixture(scope="module")
def finished(cloud, model_connection):
    """The run of the Dag whose last task fails."""
    cloud.upload("lineage/in.jsonl", ({"id": number, "text": f"planted row {number}"} for number in range(ROWS)))
    run_id = cloud.airflow.trigger("moods")
    assert cloud.airflow.wait("moods", run_id, 2 * STEP_SECONDS) == "failed"
    states = {name: task["state"] for name, task in cloud.airflow.tasks("moods", run_id).items()}
    log = cloud.airflow.log_lines("moods", run_id, "on_dataflow")
    assert states == {"on_worker": "success", "on_dataflow": "success", "fails": "failed"}, log
    assert any("Pausing task as DEFERRED" in line for line in log)
    return run_id


@pytest.fixture(scope="module")
def events(finished, event_file):
    """The last event of each task and type, and all events as text."""
    text = event_file.read_text()
    found = {(event["job"]["name"], event["eventType"]): event for event in map(json.loads, text.splitlines())}
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
    facet = event["run"]["facets"]["llmbeam_inference"]
    assert facet["promptSha256"] == hashlib.sha256(TEMPLATE.encode()).hexdigest()
    assert facet["modelName"] == "gemini-3.5-flash-lite"
    assert (facet["inputTokens"], facet["outputTokens"]) == (
        manifest["tokens"]["input"],
        manifest["tokens"]["output"],
    )
    assert facet["costUsd"] == manifest["cost_usd"] > 0


def test_a_task_that_was_deferred_emits_the_same(cloud, finished, events):
    event, manifest = (
        events[0]["moods.on_dataflow", "COMPLETE"],
        cloud.airflow.xcom("moods", finished, "on_dataflow"),
    )
    assert [(each["namespace"], each["name"]) for each in event["outputs"]] == [
        ("gs://rows", "lineage/out"),
        ("gs://rows", "lineage/out/dead_letter-00000-of-00001.jsonl"),
    ]
    facet = event["run"]["facets"]["llmbeam_inference"]
    assert (facet["runner"], facet["region"]) == ("dataflow", "europe-west1")
    assert facet["rowsAnswered"] == manifest["rows"]["answered"] == ROWS
    assert facet["origins"] == {"fresh": ROWS}


def test_a_failed_task_emits_what_is_known(events):
    event = events[0]["moods.fails", "FAIL"]
    assert [each["name"] for each in event["inputs"]] == ["lineage/none.jsonl"]
    assert event["outputs"][0]["name"] == "lineage/none"
    assert "rowsRead" not in event["run"]["facets"]["llmbeam_inference"]


def test_no_event_has_a_row_or_a_key(events):
    assert "planted" in CONNECTION_KEY
    assert "planted" not in events[1]


def test_only_the_dag_that_enables_lineage_emits_events(events):
    assert {name.partition(".")[0] for name, _ in events[0]} == {"moods"}


def test_the_dag_that_the_asset_starts_reads_the_manifest(cloud, finished):
    airflow = cloud.airflow
    (run_id,) = until(lambda: list(airflow.runs("after_moods")), "a run that the asset starts", STEP_SECONDS)
    assert airflow.wait("after_moods", run_id, STEP_SECONDS) == "success"
    extra = airflow.xcom("after_moods", run_id, "read")
    assert extra == airflow.xcom("moods", finished, "on_dataflow")
    assert extra["rows"]["answered"] == ROWS


def test_the_collector_has_the_metrics_of_each_task_and_of_the_triggerer(cloud, finished, collector):
    # Those of the triggerer come with its next export.
    until(lambda: collector.points("airflow.llmbeam.polls"), "the metrics of the triggerer", STEP_SECONDS)
    rows = {
        (found["airflow.task_id"], found["llmbeam.outcome"]): point.as_int
        for found, point in collector.points("airflow.llmbeam.rows")
    }
    assert rows == {("on_worker", "answered"): ROWS, ("on_dataflow", "answered"): ROWS}
    outcomes = {
        (found["airflow.task_id"], found["llmbeam.outcome"], found.get("error.type"))
        for found, _ in collector.points("airflow.llmbeam.jobs")
    }
    assert outcomes == {
        ("on_worker", "success", None),
        ("on_dataflow", "success", None),
        ("fails", "failed", "JobSpecError"),
    }
    durations = {
        found["airflow.task_id"]: (found, point)
        for found, point in collector.points("gen_ai.client.inference.duration")
    }
    for task in ("on_worker", "on_dataflow"):
        manifest = cloud.airflow.xcom("moods", finished, task)
        usage = {
            name: point.as_int
            for name in ("input", "output")
            for found, point in collector.points(f"gen_ai.client.inference.usage.{name}_tokens")
            if found["airflow.task_id"] == task
        }
        assert usage == {name: manifest["tokens"][name] for name in ("input", "output")}
        cost = [
            point.as_double
            for found, point in collector.points("llmbeam.cost")
            if found["airflow.task_id"] == task
        ]
        assert cost == [manifest["cost_usd"]]
        found, point = durations[task]
        assert point.count == ROWS
        assert found.items() >= MODEL.items()
    polls = {found["llmbeam.trigger"] for found, _ in collector.points("airflow.llmbeam.polls")}
    assert polls == {"JobTrigger"}


@pytest.mark.skipif(IS_BELOW_3_2, reason="Airflow sets the tracer provider since 3.2.")
def test_the_collector_has_a_span_of_each_job_below_that_of_its_task(cloud, finished, collector):
    def jobs():
        spans = {span.span_id: span.name for span in collector.spans}
        found = [span for span in collector.spans if span.name == "generate_content gemini-3.5-flash-lite"]
        return {attributes(span)["airflow.task_id"]: spans.get(span.parent_span_id) for span in found}

    expected = {"on_worker": "worker.on_worker", "on_dataflow": "worker.on_dataflow"}
    until(lambda: jobs() == expected, jobs, STEP_SECONDS)
    of_job = {
        attributes(span)["airflow.task_id"]: span.trace_id.hex()
        for span in collector.spans
        if "llmbeam.job.name" in attributes(span)
    }
    shown = {task: cloud.airflow.xcom("moods", finished, task)["trace_id"] for task in of_job}
    assert shown == of_job, "the report names the trace"
    assert b"planted" not in collector.bytes
