"""Endpoint operators in Dags that run in this process against the sandbox, without a scheduler."""

from __future__ import annotations

import json
import logging
import re
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TaskGroup, task, task_group
from airflow.serialization import serialized_objects
from click.testing import CliRunner
from llmbeam_sandbox import Fault
from waiting import until

from airflow_provider_llmbeam.cli import llmbeam
from airflow_provider_llmbeam.endpoints.provisioning import ProvisioningHistory
from airflow_provider_llmbeam.endpoints.teardown import remove
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.deployment import own_deployment
from airflow_provider_llmbeam.hooks.vertex_ai import VertexAIHook
from airflow_provider_llmbeam.operators.endpoint import (
    ProvisionEndpointOperator,
    ReserveEndpointOperator,
    TeardownEndpointOperator,
)
from airflow_provider_llmbeam.operators.evaluate_inference import EvaluateInferenceOperator
from airflow_provider_llmbeam.operators.inference_endpoint import inference_endpoint
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.operators.sweep import SweepEndpointsOperator
from airflow_provider_llmbeam.polling.poller import poll_until_result
from airflow_provider_llmbeam.spec import CloudRunEndpoint, VertexEndpoint
from airflow_provider_llmbeam.spec.endpoint.identity import endpoint_id, endpoint_labels
from airflow_provider_llmbeam.spec.identity import identity
from airflow_provider_llmbeam.triggers.endpoint import EndpointTrigger

pytestmark = [pytest.mark.promise(3), pytest.mark.slow, pytest.mark.usefixtures("quick_endpoints")]
full = pytest.mark.full

LOCATIONS = ("us-central1", "europe-west4")
GARDEN = {
    "type": "vertex",
    "model": "google/gemma3@gemma-3-4b-it",
    "accept_eula": True,
    "locations": LOCATIONS,
}
CONTAINER = {
    "type": "vertex",
    "model": "Qwen/Qwen3-4B",
    "container_image": "vllm/vllm-openai:v0.11.0",
    "machine_type": "g2-standard-12",
    "locations": LOCATIONS,
}
CLOUD_RUN = {"type": "cloud_run", "model": "Qwen/Qwen3-4B", "locations": LOCATIONS}
KINDS = {"garden": GARDEN, "container": CONTAINER, "cloud_run": CLOUD_RUN}
DEPLOY = {"garden": "vertex.modelGarden.deploy", "container": "vertex.endpoints.deployModel"}
DEPLOY["cloud_run"] = "run.services.create"
QUICK = {"poll_interval_seconds": 0.2}
SOON = {"gone_within_seconds": 10.0}


@pytest.fixture
def here(google):
    """The specs of all kinds of endpoint, in the project of the sandbox."""
    return {name: {**spec, "project": google.project} for name, spec in KINDS.items()}


def block(endpoint, dag_id="gpu", *, deferrable=True, work=None, **kwargs):
    """Returns a Dag with one endpoint and the given work in its block."""
    with (
        DAG(dag_id, schedule=None) as dag,
        inference_endpoint(
            endpoint=endpoint,
            deferrable=deferrable,
            provision={**QUICK, **kwargs.pop("provision", {})},
            teardown={**SOON, "retries": 0, **kwargs.pop("teardown", {})},
            **kwargs,
        ) as made,
    ):
        (work or use_model)(made)
    return dag


def use_model(made):
    @task
    def work(model):
        return model

    work(made.model)


def failing(made):
    @task
    def work(model):
        raise RuntimeError("No.")

    work(made.model)


def nothing_is_left(sandbox):
    return not (sandbox.endpoints or sandbox.models or sandbox.services or sandbox.bill.running)


