from __future__ import annotations

import asyncio
import importlib
from pathlib import Path

import pytest

from airflow_provider_llmbeam.jobs.outcome import JobResult
from airflow_provider_llmbeam.triggers.job import JobTrigger
from tests.unit.jobs.values import submitted_job


@pytest.fixture
def trigger(sandbox, monkeypatch, tmp_path):
    """Makes a trigger that polls a job of the sandbox without delays."""
    monkeypatch.setattr(JobTrigger, "first_poll_delay_seconds", 0.0)
    monkeypatch.setattr("airflow_provider_llmbeam.jobs.monitor.CANCELLING_SECONDS", 0.0)
    monkeypatch.setattr("airflow_provider_llmbeam.jobs.cancellation.DRAIN_SECONDS", 0.0)

    def make(job, **arguments):
        submitted = submitted_job(
            id=job.id,
            rest_url=sandbox.flink_url,
            progress_prefix=f"{tmp_path}/progress/1-",
            journal_uri=f"{tmp_path}/journal/",
            stop_uri=f"{tmp_path}/stop",
        )
        return JobTrigger(job=submitted.plain(), poll_interval_seconds=0.01, **arguments)

    return make


async def result_of(trigger):
    (payload,) = [event.payload async for event in trigger.run()]
    return JobResult.from_event(payload)


def test_a_trigger_round_trips_through_its_serialised_arguments(trigger, sandbox):
    made = trigger(sandbox.flink.jobs.add("n"), budget_usd=3.0)
    path, arguments = made.serialize()
    module, _, name = path.rpartition(".")
    copy = getattr(importlib.import_module(module), name)(**arguments)
    assert copy.serialize() == (path, arguments)
    assert (arguments["job"], arguments["budget_usd"]) == (made.job, 3.0)


def test_a_job_that_finishes_fires_one_event(trigger, sandbox):
    job = sandbox.flink.jobs.add("n", "INITIALIZING")
    sandbox.flink.jobs.move(job, "FINISHED")
    found = asyncio.run(result_of(trigger(job)))
    assert (found.outcome, found.state) == ("succeeded", "FINISHED")
    assert found.message == f"Flink job {job.id!r} is done."


def test_the_error_of_a_worker_keeps_its_class_and_its_sentence(trigger, sandbox):
    job = sandbox.flink.jobs.add("n")
    trace = (
        "java.lang.Exception: Error received from SDK harness for instruction 5: Traceback (most recent call "
        "last):\n"
        '  File "x.py", line 1, in process\n'
        "airflow_provider_llmbeam.exceptions.JobSpecError: 5 keys belong to several rows. Nothing was sent or "
        "billed. [while running 'Ask']\n"
        "\tat java.base/java.util.concurrent.CompletableFuture.get(CompletableFuture.java:396)\n\t... 7 more"
    )
    sandbox.flink.jobs.move(job, "FAILED", trace)
    found = asyncio.run(result_of(trigger(job)))
    assert found.error_type == "JobSpecError"
    assert found.message == f"Flink job {job.id!r}: 5 keys belong to several rows. Nothing was sent or billed."


def test_the_error_of_flink_is_its_cause(trigger, sandbox):
    job = sandbox.flink.jobs.add("n")
    sandbox.flink.jobs.move(
        job,
        "FAILED",
        "org.x.JobException: Recovery is suppressed\n\tat org.x.Y.z(Y.java:1)\nCaused by: tm0 is lost",
    )
    found = asyncio.run(result_of(trigger(job)))
    assert found.error_type == "JobFailedError"
    assert "Its last errors: Caused by: tm0 is lost" in found.message


def test_a_job_above_its_budget_is_told_to_stop_and_cancelled(trigger, sandbox, tmp_path):
    job = sandbox.flink.jobs.add("n")
    (tmp_path / "progress").mkdir()
    (tmp_path / "progress/1-a.json").write_text('{"rows": 3, "cost_nano_usd": 2000000000}')
    found = asyncio.run(result_of(trigger(job, budget_usd=1.0)))
    assert found.outcome == "over_budget"
    assert job.state == "CANCELED"
    assert (tmp_path / "stop").exists()


def test_a_task_that_is_marked_cancels_the_job(trigger, in_state, sandbox):
    job = sandbox.flink.jobs.add("n")
    made = in_state(trigger(job), "failed")
    asyncio.run(made.on_kill())
    assert job.state == "CANCELED"
    assert Path(made.job["stop_uri"]).exists()
