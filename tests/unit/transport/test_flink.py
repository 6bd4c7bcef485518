"""`FlinkCluster` against the sandbox's Flink."""

from __future__ import annotations

import pytest
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.exceptions import (
    AccessDeniedError,
    CloudNotFoundError,
    CloudUnavailableError,
    RequestRefusedError,
)
from airflow_provider_llmbeam.spec.remote_job import flink_cancel_command
from airflow_provider_llmbeam.transport.flink import PHASES, FlinkCluster, job_of


@pytest.fixture
def cluster(sandbox):
    return FlinkCluster(sandbox.flink_url)


def test_a_cluster_tells_its_version_and_its_configuration(cluster):
    assert cluster.overview()["flink-version"] == "1.19.3"
    assert cluster.configuration() == {"restart-strategy.type": "fixed-delay"}


def test_jobs_are_found_by_the_beginning_of_their_names_the_newest_first(cluster, sandbox):
    jobs = sandbox.flink.jobs
    old, new = jobs.add("judge-0123456789ab-00000001"), jobs.add("judge-0123456789ab-00000002")
    new.started_at += 1
    jobs.add("judge-0123456789ab-00000001-x")
    jobs.add("other")
    assert [job.job_id for job in cluster.find("judge-0123456789ab")] == [new.id, old.id]
    jobs.move(new, "FINISHED")
    assert [job.job_id for job in cluster.find("judge-0123456789ab", active_only=True)] == [old.id]


def test_a_job_is_read_and_cancelled_and_one_that_has_ended_is_left(cluster, sandbox):
    job = sandbox.flink.jobs.add("n")
    found = cluster.get(job.id)
    assert (found.name, found.phase, found.is_over) == ("n", "running", False)
    cluster.cancel(job.id)
    assert cluster.get(job.id).phase == "cancelled"
    cluster.cancel(job.id)
    assert [each.http_status for each in sandbox.requests if each.method == "flink.jobs.cancel"] == [202, 409]


def test_the_errors_of_a_job_are_read_the_oldest_first(cluster, sandbox):
    job = sandbox.flink.jobs.add("n")
    assert cluster.error_messages(job.id) == []
    sandbox.flink.jobs.move(
        job, "RESTARTING", "java.lang.Exception: TaskManager with id tm0 is no longer reachable."
    )
    frame = "\tat org.x.Y.run(Y.java:3)"
    trace = f"java.lang.Exception: Recovery is suppressed\n{frame}\nCaused by: out of restarts\n\t... 9 more"
    sandbox.flink.jobs.move(job, "FAILED", trace)
    assert [text.rpartition(": ")[2] for text in cluster.error_messages(job.id)] == [
        "TaskManager with id tm0 is no longer reachable.",
        "out of restarts",
    ]


def test_the_errors_of_a_job_are_texts_for_people(cluster, sandbox):
    job = sandbox.flink.jobs.add("n")
    sandbox.flink.jobs.move(job, "FAILED", "Caused by: no \x1b[2J with Bearer 0123456789abcdef")
    assert cluster.error_messages(job.id) == ["Caused by: no ␛[2J with Bearer ***"]


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault(kind="error", http_status=503), CloudUnavailableError, "ongoing leader election"),
        (Fault(kind="error", http_status=401, message="who?"), AccessDeniedError, "(HTTP 401): who?"),
        (Fault(kind="error", http_status=400, message="no"), RequestRefusedError, "(HTTP 400): no"),
        (Fault(kind="garbage"), CloudUnavailableError, "(HTTP 200): <"),
        (Fault(kind="disconnect"), CloudUnavailableError, "Flink did not answer GET http://127.0.0.1:"),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_what_is_not_an_answer_is_an_error_with_its_reason(cluster, sandbox, fault, error, words):
    sandbox.faults.queue("flink.overview", fault)
    with pytest.raises(error) as caught:
        cluster.overview()
    assert words in str(caught.value)


def test_an_unknown_job_is_not_found(cluster):
    with pytest.raises(CloudNotFoundError, match=r"NotFoundException: Job 0{32} not found"):
        cluster.get("0" * 32)


def test_a_cluster_that_is_not_there_is_unavailable():
    with pytest.raises(CloudUnavailableError, match=r"Flink did not answer GET http://127\.0\.0\.1:9/overview"):
        FlinkCluster("http://127.0.0.1:9").overview()


def test_a_state_of_a_later_version_is_unknown_and_not_over():
    job = job_of({"jid": "1", "name": "n", "state": "ARCHIVING"})
    assert (job.phase, job.is_over) == ("unknown", False)
    over = {state for state, phase in PHASES.items() if phase not in ("running", "cancelling")}
    assert over == {"FAILED", "CANCELED", "FINISHED"}


def test_the_command_that_cancels_a_job_is_that_of_the_api():
    command = flink_cancel_command("http://jm:8081", "57ad")
    assert command == "curl -X PATCH 'http://jm:8081/jobs/57ad?mode=cancel'"