@pytest.mark.parametrize(
    ("kind", "deferrable"),
    [
        ("garden", True),
        pytest.param("garden", False, marks=full),
        pytest.param("container", True, marks=full),
        pytest.param("cloud_run", True, marks=full),
    ],
)
def test_an_endpoint_serves_its_block_and_is_deleted_after_it(run_dag, sandbox, here, kind, deferrable):
    dag_run, states = run_dag(block(here[kind], deferrable=deferrable))
    assert set(states.values()) == {"success"}
    model = dag_run.get_task_instance("endpoint.work").xcom_pull(task_ids="endpoint.work")
    assert model["type"] == ("openai" if kind == "cloud_run" else "vertex_endpoint")
    provision = dag_run.get_task_instance("endpoint.provision")
    assert provision.xcom_pull(task_ids="endpoint.provision", key="cold_start_seconds") >= 0
    assert provision.xcom_pull(task_ids="endpoint.provision", key="location") == "us-central1"
    assert sandbox.stats()["billed_answers"] == 1
    hours, usd = (provision.xcom_pull(task_ids="endpoint.teardown", key=key) for key in ("gpu_hours", "gpu_usd"))
    assert 0 < hours < 1
    assert 0.1 < usd / hours < 10
    assert nothing_is_left(sandbox)
    assert [line.labels["llmbeam-key"] for line in sandbox.bill.lines if line.labels]


def test_rows_are_answered_by_the_endpoint_of_the_block(run_dag, sandbox, here, tmp_path):
    rows = tmp_path / "in.jsonl"
    rows.write_text("".join(f'{{"id": {number}}}\n' for number in range(5)))

    def work(made):
        RunInferenceOperator(
            task_id="ask",
            source={"uri": str(rows), "key": ["id"]},
            prompt={"template": "Say {{ row.id }}"},
            model=made.model,
            sink={"uri": str(tmp_path / "out")},
        )

    _, states = run_dag(block(here["garden"], work=work))
    assert set(states.values()) == {"success"}
    assert nothing_is_left(sandbox)


def test_failed_work_fails_the_run_and_leaves_no_resource(run_dag, sandbox, here):
    dag_run, states = run_dag(block(here["garden"], work=failing))
    assert states["endpoint.work"] == "failed"
    assert states["endpoint.teardown"] == "success"
    assert dag_run.state == "failed"
    assert nothing_is_left(sandbox)


def test_a_missing_source_is_refused_with_the_endpoint_that_is_still_up(run_dag, sandbox, here, tmp_path, capfd):
    def work(made):
        RunInferenceOperator(
            task_id="ask",
            source={"uri": str(tmp_path / "none.jsonl"), "key": "id"},
            prompt="Say {{ row.id }}",
            model=made.model,
            sink=str(tmp_path / "out"),
        )

    _, states = run_dag(block(here["garden"], "missing", work=work))
    assert (states["endpoint.ask"], states["endpoint.teardown"]) == ("failed", "success")
    out = "".join(capfd.readouterr())
    up = r"none\.jsonl.* Nothing was sent\. Endpoint 'projects/.+' is up and bills until task 'endpoint\.teardown'"
    assert re.search(up, out)
    assert nothing_is_left(sandbox)


@full
def test_a_refused_evaluation_skips_what_follows_the_block_and_leaves_no_resource(
    run_dag, sandbox, here, tmp_path
):
    golden = tmp_path / "golden.jsonl"
    golden.write_text('{"id": 1, "expected_mood": "no answer of the model"}\n')

    def work(made):
        evaluate = EvaluateInferenceOperator(
            task_id="evaluate",
            source={"uri": str(golden), "key": "id"},
            golden={"uri": str(golden), "key": "id"},
            prompt={"template": "Say {{ row.id }}", "output_schema": {"properties": {"mood": {"type": "string"}}}},
            metrics={"mood": "exact"},
            minimum={"mood": 1},
            on_failure="branch",
            refused_task_ids=["tell_us"],
            model=made.model,
            sink=str(tmp_path / "out"),
        )
        with TaskGroup("after", prefix_group_id=False, parent_group=evaluate.dag.task_group):
            evaluate >> [EmptyOperator(task_id="publish"), EmptyOperator(task_id="tell_us")]
            made.done >> EmptyOperator(task_id="promote")

    # A Dag of its own: Airflow 3.1 keeps the tasks of an earlier one of that name for some seconds.
    dag_run, states = run_dag(block(here["garden"], "refused", work=work))
    skipped = {name for name, state in states.items() if state == "skipped"}
    assert (dag_run.state, states["endpoint.teardown"], states["tell_us"]) == ("success",) * 3
    assert skipped == {"publish", "endpoint.done", "promote"}
    assert nothing_is_left(sandbox)


