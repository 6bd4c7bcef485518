"""The real clients of Google against a server with scripted replies."""

from __future__ import annotations

import json

import pytest
from google.api_core.client_options import ClientOptions
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials

from airflow_provider_llmbeam.exceptions import (
    AccessDeniedError,
    CloudNotFoundError,
    CloudUnavailableError,
    JobSpecError,
    RequestRefusedError,
)
from airflow_provider_llmbeam.hooks import dataflow as module
from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook, belongs_to
from airflow_provider_llmbeam.hooks.google import base as google
from airflow_provider_llmbeam.spec.protocol.counts import Counts
from tests.unit.jobs.values import dataflow_job

JOBS = "/v1b3/projects/acme-prod/locations/europe-west1/jobs"
LAUNCH = "/v1b3/projects/acme-prod/locations/europe-west1/flexTemplates:launch"


def refusal(status, message, reason=None):
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "googleapis.com"}]
    return status, {"error": {"code": status, "message": message, "details": details if reason else []}}


@pytest.fixture
def hook(server, monkeypatch):
    """A hook for the server of this test, with short retry timeouts."""
    monkeypatch.setattr(google, "RETRY_SECONDS", 0.5)
    monkeypatch.setattr(module, "CANCEL_SECONDS", 0.5)

    class LocalHook(DataflowJobHook):
        def get_client_options(self, *arguments):
            return ClientOptions(api_endpoint=f"http://127.0.0.1:{server.server_port}")

        def get_credentials(self):
            return AnonymousCredentials()

    return LocalHook("europe-west1", "acme-prod")


def named(name, job_id, at, **fields):
    return {"id": job_id, "name": name, "createTime": f"2026-11-20T0{at}:00:00Z", **fields}


def test_a_job_is_requested_with_its_labels(server, hook):
    server.on("GET", f"{JOBS}/j", {"id": "j", "currentState": "JOB_STATE_RUNNING", "labels": {"a": "b"}})
    job = hook.get("j")
    assert (job.job_id, job.state, job.labels) == ("j", "JOB_STATE_RUNNING", {"a": "b"})
    assert server.received[0][2]["view"] == ["3"]


def test_the_jobs_of_an_identity_are_found_newest_first_over_all_pages(server, hook):
    mine = "nightly-0123456789ab"
    server.on(
        "GET",
        JOBS,
        {
            "jobs": [
                named(f"{mine}-00000001", "old", 1),
                named("another-0123456789ab-00000001", "other", 2),
            ],
            "nextPageToken": "more",
        },
        {
            "jobs": [
                named(f"{mine}-00000002", "new", 3),
                named("renamed", "middle", 2, labels={"llmbeam-job": mine}),
            ]
        },
    )
    for number, job_id, at in ((1, "old", 1), (2, "new", 3)):
        server.on("GET", f"{JOBS}/{job_id}", named(f"{mine}-0000000{number}", job_id, at, labels={"x": "y"}))
    assert [job.job_id for job in hook.find(mine)] == ["new", "middle", "old"]
    assert [request[2].get("pageToken") for request in server.received][:2] == [None, ["more"]]
    assert len(server.received) == 4, "jobs of others are not read"
    assert server.received[0][2]["filter"] == ["1"]


def test_active_only_requests_only_active_jobs(server, hook):
    server.on("GET", JOBS, {})
    assert hook.find("nightly-0123456789ab", active_only=True) == []
    assert server.received[0][2]["filter"] == ["3"]


@pytest.mark.parametrize(
    ("name", "labels", "belongs"),
    [
        ("nightly-00000001", {}, True),
        ("nightly-00000001", {"llmbeam-job": "nightly"}, True),
        ("nightly-00000001", {"llmbeam-job": "weekly"}, False),
        ("nightly-2-00000001", {}, False),
        ("nightly-zzzzzzzz", {}, False),
        ("nightly", {}, False),
        ("", {}, False),
    ],
)
def test_a_job_is_identified_by_its_label_or_its_name(name, labels, belongs):
    assert belongs_to(dataflow_job("j", name, "JOB_STATE_RUNNING", labels=labels), "nightly") is belongs


