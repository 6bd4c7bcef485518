"""`SweepBatchInferenceOperator` in Dags that run in this process, and the Dag of `dags/` with it."""

from __future__ import annotations

import importlib.util
import io
import json
import time
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG
from google.cloud.storage import Client
from llmbeam_sandbox import Fault
from waiting import until

from airflow_provider_llmbeam.exceptions import StillBillingError
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.operators.sweep_batch_inference import SweepBatchInferenceOperator
from airflow_provider_llmbeam.pipeline.batch_inference.run import PILOT_ROWS
from airflow_provider_llmbeam.providers.batch import open_provider
from airflow_provider_llmbeam.providers.rest import session_with
from airflow_provider_llmbeam.spec import GeminiModel, OpenAIModel
from airflow_provider_llmbeam.spec.identity import deployment_prefix
from tests.processes import forked_jobs

pytestmark = pytest.mark.slow

DAGS = Path(__file__).resolve().parents[2] / "dags"
#: As in `tests/plugin.py`.
OWN, FOREIGN = deployment_prefix("tests"), deployment_prefix("another-airflow")
GEMINI = "gemini-2.5-flash"
NOTHING = {"cancelled": [], "deleted": [], "failed": [], "kept": [], "foreign": [], "dry_run": False}


@pytest.fixture
def jobs(sandbox):
    """A job of this Airflow and one of another, both stuck in the queue, on the Developer API."""
    sandbox.batches.change(outcome="stuck")
    session = session_with(lambda: {"x-goog-api-key": "k"})
    return Jobs(open_provider(GeminiModel(base_url=sandbox.gemini_url), output_uri="", session=session))


class Jobs:
    """Jobs of a provider, the first of which is this Airflow's own."""

    def __init__(self, provider, line=b'{"key": "a", "request": {"contents": [{"parts": [{"text": "a"}]}]}}'):
        self.provider, self.names = provider, []
        for prefix in (OWN, FOREIGN):
            job = provider.submit(f"{prefix}night-1", "gs://rows/in.jsonl", lambda _: io.BytesIO(line), len(line))
            self.names.append(job.name)

    @property
    def phases(self):
        return [self.provider.get(name).phase for name in self.names]


def swept(run_dag, **arguments):
    """Returns the manifest and the state of the task."""
    with DAG("sweep", schedule=None) as dag:
        SweepBatchInferenceOperator(**{"task_id": "sweep", "model": GEMINI, "retries": 0, **arguments})
    dag_run, states = run_dag(dag)
    return dag_run.get_task_instance("sweep").xcom_pull(task_ids="sweep"), states["sweep"]


@pytest.fixture
def later(monkeypatch):
    """Sets the clock of the sweeper, and that of nobody else, to three days later."""
    clock = SimpleNamespace(time=lambda: time.time() + 3 * 86_400)
    monkeypatch.setattr("airflow_provider_llmbeam.operators.sweep_batch_inference.time", clock)


def test_a_forgotten_job_of_this_airflow_is_cancelled_and_that_of_another_is_not(run_dag, connection, jobs, later):
    manifest, state = swept(run_dag)
    assert state == "success"
    assert manifest["cancelled"] == jobs.names[:1]
    assert jobs.phases == ["cancelled", "queued"]


@pytest.mark.full
def test_another_airflow_is_swept_if_it_is_named(run_dag, connection, jobs, later):
    manifest, _ = swept(run_dag, deployments=["{{ 'another-airflow' }}"])
    assert manifest["cancelled"] == jobs.names[1:]
    assert jobs.phases == ["queued", "cancelled"]


def test_a_job_of_today_is_kept(run_dag, connection, jobs):
    manifest, _ = swept(run_dag)
    assert jobs.names[0] in manifest["kept"]
    assert jobs.phases == ["queued", "queued"]


@pytest.mark.full
def test_a_dry_run_lists_what_is_due(run_dag, connection, jobs, later):
    manifest, _ = swept(run_dag, dry_run=True)
    assert (manifest["cancelled"], manifest["dry_run"]) == (jobs.names[:1], True)
    assert jobs.phases == ["queued", "queued"]