@full
def test_a_branch_at_the_end_of_a_block_does_not_skip_the_teardown(run_dag, sandbox, here):
    def work(made):
        @task.branch
        def choose(model):
            return "publish"

        with TaskGroup("inner"):
            chosen = choose(made.model)
        with TaskGroup("after", prefix_group_id=False, parent_group=made.done.dag.task_group):
            chosen >> [EmptyOperator(task_id="publish"), EmptyOperator(task_id="tell_us")]

    dag = block(here["garden"], "branching", work=work)
    assert "endpoint.teardown" not in edges(dag, "endpoint.inner.choose")
    assert edges(dag, "endpoint.after_inner_choose") == ["endpoint.teardown"]
    dag_run, states = run_dag(dag)
    assert (dag_run.state, states["endpoint.teardown"], states["publish"]) == ("success",) * 3
    assert (states["tell_us"], states["endpoint.after_inner_choose"]) == ("skipped",) * 2
    assert nothing_is_left(sandbox)


@full
@pytest.mark.parametrize("kind", ["garden", "cloud_run"])
def test_a_failed_deployment_is_removed_by_the_provision_task(run_dag, sandbox, here, kind, capfd):
    sandbox.faults.queue(
        DEPLOY[kind], Fault(kind="operation-error", http_status=500, message="The server never came up.")
    )
    with DAG("half_way", schedule=None) as dag:
        ProvisionEndpointOperator(task_id="provision", endpoint=here[kind], name="half-way", retries=0, **QUICK)
    dag_run, _ = run_dag(dag)
    assert dag_run.state == "failed"
    assert nothing_is_left(sandbox)
    output = capfd.readouterr()
    assert "The server never came up." in output.out + output.err


@full
@pytest.mark.parametrize("kind", ["garden", "cloud_run"])
def test_after_a_stock_out_the_second_location_is_used(run_dag, sandbox, here, kind):
    sandbox.faults.queue(DEPLOY[kind], Fault(kind="stock-out"))
    dag_run, states = run_dag(block(here[kind]))
    assert set(states.values()) == {"success"}
    ti = dag_run.get_task_instance("endpoint.provision")
    assert ti.xcom_pull(task_ids="endpoint.provision", key="location") == "europe-west4"
    assert nothing_is_left(sandbox)


@full
@pytest.mark.parametrize("kind", ["garden", "cloud_run"])
def test_if_the_gpu_quota_is_exhausted_everywhere_the_error_lists_every_location(
    run_dag, sandbox, here, kind, capfd
):
    for _ in LOCATIONS:
        sandbox.faults.queue(DEPLOY[kind], Fault(kind="quota"))
    dag_run, states = run_dag(block(here[kind]))
    assert states["endpoint.provision"] == "failed"
    assert states["endpoint.teardown"] == "success"
    assert dag_run.state == "failed"
    assert nothing_is_left(sandbox)
    out = "".join(capfd.readouterr())
    assert "us-central1 (the GPU quota of the project)" in out
    assert "europe-west4 (the GPU quota of the project)" in out


@full
@pytest.mark.parametrize("kind", ["garden", "cloud_run"])
def test_a_region_without_the_gpu_is_skipped(run_dag, sandbox, here, kind):
    where = {**here[kind], "locations": ("southamerica-east1", "us-central1")}
    dag_run, states = run_dag(block(where))
    assert set(states.values()) == {"success"}
    ti = dag_run.get_task_instance("endpoint.provision")
    assert ti.xcom_pull(task_ids="endpoint.provision", key="location") == "us-central1"