def test_a_job_is_cancelled(server, hook):
    server.on("PUT", f"{JOBS}/j", {"id": "j"})
    hook.cancel("j")
    assert server.received[0][3]["requestedState"] in (5, "JOB_STATE_CANCELLED")


def test_a_job_that_is_over_needs_no_cancellation(server, hook):
    server.on("PUT", f"{JOBS}/j", refusal(400, "Job j is in a terminal state."))
    server.on("GET", f"{JOBS}/j", {"id": "j", "currentState": "JOB_STATE_DONE"})
    hook.cancel("j")


def test_a_refused_cancellation_of_a_running_job_is_an_error(server, hook):
    server.on("PUT", f"{JOBS}/j", refusal(400, "Not now."))
    server.on("GET", f"{JOBS}/j", {"id": "j", "currentState": "JOB_STATE_RUNNING"})
    with pytest.raises(RequestRefusedError, match=r"did not cancel job 'j' \(HTTP 400\): Not now\."):
        hook.cancel("j")


def test_the_errors_of_a_job_are_read(server, hook):
    texts = [{"messageText": text} for text in ("a", "a", "b")]
    server.on("GET", f"{JOBS}/j/messages", {"jobMessages": texts})
    assert hook.error_messages("j") == ["a", "b"]
    assert server.received[0][2]["minimumImportance"] == ["4"]


def test_the_counters_of_a_job_are_read(server, hook):
    name = {"origin": "user", "name": "rows", "context": {"namespace": "llmbeam", "step": "s1"}}
    server.on("GET", f"{JOBS}/j/metrics", {"metrics": [{"name": name, "scalar": 7}]})
    assert hook.counts("j") == Counts(rows=7)


def launch(hook):
    return hook.launch_flex_template(
        "gs://rows/template.json",
        name="nightly-00000001",
        parameters={"spec": "{}"},
        environment={"max_workers": 3},
        labels={"llmbeam-job": "nightly"},
    )


def test_a_template_is_launched(server, hook):
    server.on("POST", LAUNCH, {"job": {"id": "j", "currentState": "JOB_STATE_QUEUED"}})
    assert launch(hook).job_id == "j"
    parameter = server.received[0][3]["launchParameter"]
    assert parameter["containerSpecGcsPath"] == "gs://rows/template.json"
    assert parameter["parameters"] == {"spec": "{}"}
    assert parameter["environment"]["maxWorkers"] == 3
    assert parameter["environment"]["additionalUserLabels"] == {"llmbeam-job": "nightly"}


def test_a_launch_that_conflicts_returns_the_running_job(server, hook):
    server.on("POST", LAUNCH, refusal(409, "There is a job of that name."))
    server.on("GET", JOBS, {"jobs": [named("nightly-00000001", "first", 1, currentState="JOB_STATE_RUNNING")]})
    assert launch(hook).job_id == "first"


def test_a_conflict_without_a_job_is_an_error(server, hook):
    server.on("POST", LAUNCH, refusal(409, "There is a job of that name."))
    server.on("GET", JOBS, {})
    with pytest.raises(JobSpecError, match=r"Nothing was sent or billed\.$"):
        launch(hook)


def test_a_missing_template_bills_nothing(server, hook):
    with pytest.raises(JobSpecError, match=r"There is no template 'gs://rows/template.json'.*Nothing was sent"):
        launch(hook)


def test_a_launch_without_a_reply_is_not_retried(server, hook):
    server.on("POST", LAUNCH, refusal(503, "Come back later."))
    with pytest.raises(CloudUnavailableError):
        launch(hook)
    assert len(server.received) == 1