def test_a_failure_fails_the_task_after_everything_else_was_swept(run_dag, connection, jobs, later, sandbox):
    sandbox.faults.queue("gemini.batches.cancel", Fault(kind="error", http_status=403, message="Not you."))
    errors = []
    manifest, state = swept(
        run_dag,
        deployments=["tests", "another-airflow"],
        on_failure_callback=lambda context: errors.append(context["exception"]),
    )
    assert (manifest, state) == (None, "failed")
    assert sorted(jobs.phases) == ["cancelled", "queued"]
    (error,) = errors
    assert isinstance(error, StillBillingError)
    assert str(error).startswith("1 cancelled, 0 deleted, 1 not: Batch-inference job llmbeam-")
    assert str(error).endswith("may still bill: The Gemini Developer API answered HTTP 403: Not you.")


@pytest.mark.full
def test_jobs_of_vertex_ai_are_swept_with_the_credentials_of_the_connection(run_dag, google, sandbox, later):
    Client().bucket("rows").blob("in.jsonl").upload_from_string('{"request": {"contents": []}}')
    sandbox.batches.change(outcome="stuck")
    model = GeminiModel(project=google.project, location="europe-west4")
    jobs = Jobs(open_provider(model, output_uri="gs://rows/out/"))
    manifest, state = swept(run_dag, model=model)
    assert (manifest["cancelled"], state) == (jobs.names[:1], "success")
    assert jobs.phases == ["cancelled", "queued"]


@pytest.mark.full
def test_jobs_of_openai_are_swept_with_the_key_of_the_connection(run_dag, google, sandbox, later, monkeypatch):
    sandbox.batches.change(outcome="stuck")
    model = OpenAIModel(type="openai", name="gpt-5-mini")
    with monkeypatch.context() as patched:
        patched.setenv("OPENAI_API_KEY", "k")
        jobs = Jobs(open_provider(model, output_uri=""))
    monkeypatch.setenv("AIRFLOW_CONN_OPENAI", json.dumps({"conn_type": "llmbeam", "password": "k"}))
    manifest, state = swept(run_dag, model=model, llmbeam_conn_id="openai")
    assert (manifest["cancelled"], state) == (jobs.names[:1], "success")
    assert jobs.phases == ["cancelled", "queued"]


@pytest.mark.full
def test_the_job_of_a_task_that_was_killed_is_found_by_its_name_and_cancelled(
    run_dag, connection, sandbox, later, tmp_path
):
    rows = [{"id": number, "text": f"text {number}"} for number in range(PILOT_ROWS + 10)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sandbox.batches.change(outcome="stuck")

    def kill_when_submitted():
        until(lambda: "gemini.batches.create" in {each.method for each in sandbox.requests}, "a batch")
        for job in forked_jobs():
            job.kill()

    with DAG("forgotten", schedule=None) as dag:
        RunInferenceOperator(
            task_id="answer",
            source={"uri": f"{tmp_path}/rows.jsonl", "key": ["id"]},
            prompt="Say it: {{ row.text }}",
            model=GEMINI,
            sink=f"{tmp_path}/out",
            inference={"mode": "batch"},
            deferrable=False,
        )
    thread = Thread(target=kill_when_submitted)
    thread.start()
    assert run_dag(dag)[1] == {"answer": "failed"}
    thread.join()
    manifest, state = swept(run_dag)
    assert state == "success"
    assert len(manifest["cancelled"]) == 1
    assert len(manifest["kept"]) == 1, "its request file"


@pytest.mark.full
def test_the_dag_sweeps_every_night(run_dag, connection, sandbox):
    spec = importlib.util.spec_from_file_location("sweep_batch_inference", DAGS / "sweep_batch_inference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dag_run, states = run_dag(module.dag)
    assert states == {"sweep": "success"}
    assert dag_run.get_task_instance("sweep").xcom_pull(task_ids="sweep") == NOTHING