@full
def test_an_unknown_model_garden_model_is_an_error_before_anything_is_created(run_dag, sandbox, here, capfd):
    wrong = {**here["garden"], "model": "google/gemma3@gemma-3-5b-it"}
    _, states = run_dag(block(wrong))
    assert states["endpoint.provision"] == "failed"
    assert not sandbox.bill.lines
    out = "".join(capfd.readouterr())
    assert "publishers/google/models/gemma3@gemma-3-5b-it" in out
    assert "Nothing was sent or billed." in out


@full
def test_a_missing_hugging_face_token_is_an_error_before_anything_is_created(run_dag, sandbox, here, capfd):
    gated = {
        **here["container"],
        "model": "google/gemma-3-4b-it",
        "hf_token_secret": "projects/p/secrets/hf/versions/latest",
    }
    _, states = run_dag(block(gated))
    assert states["endpoint.provision"] == "failed"
    assert not sandbox.bill.lines
    assert "`hf_token_secret`" in "".join(capfd.readouterr())


@full
def test_two_tries_end_with_one_endpoint(run_dag, sandbox, here):
    sandbox.faults.queue("vertex.chatCompletions", Fault(kind="error"))
    for attempt in range(2):
        with DAG(f"try_{attempt}", schedule=None) as dag:
            ProvisionEndpointOperator(task_id="provision", endpoint=here["garden"], name="the-same", **QUICK)
        dag_run, _ = run_dag(dag)
        assert dag_run.state == "success"
        (left,) = [*sandbox.endpoints, *sandbox.services]
        assert left["labels"]["llmbeam-dag"] == f"try_{attempt}"
    assert len(sandbox.bill.running) + len(sandbox.bill.lines) >= 1
    with DAG("down", schedule=None) as dag:
        TeardownEndpointOperator(task_id="down", endpoint=here["garden"], name="the-same", **SOON)
    run_dag(dag)
    assert nothing_is_left(sandbox)


@full
def test_a_teardown_succeeds_after_two_refused_requests(run_dag, sandbox, here):
    sandbox.faults.queue("vertex.endpoints.undeployModel", *[Fault(kind="error", http_status=409)] * 2)
    _, states = run_dag(block(here["garden"]))
    assert states["endpoint.teardown"] == "success"
    assert nothing_is_left(sandbox)


@full
def test_a_failed_teardown_reports_what_is_billing_and_the_command_that_removes_it(run_dag, sandbox, here, capfd):
    sandbox.faults.queue("vertex.endpoints.undeployModel", *[Fault(kind="error", http_status=400)] * 20)
    dag_run, states = run_dag(block(here["garden"], teardown={"gone_within_seconds": 0.0}))
    assert states["endpoint.teardown"] == "failed"
    assert dag_run.state == "failed"
    out = "".join(capfd.readouterr())
    assert "is still billing, about $1.15 an hour" in out
    assert "gcloud ai endpoints undeploy-model" in out
    sandbox.faults.clear()


@full
def test_a_location_that_does_not_answer_does_not_delay_the_removal_in_another_one(
    run_dag, sandbox, here, monkeypatch
):
    first, second = LOCATIONS
    with DAG("up", schedule=None) as dag:
        endpoint = {**here["garden"], "locations": (second,)}
        ProvisionEndpointOperator(task_id="provision", endpoint=endpoint, name="the-same", **QUICK)
    run_dag(dag)
    events, undeploy = [], VertexAIHook.undeploy_model

    def requested(hook, *arguments):
        events.append(("requested", hook.location))
        return undeploy(hook, *arguments)

    def waited(platform, key, **options):
        events.append(("waited", platform.location))
        return remove(platform, key, **options)

    monkeypatch.setattr(VertexAIHook, "undeploy_model", requested)
    monkeypatch.setattr("airflow_provider_llmbeam.operators.endpoint.remove", waited)
    sandbox.faults.when("vertex.operations.list", first, Fault(kind="error", http_status=403), times=1)
    with DAG("down", schedule=None) as dag:
        TeardownEndpointOperator(task_id="down", endpoint=here["garden"], name="the-same", retries=0, **SOON)
    run_dag(dag)
    assert events[:2] == [("requested", second), ("waited", first)]
    assert nothing_is_left(sandbox)


