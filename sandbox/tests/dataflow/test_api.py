"""The API of the sandbox's Dataflow, by its own clients over REST and gRPC; jobs here wait forever."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import pytest
from google.api_core import exceptions
from google.cloud import dataflow_v1beta3 as df
from google.oauth2.credentials import Credentials
from llmbeam_sandbox import DataflowSettings, Fault, Sandbox
from llmbeam_sandbox.dataflow.flex import Launch, arguments
from llmbeam_sandbox.dataflow.job.__main__ import explained
from llmbeam_sandbox.dataflow.state import Jobs

from tests.clouds import authorized

WHERE = {"project_id": "my-project", "location": "us-central1"}
JOBS = "/v1b3/projects/my-project/locations/us-central1/jobs"
LAUNCH = "/v1b3/projects/my-project/locations/us-central1/flexTemplates:launch"
TEMPLATE = {"image": "i", "metadata": {"parameters": [{"name": "input"}, {"name": "rest", "isOptional": True}]}}
Metadata = list[tuple[str, str]]
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Clients = Callable[[str], Any]


@pytest.fixture(scope="module")
def server() -> Iterator[Sandbox]:
    with Sandbox(
        buckets=("rows",),
        dataflow=DataflowSettings(start_seconds=3600, projects=("my-project",), flex_launcher=("true",)),
    ) as running:
        yield running


@pytest.fixture
def http(sandbox: Sandbox) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=sandbox.url, headers=authorized(sandbox), timeout=60) as client:
        yield client


@pytest.fixture
def token(sandbox: Sandbox) -> Metadata:
    return [("authorization", f"Bearer {sandbox.token}")]


@pytest.fixture(params=["rest", "grpc"])
def client(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[Clients]:
    """A client of each service, e.g. `client("JobsV1Beta3")`."""
    channel = grpc.insecure_channel(f"127.0.0.1:{sandbox.start_grpc()}")

    def make(service: str) -> Any:
        kind = getattr(df, f"{service}Client")
        if request.param == "rest":
            return kind(
                transport="rest",
                credentials=Credentials(sandbox.token),
                client_options={"api_endpoint": sandbox.url},
            )
        return kind(transport=kind.get_transport_class("grpc")(channel=channel))

    yield make
    channel.close()


def job(name: str = "nightly", **fields: Any) -> dict[str, Any]:
    options = {"pipelineUrl": "gs://rows/staging/pipeline.pb"}
    pool = {"machineType": fields.pop("machine_type", "n1-standard-4")}
    environment = {"sdkPipelineOptions": {"options": options}, "workerPools": [pool]}
    environment["tempStoragePrefix"] = fields.pop("temp", "storage.googleapis.com/rows/tmp")
    return {"name": name, "type": "JOB_TYPE_BATCH", "environment": environment, **fields}


def create(http: httpx.Client, name: str = "nightly", **fields: Any) -> dict[str, Any]:
    return http.post(JOBS, json=job(name, **fields)).raise_for_status().json()


def test_a_job_is_made_found_listed_labelled_and_cancelled(
    client: Clients, sandbox: Sandbox, token: Metadata
) -> None:
    jobs = client("JobsV1Beta3")
    draft = df.Job.from_json(json.dumps(job(labels={"team": "search"}, clientRequestId="1")))
    made = jobs.create_job(df.CreateJobRequest(**WHERE, job=draft), metadata=token)
    assert made.current_state == df.JobState.JOB_STATE_PENDING
    assert made.create_time.timestamp() > 1_700_000_000
    assert dict(made.labels) == {"team": "search"}
    where = {**WHERE, "job_id": made.id}
    summary = jobs.get_job(df.GetJobRequest(**where), metadata=token)
    whole = jobs.get_job(df.GetJobRequest(**where, view=df.JobView.JOB_VIEW_ALL), metadata=token)
    assert not summary.environment.worker_pools
    assert whole.environment.worker_pools[0].machine_type == "n1-standard-4"

    again = df.Job.from_json(json.dumps(job(clientRequestId="2")))
    same = jobs.create_job(df.CreateJobRequest(**WHERE, job=again), metadata=token)
    assert (same.id, same.client_request_id) == (made.id, "1")
    assert sandbox.stats()["dataflow_jobs"] == {"PENDING": 1}

    active = df.ListJobsRequest.Filter.ACTIVE
    (listed,) = jobs.list_jobs(df.ListJobsRequest(**WHERE, name="nightly", filter=active), metadata=token)
    assert listed.id == made.id
    assert not list(jobs.list_jobs(df.ListJobsRequest(**WHERE, name="other"), metadata=token))

    labelled = df.UpdateJobRequest(**where, job=df.Job(labels={"team": "ads"}))
    assert dict(jobs.update_job(labelled, metadata=token).labels) == {"team": "ads"}
    cancel = df.UpdateJobRequest(**where, job=df.Job(requested_state=df.JobState.JOB_STATE_CANCELLED))
    jobs.update_job(cancel, metadata=token)
    assert jobs.get_job(df.GetJobRequest(**where), metadata=token).current_state == df.JobState.JOB_STATE_CANCELLED
    assert not list(jobs.list_jobs(df.ListJobsRequest(**WHERE, filter=active), metadata=token))
    assert [one["currentState"] for one in sandbox.dataflow.jobs] == ["JOB_STATE_CANCELLED"]
    with pytest.raises(exceptions.BadRequest, match="already ended in JOB_STATE_CANCELLED"):
        jobs.update_job(cancel, metadata=token)


def test_messages_are_filtered_by_time_and_importance(
    client: Clients, http: httpx.Client, token: Metadata
) -> None:
    made = create(http)
    http.put(f"{JOBS}/{made['id']}", json={"requestedState": 5})
    messages = client("MessagesV1Beta3")
    where = {**WHERE, "job_id": made["id"]}
    found = list(messages.list_job_messages(df.ListJobMessagesRequest(**where), metadata=token))
    assert found[0].message_text == "Worker configuration: n1-standard-4 in us-central1."
    assert found[0].message_importance == df.JobMessageImportance.JOB_MESSAGE_BASIC
    later = df.ListJobMessagesRequest(**where, start_time=found[1].time)
    assert [one.id for one in messages.list_job_messages(later, metadata=token)] == [one.id for one in found[1:]]
    errors = df.ListJobMessagesRequest(**where, minimum_importance=df.JobMessageImportance.JOB_MESSAGE_ERROR)
    assert not list(messages.list_job_messages(errors, metadata=token))
    metrics = client("MetricsV1Beta3").get_job_metrics(df.GetJobMetricsRequest(**where), metadata=token)
    assert list(metrics.metrics) == []


def test_lists_come_in_pages_and_over_all_locations(client: Clients, http: httpx.Client, token: Metadata) -> None:
    names = [f"job-{n}" for n in range(5)]
    for name in names:
        create(http, name)
    http.post(JOBS.replace("us-central1", "europe-west4"), json=job("abroad")).raise_for_status()
    jobs = client("JobsV1Beta3")
    found = jobs.list_jobs(df.ListJobsRequest(**WHERE, page_size=2), metadata=token)
    assert [one.name for one in found] == names[::-1]
    everywhere = df.ListJobsRequest(project_id="my-project")
    assert len(list(jobs.aggregated_list_jobs(everywhere, metadata=token))) == 6
    assert {one["location"] for one in http.get("/v1b3/projects/my-project/jobs").json()["jobs"]} == {
        "us-central1",
        "europe-west4",
    }


def test_a_job_of_another_location_is_not_found(client: Clients, http: httpx.Client, token: Metadata) -> None:
    made = create(http)
    elsewhere = df.GetJobRequest(project_id="my-project", location="europe-west4", job_id=made["id"])
    with pytest.raises(exceptions.NotFound, match="could not be found in our system"):
        client("JobsV1Beta3").get_job(elsewhere, metadata=token, retry=None)


def test_another_project_is_forbidden(client: Clients, token: Metadata) -> None:
    request = df.CreateJobRequest(project_id="other", location="us-central1", job=df.Job(name="a"))
    with pytest.raises(
        exceptions.Forbidden, match=r"Permission 'dataflow\.jobs\.create' denied on project: 'other'"
    ):
        client("JobsV1Beta3").create_job(request, metadata=token)
    with pytest.raises(exceptions.Forbidden, match=r"'dataflow\.jobs\.list' denied"):
        list(client("JobsV1Beta3").list_jobs(df.ListJobsRequest(project_id="other"), metadata=token))


def test_who_brings_no_token_is_not_let_in(sandbox: Sandbox) -> None:
    reply = httpx.get(f"{sandbox.url}{JOBS}")
    assert (reply.status_code, reply.json()["error"]["status"]) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (JOBS.replace("us-central1", "mars"), job(), "invalid or unreachable region (mars)"),
        (JOBS, job("Not A Name"), "job name 'Not A Name' is invalid"),
        (JOBS, job(machine_type="huge-9"), "machine type 'huge-9' is invalid"),
        (JOBS, job(temp="gs://absent/tmp"), "temporary bucket 'absent'"),
        (JOBS, {"name": "a"}, "no staged pipeline"),
    ],
)
def test_a_job_that_cannot_be_is_refused(http: httpx.Client, path: str, fields: Any, message: str) -> None:
    reply = http.post(path, json=fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["status"] == "INVALID_ARGUMENT"
    assert message in reply.json()["error"]["message"]


def test_a_staging_bucket_must_be_there(http: httpx.Client) -> None:
    fields = job()
    fields["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"] = "gs://absent/pipeline.pb"
    assert "staging bucket 'absent'" in http.post(JOBS, json=fields).json()["error"]["message"]


@pytest.mark.parametrize("machine_type", ["n1-standard-1", "g2-standard-12", "e2-custom-4-8192", "a2-highgpu-1g"])
def test_machine_types_of_known_families_are_taken(http: httpx.Client, machine_type: str) -> None:
    assert create(http, machine_type=machine_type)["id"]


def test_streams_are_not_emulated_and_batches_are_not_drained(http: httpx.Client) -> None:
    assert http.post(JOBS, json=job(type=2)).status_code == 501
    made = create(http)
    reply = http.put(f"{JOBS}/{made['id']}", json={"requestedState": "JOB_STATE_DRAINED"})
    assert (reply.status_code, reply.json()["error"]["status"]) == (400, "FAILED_PRECONDITION")
    assert http.post(f"{JOBS}/{made['id']}:snapshot").status_code == 404
    assert http.get(f"{JOBS}/{made['id']}/messages", params={"startTime": "soon"}).status_code == 400
    assert http.post(JOBS, content=b"{").json()["error"]["message"] == "Invalid JSON payload received."


def test_faults_reach_clients_of_both_protocols(client: Clients, sandbox: Sandbox, token: Metadata) -> None:
    jobs, listing = client("JobsV1Beta3"), df.ListJobsRequest(**WHERE)
    for fault, error in {
        Fault(kind="error", http_status=503): exceptions.ServiceUnavailable,
        Fault(kind="error", http_status=403): exceptions.Forbidden,
        Fault(kind="rate-limit"): exceptions.TooManyRequests,
    }.items():
        sandbox.faults.queue("dataflow.jobs.list", fault)
        with pytest.raises(error):
            list(jobs.list_jobs(listing, metadata=token, retry=None))
    sandbox.faults.assert_all_consumed()
    assert sandbox.stats()["methods"]["dataflow.jobs.list"]["by_http_status"] == {"503": 1, "403": 1, "429": 1}


def test_an_answer_that_is_lost_over_grpc_has_been_given(
    sandbox: Sandbox, http: httpx.Client, token: Metadata
) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{sandbox.start_grpc()}") as channel:
        jobs = df.JobsV1Beta3Client(transport=df.JobsV1Beta3Client.get_transport_class("grpc")(channel=channel))
        request = df.CreateJobRequest(**WHERE, job=df.Job.from_json(json.dumps(job())))
        sandbox.faults.queue("dataflow.jobs.create", Fault(kind="drop"))
        with pytest.raises(exceptions.ServiceUnavailable):
            jobs.create_job(request, metadata=token, retry=None)
        sandbox.faults.queue("dataflow.jobs.create", Fault(kind="hang"))
        with pytest.raises(exceptions.DeadlineExceeded):
            jobs.create_job(request, metadata=token, retry=None, timeout=0.3)
    assert len(sandbox.dataflow.jobs) == 1


def launch(**fields: Any) -> dict[str, Any]:
    return {"launchParameter": {"jobName": "flex", "containerSpecGcsPath": "gs://rows/t.json", **fields}}


@pytest.mark.parametrize(
    ("template", "fields", "http_status", "message"),
    [
        (None, {}, 404, "Unable to open template file: gs://rows/t.json."),
        ("{", {}, 400, "Unable to parse template file 'gs://rows/t.json'"),
        ("{}", {}, 400, "it names no container image"),
        (json.dumps(TEMPLATE), {}, 400, "input: Missing required parameter"),
        (json.dumps(TEMPLATE), {"parameters": {"input": "a", "b": "c"}}, 400, "b: Unrecognized parameter"),
        (None, {"containerSpecGcsPath": "t.json"}, 400, "not a gs:// path"),
        (None, {"containerSpec": {"image": "i"}, "environment": {"machineType": "x"}}, 400, "machine type 'x'"),
        (
            None,
            {"containerSpec": {"image": "i"}, "environment": {"tempLocation": "gs://no/t"}},
            400,
            "bucket 'no'",
        ),
    ],
)
def test_a_template_that_cannot_be_launched_is_refused(
    http: httpx.Client, template: str | None, fields: dict[str, Any], http_status: int, message: str
) -> None:
    if template is not None:
        http.post("/upload/storage/v1/b/rows/o?uploadType=media&name=t.json", content=template)
    reply = http.post(LAUNCH, json=launch(**fields))
    assert reply.status_code == http_status
    assert message in reply.json()["error"]["message"]


def test_a_template_can_be_checked_and_is_queued_once(
    client: Clients, http: httpx.Client, sandbox: Sandbox, token: Metadata
) -> None:
    templates = client("FlexTemplatesService")
    parameter = df.LaunchFlexTemplateParameter(job_name="flex", container_spec_gcs_path="gs://rows/t.json")
    http.post("/upload/storage/v1/b/rows/o?uploadType=media&name=t.json", content='{"image": "i"}')
    request = df.LaunchFlexTemplateRequest(**WHERE, launch_parameter=parameter, validate_only=True)
    assert not templates.launch_flex_template(request, metadata=token).job.id
    assert sandbox.dataflow.jobs == []
    request.validate_only = False
    queued = templates.launch_flex_template(request, metadata=token).job
    assert queued.current_state == df.JobState.JOB_STATE_QUEUED
    with pytest.raises(exceptions.Conflict, match="already an active job named flex"):
        templates.launch_flex_template(request, metadata=token)
    http.put(f"{JOBS}/{queued.id}", json={"requestedState": "JOB_STATE_CANCELLED"}).raise_for_status()
    assert sandbox.stats()["dataflow_jobs"] == {"CANCELLED": 1}


def test_the_environment_of_a_launch_becomes_options() -> None:
    environment = {
        "machineType": "n1-standard-2",
        "maxWorkers": 3,
        "ipConfiguration": "WORKER_IP_PRIVATE",
        "additionalExperiments": ["use_runner_v2"],
        "tempLocation": "gs://rows/tmp",
    }
    launch = Launch(name="flex", parameters={"input": "a=b"}, environment=environment, labels={"team": "search"})
    job = Jobs(time.time).add("my-project", "us-central1", {"name": "flex"}, "JOB_STATE_QUEUED")
    assert arguments(launch, job) == [
        "--input=a=b",
        "--runner=DataflowRunner",
        "--project=my-project",
        "--region=us-central1",
        f"--template_location=gs://rows/tmp/template_launches/{job.id}/job_object",
        "--job_name=flex",
        "--temp_location=gs://rows/tmp",
        "--staging_location=gs://rows/tmp",
        "--worker_machine_type=n1-standard-2",
        "--max_num_workers=3",
        "--no_use_public_ips",
        "--labels=team=search",
        "--experiments=use_runner_v2",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, r"`DataflowSettings\.workers` must be >= 1"),
        ({"bundle_repeats": -1}, r"`DataflowSettings\.bundle_repeats` must be >= 0"),
        ({"start_seconds": -1}, r"`DataflowSettings\.start_seconds` must be >= 0"),
        ({"flex_launcher": ()}, r"`DataflowSettings\.flex_launcher` must be a command"),
    ],
)
def test_settings_out_of_bounds_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataflowSettings(**options)


def test_grpc_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox() as sandbox:
        monkeypatch.setitem(sys.modules, "grpc", None)
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'apache-beam\[gcp\]'"):
            sandbox.start_grpc()
    with pytest.raises(RuntimeError, match="not running"):
        sandbox.start_grpc()


def test_a_job_says_what_it_needs() -> None:
    assert "Missing: apache_beam.io" in explained(ModuleNotFoundError(name="apache_beam.io"))
    assert "Workflow failed" in explained(ModuleNotFoundError(name="other"))


def test_a_job_without_its_files_fails_with_a_message() -> None:
    with (
        Sandbox(buckets=("rows",)) as sandbox,
        httpx.Client(base_url=sandbox.url, headers=authorized(sandbox)) as http,
    ):
        assert http.post("/sandbox/dataflow/jobs/none/kill-harness").status_code == 404
        job_id = create(http)["id"]
        while sandbox.dataflow.jobs[0]["currentState"] != "JOB_STATE_FAILED":
            assert http.get(f"{JOBS}/{job_id}").status_code == 200
        *_, last = http.get(f"{JOBS}/{job_id}/messages").json()["jobMessages"]
    assert last["messageImportance"] == "JOB_MESSAGE_ERROR"
    assert "Staged file 'gs://rows/staging/pipeline.pb' cannot be read" in last["messageText"]