def test_a_poll_is_retried_while_the_service_is_down(server, hook, monkeypatch):
    monkeypatch.setattr(google, "RETRY_SECONDS", 20.0)
    server.on("GET", f"{JOBS}/j", refusal(503, "Down."), {"id": "j", "currentState": "JOB_STATE_RUNNING"})
    assert hook.get("j").state == "JOB_STATE_RUNNING"
    assert len(server.received) == 2


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (refusal(400, "Bad id"), RequestRefusedError, r"\(HTTP 400\): Bad id\.$"),
        (refusal(401, "Who?"), AccessDeniedError, "missing or refused"),
        (refusal(403, "No."), AccessDeniedError, r"`roles/dataflow.developer` in project 'acme-prod'"),
        (
            refusal(403, "It is disabled.", "SERVICE_DISABLED"),
            AccessDeniedError,
            "`gcloud services enable dataflow.googleapis.com --project=acme-prod`",
        ),
        (refusal(403, "Off.", "BILLING_DISABLED"), AccessDeniedError, "no billing account"),
        (refusal(404, "Gone."), CloudNotFoundError, "There is no job 'j' in 'europe-west1'"),
        (refusal(429, "Slow."), CloudUnavailableError, "Slow"),
        (refusal(500, "Oops."), CloudUnavailableError, "Oops"),
        (refusal(502, "Gate."), CloudUnavailableError, "Gate"),
        (refusal(504, "Late."), CloudUnavailableError, "Late"),
        (refusal(501, "Never."), RequestRefusedError, "Never"),
        ("<html>a proxy</html>", CloudUnavailableError, "did not show job 'j'"),
    ],
)
def test_each_refusal_names_the_cause_and_the_remedy(server, hook, reply, error, words):
    server.on("GET", f"{JOBS}/j", reply)
    with pytest.raises(error, match=words) as caught:
        hook.get("j")
    assert type(caught.value) is error
    assert caught.value.retryable is (error is CloudUnavailableError)
    assert "http://" not in str(caught.value)


def test_an_unreachable_service_is_a_retryable_error(server, hook):
    server.shutdown()
    server.server_close()
    with pytest.raises(CloudUnavailableError, match="did not show job 'j'"):
        hook.get("j")


def test_a_missing_connection_is_an_error():
    with pytest.raises(AccessDeniedError, match="there is no connection 'acme'"):
        DataflowJobHook("europe-west1", gcp_conn_id="acme")


def test_the_connection_names_the_project(monkeypatch):
    extra = {"project": "from-connection", "is_anonymous": True}
    monkeypatch.setenv("AIRFLOW_CONN_ACME", json.dumps({"conn_type": "google_cloud_platform", "extra": extra}))
    assert DataflowJobHook("europe-west1", gcp_conn_id="acme").project == "from-connection"
    assert DataflowJobHook("europe-west1", "from-spec", "acme").project == "from-spec"


def test_a_missing_project_is_an_error(monkeypatch):
    monkeypatch.setenv(
        "AIRFLOW_CONN_ACME", '{"conn_type": "google_cloud_platform", "extra": {"is_anonymous": true}}'
    )
    with pytest.raises(JobSpecError, match=r"No Google Cloud project is named"):
        _ = DataflowJobHook("europe-west1", gcp_conn_id="acme").project


def test_an_unreadable_key_file_is_an_error(monkeypatch):
    extra = {"key_path": "/nowhere/key.json"}
    monkeypatch.setenv("AIRFLOW_CONN_ACME", json.dumps({"conn_type": "google_cloud_platform", "extra": extra}))
    with pytest.raises(AccessDeniedError, match=r"'acme'.*gives no credentials.*key.json"):
        DataflowJobHook("europe-west1", "acme-prod", "acme").get("j")


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (auth.DefaultCredentialsError("Your default credentials were not found."), AccessDeniedError),
        (auth.RefreshError("invalid_grant"), AccessDeniedError),
        (auth.TransportError("No route."), CloudUnavailableError),
    ],
)
def test_missing_credentials_are_an_error(raised, error):
    class Without(DataflowJobHook):
        def get_credentials(self):
            raise raised

    with pytest.raises(error):
        Without("europe-west1", "acme-prod").get("j")


def test_active_jobs_are_those_of_this_package_though_a_list_has_no_labels(server, hook):
    mine = "nightly-0123456789ab-00000001"
    going = {"currentState": "JOB_STATE_RUNNING"}
    jobs = [named(mine, "mine", 1, **going), named("etl", "other", 2, **going), named(mine, "like", 2, **going)]
    server.on("GET", JOBS, {"jobs": jobs})
    labels = {"llmbeam-job": "nightly-0123456789ab", "llmbeam-deployment": "prod"}
    server.on("GET", f"{JOBS}/mine", jobs[0] | {"labels": labels})
    server.on("GET", f"{JOBS}/like", jobs[2])
    (found,) = hook.active()
    assert (found.job_id, found.deployment) == ("mine", "prod")