@full
@pytest.mark.parametrize("name", [None, "", "{{ none }}"])
@pytest.mark.parametrize("operator", [ProvisionEndpointOperator, TeardownEndpointOperator])
def test_a_name_that_is_missing_is_refused_as_runs_would_share_an_endpoint(
    run_dag, sandbox, here, operator, name, capfd
):
    with DAG("unnamed", schedule=None) as dag:
        operator(task_id="task", endpoint=here["garden"], name=name)
    assert run_dag(dag)[0].state == "failed"
    assert "`name`: must be the XCom of a `ReserveEndpointOperator`" in "".join(capfd.readouterr())
    assert nothing_is_left(sandbox)


@full
def test_a_teardown_without_resources_succeeds(run_dag, sandbox, here):
    with DAG("nothing", schedule=None) as dag:
        TeardownEndpointOperator(task_id="down", endpoint=here["cloud_run"], name="never-made", **SOON)
    assert run_dag(dag)[0].state == "success"


def exceed_execution_timeout(operator, context):
    """Resumes the task like Airflow when `execution_timeout` passes while the task is deferred."""
    from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR, TriggerFailureReason

    from airflow_provider_llmbeam.triggers.airflow_compat import TaskDeferralTimeout

    with pytest.raises(TaskDeferralTimeout):
        operator.resume_execution(TRIGGER_FAIL_REPR, {"error": TriggerFailureReason.TRIGGER_TIMEOUT}, context)


@full
def test_an_execution_timeout_while_deferred_removes_the_endpoint(run_dag, sandbox, here, monkeypatch):
    def execute(self, context):
        poll_until_result(self._trigger(context).make_poller(self.log))
        assert [*sandbox.endpoints, *sandbox.services]
        exceed_execution_timeout(self, context)

    monkeypatch.setattr(ProvisionEndpointOperator, "execute", execute)
    with DAG("late", schedule=None) as dag:
        ProvisionEndpointOperator(task_id="provision", endpoint=here["garden"], name="late", **QUICK)
    assert run_dag(dag)[0].state == "success"
    assert nothing_is_left(sandbox)


@pytest.fixture
def lost_connection(monkeypatch):
    """Sets the project of the default connection; returns a function after which Airflow does not find it."""
    value = {"conn_type": "google_cloud_platform", "extra": {"project": "gpu-project-1"}}
    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", json.dumps(value))
    return lambda: monkeypatch.delenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT")


@full
@pytest.mark.parametrize(("kind", "deferrable"), [("garden", True), ("cloud_run", False)])
def test_a_teardown_removes_the_endpoint_where_it_was_provisioned_though_the_connection_is_not_found(
    run_dag, sandbox, google, kind, deferrable, lost_connection
):
    running = []

    def work(made):
        @task
        def lose(model):
            running.extend(sandbox.bill.running)
            lost_connection()

        lose(made.model)

    _, states = run_dag(block(KINDS[kind], work=work, deferrable=deferrable))
    assert set(states.values()) == {"success"}
    assert running
    assert nothing_is_left(sandbox)


@full
@pytest.mark.parametrize("changed", ["location", "deployment"])
def test_a_teardown_removes_the_endpoint_where_it_was_provisioned_though_the_dag_or_the_deployment_changed(
    run_dag, sandbox, here, monkeypatch, changed
):
    running, where = [], ["us-central1"]

    def work(made):
        @task
        def change(model):
            running.extend(sandbox.bill.running or sandbox.services)
            if changed == "location":
                where[0] = "europe-west4"
            else:
                monkeypatch.setenv("AIRFLOW__LLMBEAM__DEPLOYMENT", "renamed")

        change(made.model)

    dag = block({**here["garden"], "locations": ["{{ where[0] }}"]}, "changing", work=work)
    dag.user_defined_macros = {"where": where}
    _, states = run_dag(dag)
    assert set(states.values()) == {"success"}
    assert running
    assert nothing_is_left(sandbox)


