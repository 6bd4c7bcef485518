"""The trial jobs of `--send`, which are ordinary runs."""

from __future__ import annotations

import pytest
from llmbeam_sandbox import BatchSettings

from airflow_provider_llmbeam.doctor.send import send, trials_of
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.inference import PILOT_ROWS

JOB = {
    "name": "moods",
    "deployment": "test",
    "source": {"type": "files", "uri": "gs://rows/in.jsonl", "key": "id"},
    "prompt": "{{ row.text }}",
    "model": {"type": "gemini", "name": "gemini-2.5-flash", "project": "llmbeam-sandbox"},
    "sink": {"type": "files", "uri": "gs://rows/out"},
}
DATAFLOW = {"type": "dataflow", "location": "us-central1", "project": "llmbeam-sandbox"}


def test_a_job_online_has_a_trial_of_one_prompt_on_this_machine():
    ((name, trial),) = trials_of(JobSpec.parse(JOB), "1")
    assert name == "one prompt"
    assert (len(trial.source.rows), trial.runner.type, trial.inference.mode) == (1, "direct", "online")
    assert trial.limits.budget_usd is not None
    assert trial.sink.uri.startswith("gs://rows/out/doctor/")


def test_batch_inference_has_a_trial_of_one_line():
    job = JobSpec.parse({**JOB, "inference": {"mode": "batch"}})
    _, (name, trial) = trials_of(job, "1")
    assert (name, trial.inference.mode, len(trial.source.rows)) == (
        "one line of batch inference",
        "batch",
        PILOT_ROWS + 1,
    )


def test_dataflow_has_a_trial_of_ten_rows():
    (_, prompt), (name, trial) = trials_of(JobSpec.parse({**JOB, "runner": DATAFLOW}), "1")
    assert (name, trial.runner.type, len(trial.source.rows)) == ("ten rows on Dataflow", "dataflow", 10)
    assert prompt.name != trial.name


def test_a_trial_is_sent_and_its_failure_is_a_finding(google, sandbox):
    (found,) = send(JobSpec.parse(JOB), "1", {})
    assert (found.verdict, found.subject) == ("holds", "one prompt"), found
    assert [each.method for each in sandbox.requests].count("gemini.generateContent") == 1
    broken = JOB | {"model": JOB["model"] | {"name": "text-bison"}}
    (found,) = send(JobSpec.parse(broken), "2", {})
    assert found.verdict == "fault"
    assert "no such model there" in found.sentence


@pytest.mark.full
def test_ten_rows_are_sent_on_dataflow(google, sandbox):
    trials = {found.subject: found for found in send(JobSpec.parse({**JOB, "runner": DATAFLOW}), "3", {})}
    assert trials["ten rows on Dataflow"].verdict == "holds", trials
    assert trials["ten rows on Dataflow"].sentence.startswith("10 answered")


@pytest.mark.full
def test_a_line_of_batch_inference_is_sent(google, sandbox):
    job = JobSpec.parse({**JOB, "inference": {"mode": "batch"}})
    trials = {found.subject: found for found in send(job, "4", {})}
    assert trials["one line of batch inference"].verdict == "holds", trials
    assert {charge.tier: charge.answers for charge in sandbox.token_bill.charges} == {
        "standard": 1 + PILOT_ROWS,
        "batch": 1,
    }


@pytest.mark.full
def test_a_line_that_batch_inference_does_not_answer_in_time_is_said_to_be(google, sandbox, monkeypatch):
    monkeypatch.setattr("airflow_provider_llmbeam.doctor.send._BATCH_SECONDS", 1.0)
    sandbox.batches.settings = BatchSettings(outcome="stuck")
    job = JobSpec.parse({**JOB, "inference": {"mode": "batch"}})
    trials = {found.subject: found for found in send(job, "5", {})}
    assert trials["one line of batch inference"].verdict == "unknown", trials
