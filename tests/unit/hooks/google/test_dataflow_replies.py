from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime

import pytest
from google.cloud.dataflow_v1beta3 import Job, JobMessage, JobMetrics, JobState

from airflow_provider_llmbeam.hooks.dataflow import counts_of, job_of, texts_of
from airflow_provider_llmbeam.spec.protocol.counts import Counts


def metric(name, value, *, step="s1", tentative=False, namespace="llmbeam"):
    context = {"step": step, "namespace": namespace, **({"tentative": "true"} if tentative else {})}
    return {"name": {"origin": "user", "name": name, "context": context}, "kind": "SUM", "scalar": value}


def counts(*metrics, running=True):
    return counts_of(JobMetrics({"metrics": list(metrics)}).metrics, running=running)


def test_a_job_is_read_with_its_time_labels_and_successor():
    reply = Job.from_json(
        '{"id": "j", "name": "n", "currentState": "JOB_STATE_UPDATED", "createTime": "2026-11-20T01:02:03.5Z",'
        ' "labels": {"llmbeam-job": "n"}, "replacedByJobId": "k"}'
    )
    job = job_of(reply)
    assert (job.job_id, job.name, job.state, job.replaced_by) == ("j", "n", "JOB_STATE_UPDATED", "k")
    assert job.created_at == datetime(2026, 11, 20, 1, 2, 3, 500_000, UTC)
    assert job.labels == {"llmbeam-job": "n"}


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_is_read_by_its_name(state):
    assert job_of(Job(current_state=state)).state == state.name


def test_the_number_of_an_unknown_state_is_kept():
    assert job_of(Job(current_state=99)).state == "JOB_STATE_99"


def test_a_bare_job_is_read():
    job = job_of(Job())
    assert (job.state, job.created_at, job.replaced_by) == ("JOB_STATE_UNKNOWN", None, None)


def test_counters_are_summed_over_the_steps():
    assert counts(metric("rows", 3), metric("rows", 4, step="s2"), metric("failed", 1)) == Counts(rows=7, failed=1)


@pytest.mark.parametrize("field", [field.name for field in fields(Counts)])
def test_every_count_has_a_counter_of_its_name(field):
    assert getattr(counts(metric(field, 2)), field) == 2


def test_a_running_job_is_counted_with_its_bundles_in_progress_and_an_ended_one_without():
    both = (metric("rows", 5), metric("rows", 8, tentative=True), metric("rows", 2, step="s2", tentative=True))
    assert counts(*both, running=True) == Counts(rows=10)
    assert counts(*both, running=False) == Counts(rows=7)


def test_counters_of_other_namespaces_are_ignored():
    assert counts(metric("rows", 5, namespace="beam"), metric("ElementCount", 5)) == Counts()


@pytest.mark.parametrize("value", [12, 12.0, "12"])
def test_a_counter_value_can_be_text(value):
    assert counts(metric("rows", value)) == Counts(rows=12)


def test_a_counter_without_a_number_is_ignored():
    nothing = {"name": {"origin": "user", "name": "rows", "context": {"namespace": "llmbeam"}}}
    assert counts(nothing, metric("rows", [1])) == Counts()


def test_messages_of_workers_hold_no_bearer_token():
    assert texts_of([JobMessage(message_text="401: Bearer 0123456789abcdef")], 1) == ["401: Bearer ***"]


def test_messages_are_deduplicated_and_limited_to_the_latest():
    messages = [JobMessage(message_text=text) for text in ("a", "b", "a", "b", "c", "d")]
    assert texts_of(messages, 10) == ["a", "b", "c", "d"]
    assert texts_of(messages, 2) == ["c", "d"]