@full
def test_a_provision_that_fails_while_deferred_removes_its_endpoint_though_the_connection_is_not_found(
    run_dag, sandbox, google, monkeypatch, lost_connection
):
    from airflow.providers.common.compat.sdk import TaskDeferred

    provision = ProvisionEndpointOperator.execute

    def execute(self, context):
        with pytest.raises(TaskDeferred):
            provision(self, context)
        lost_connection()
        exceed_execution_timeout(self, context)

    monkeypatch.setattr(ProvisionEndpointOperator, "execute", execute)
    with DAG("late", schedule=None) as dag:
        ProvisionEndpointOperator(task_id="provision", endpoint=KINDS["garden"], name="late", **QUICK)
    assert run_dag(dag)[0].state == "success"
    assert nothing_is_left(sandbox)


@full
def test_a_job_that_uses_an_endpoint_is_cancelled_at_its_teardown(run_dag, sandbox, here, monkeypatch):
    from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook
    from airflow_provider_llmbeam.spec.remote_job import RemoteJob

    endpoint, cancelled = endpoint_id(identity("asked", own_deployment())), []
    theirs = {"llmbeam-job": "a", "llmbeam-endpoint": endpoint, "llmbeam-deployment": "another"}
    ours = {**theirs, "llmbeam-deployment": own_deployment()}
    jobs = [
        RemoteJob("theirs", "n", "JOB_STATE_RUNNING", "running", labels=theirs),
        RemoteJob("ours", "n", "JOB_STATE_RUNNING", "running", labels=ours),
        RemoteJob("other", "n", "JOB_STATE_RUNNING", "running", labels={"llmbeam-job": "b"}),
    ]
    monkeypatch.setattr(DataflowJobHook, "_list", lambda self, identity, *, active_only: jobs)
    monkeypatch.setattr(DataflowJobHook, "cancel", lambda self, job_id: cancelled.append((self.location, job_id)))
    with DAG("down", schedule=None) as dag:
        TeardownEndpointOperator(task_id="down", endpoint=here["garden"], name="asked", **SOON)
    assert run_dag(dag)[0].state == "success"
    assert cancelled == [(location, "ours") for location in LOCATIONS]


# The block itself


def edges(dag, task_id):
    return sorted(dag.get_task(task_id).downstream_task_ids)


def test_the_block_has_the_edges_and_flags_that_airflow_needs(here):
    def work(made):
        first, last = EmptyOperator(task_id="first"), EmptyOperator(task_id="last")
        first >> last

    dag = block(here["garden"], work=work, group_id="g")
    assert edges(dag, "g.reserve") == ["g.provision", "g.teardown"]
    assert edges(dag, "g.provision") == ["g.first", "g.teardown"]
    assert edges(dag, "g.first") == ["g.last"]
    assert edges(dag, "g.last") == ["g.done", "g.teardown"]
    assert dag.get_task("g.reserve").is_setup
    assert dag.get_task("g.provision").is_setup
    assert dag.get_task("g.teardown").is_teardown
    assert dag.get_task("g.teardown").on_failure_fail_dagrun
    assert not dag.get_task("g.done").is_teardown
    dag.validate()


def test_a_teardown_gets_a_slot_before_the_work_and_the_provision_of_later_runs(here):
    dag = block(here["garden"], group_id="g")
    # Airflow 3.1 and 3.2 have it under another name.
    serialization = getattr(serialized_objects, "DagSerialization", serialized_objects.SerializedDAG)
    tasks = serialization.from_dict(serialization.to_dict(dag)).task_dict
    weights = {name: task.weight_rule.get_weight(SimpleNamespace(task=task)) for name, task in tasks.items()}
    # Airflow gives slots by weight and then by logical date.
    assert weights["g.teardown"] >= weights["g.provision"] > weights["g.work"] > weights["g.done"]


@full
def test_mapped_tasks_and_groups_are_in_the_block(run_dag, sandbox, here):
    def work(made):
        @task
        def one(model, number):
            return number

        @task_group
        def both(number):
            one(made.model, number)

        one.partial(model=made.model).expand(number=[1, 2, 3])
        both.expand(number=[4, 5])

    dag = block(here["cloud_run"], work=work)
    assert edges(dag, "endpoint.one") == ["endpoint.done", "endpoint.teardown"]
    assert edges(dag, "endpoint.both.one") == ["endpoint.done", "endpoint.teardown"]
    dag_run, _ = run_dag(dag)
    assert dag_run.state == "success"
    assert nothing_is_left(sandbox)


@full
def test_a_dag_can_have_consecutive_and_nested_blocks(run_dag, sandbox, here):
    with DAG("several", schedule=None) as dag:
        arguments = {"provision": QUICK, "teardown": SOON}
        with inference_endpoint(endpoint=here["cloud_run"], group_id="a", **arguments) as first:
            use_model(first)
            with inference_endpoint(endpoint=here["garden"], group_id="b", **arguments) as inner:
                use_model(inner)
        with inference_endpoint(endpoint=here["cloud_run"], group_id="c", **arguments) as last:
            use_model(last)
        first.done >> last.reserve
    _, states = run_dag(dag)
    assert set(states.values()) == {"success"}, states
    assert nothing_is_left(sandbox)
    assert len({line.name for line in sandbox.bill.lines}) == 3


def test_dagrun_timeout_is_refused_with_an_alternative(here):
    with (
        pytest.raises(JobSpecError, match="DeadlineAlert"),
        DAG("timeout", schedule=None, dagrun_timeout=timedelta(hours=1)),
        inference_endpoint(endpoint=here["garden"]),
    ):
        pass


@pytest.mark.parametrize("name", ["depends_on_past", "wait_for_downstream"])
def test_a_task_that_may_never_start_while_the_gpu_is_billed_is_refused(here, name):
    with (
        DAG("nightly", schedule=None, default_args={name: True}),
        pytest.raises(JobSpecError, match=r"Task 'endpoint\.ask' has `depends_on_past=True`"),
        inference_endpoint(endpoint=here["garden"]),
    ):
        EmptyOperator(task_id="ask")
    with DAG("nightly", schedule=None, default_args={name: True}) as dag:
        with inference_endpoint(endpoint=here["garden"]) as made:
            ask = EmptyOperator(task_id="ask", depends_on_past=False, wait_for_downstream=False)
        EmptyOperator(task_id="start") >> [made.reserve, ask]
    assert [task.task_id for task in dag.tasks if task.depends_on_past] == ["start"]


@pytest.mark.parametrize("given", [{}, {"gcp_conn_id": "own", "impersonation_chain": "own@acme.iam"}])
def test_the_account_of_a_block_is_the_given_one_or_that_of_the_default_args_of_the_dag(here, given):
    defaults = {"gcp_conn_id": "production", "impersonation_chain": "gpu@acme.iam"}
    with (
        DAG("nightly", schedule=None, default_args=defaults),
        inference_endpoint(endpoint=here["garden"], **given) as made,
    ):
        EmptyOperator(task_id="ask")
    for own in (made.provision, made.teardown):
        assert {name: getattr(own, name) for name in defaults} == defaults | given


def test_a_block_without_work_is_refused(here):
    with (
        pytest.raises(JobSpecError, match="no task"),
        DAG("idle", schedule=None),
        inference_endpoint(endpoint=here["garden"]),
    ):
        pass


@pytest.mark.parametrize("what", [{"type": "vertex"}, {"type": "gpu"}, {}, 7, {**GARDEN, "accept_eula": False}])
def test_an_invalid_endpoint_is_refused_when_the_dag_is_parsed(what):
    with pytest.raises(JobSpecError), DAG("wrong", schedule=None):
        ProvisionEndpointOperator(task_id="p", endpoint=what, name="n")


def test_spec_values_are_accepted_as_endpoints():
    with DAG("values", schedule=None):
        ReserveEndpointOperator(task_id="r")
        ProvisionEndpointOperator(task_id="p", endpoint=VertexEndpoint(**GARDEN), name="n")
        TeardownEndpointOperator(task_id="t", endpoint=CloudRunEndpoint(**CLOUD_RUN), name="{{ 1 }}")


# The sweeper


@pytest.fixture
def strays(sandbox, here):
    """Creates one endpoint of each kind, without a teardown."""
    for name, spec in here.items():
        key, now = identity(name, own_deployment()), time.time()
        owner = {"deployment": own_deployment(), "dag_id": "d", "run_id": "r", "attempt": "1"}
        labels = endpoint_labels(key, expires_at=now + 3_600, **owner)
        history = ProvisioningHistory(now).to_dict()
        made = EndpointTrigger(endpoint=spec, key=key, labels=labels, history=history, **QUICK)
        assert poll_until_result(made.make_poller(logging.getLogger())).outcome == "ready"


def sweeping(project, **kwargs):
    with DAG("sweep", schedule=None) as dag:
        arguments = {"locations": list(LOCATIONS), "project": project, "retries": 0, **kwargs}
        SweepEndpointsOperator(task_id="sweep", **arguments)
    return dag


def number_of(sandbox):
    return len(sandbox.endpoints), len(sandbox.services), len(sandbox.models)


def test_the_sweeper_deletes_expired_resources_and_keeps_others_and_foreign_ones(
    run_dag, google, sandbox, strays, monkeypatch
):
    """Also when Airflow has rendered its regions and deployments to text; a dry run deletes nothing."""

    def manifest_of(**arguments):
        dag_run, _ = run_dag(sweeping(google.project, **arguments))
        assert dag_run.state == "success"
        manifest = dag_run.get_task_instance("sweep").xcom_pull(task_ids="sweep")
        return len(manifest["deleted"]), len(manifest["kept"]), manifest["dry_run"]

    foreign(google, sandbox)
    assert (manifest_of(), number_of(sandbox)) == ((0, 5, False), (3, 1, 2))
    later(monkeypatch)
    assert (manifest_of(dry_run=True), number_of(sandbox)) == ((5, 0, True), (3, 1, 2))
    rendered = {"locations": "{{ %r }}" % [*LOCATIONS], "deployments": "{{ %r }}" % [own_deployment()]}
    assert (manifest_of(**rendered), number_of(sandbox)) == ((5, 0, False), (1, 0, 0))
    assert [endpoint["displayName"] for endpoint in sandbox.endpoints] == ["not ours"]
    assert not sandbox.bill.running


@full
def test_one_failure_does_not_stop_the_sweeper(run_dag, google, sandbox, strays, monkeypatch):
    later(monkeypatch)
    sandbox.faults.queue("vertex.endpoints.delete", *[Fault(kind="error", http_status=403)] * 40)
    dag_run, _ = run_dag(sweeping(google.project, gone_within_seconds=1.0))
    assert dag_run.state == "failed"
    assert not sandbox.services
    assert len(sandbox.endpoints) >= 1
    sandbox.faults.clear()


@full
def test_the_sweeper_runs_from_the_command_line_too(google, sandbox, strays, monkeypatch):
    later(monkeypatch)
    arguments = ["sweep", "--project", google.project, "--location", "us-central1"]
    listed = CliRunner().invoke(llmbeam, [*arguments, "--dry-run"])
    assert (listed.exit_code, '"dry_run": true' in listed.output) == (0, True)
    assert CliRunner().invoke(llmbeam, arguments).exit_code == 0
    assert nothing_is_left(sandbox)


def later(monkeypatch):
    """Sets the clock of the sweeper to a day later, and that of nobody else: tokens are signed with the time."""
    now = time.time() + 86_400
    clock = SimpleNamespace(time=lambda: now)
    monkeypatch.setattr("airflow_provider_llmbeam.operators.sweep.time", clock)


def foreign(google, sandbox):
    from airflow_provider_llmbeam.hooks.vertex_ai import VertexAIHook

    hook = VertexAIHook("us-central1", google.project)
    client = hook._client("EndpointServiceClient")
    client.create_endpoint(
        parent=hook.parent, endpoint={"display_name": "not ours", "labels": {"team": "x"}}, endpoint_id="theirs"
    )
    until(lambda: any(re.search("not ours", each["displayName"]) for each in sandbox.endpoints), "it is there")
