"""The stop file of a job: every worker records what is in flight, and sends nothing more."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import until

from airflow_provider_llmbeam.beam import LLMModelHandler
from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.exceptions import JobCancelledError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.job_handler import CANCELLATION_SECONDS
from airflow_provider_llmbeam.spec import GeminiModel, JobSpec, Limits
from airflow_provider_llmbeam.spec.runner import FlinkRunner
from tests.pipeline.conftest import estimate

pytestmark = pytest.mark.promise(2)
GEMINI = "gemini.generateContent"
ROWS = [{"id": number, "text": f"row {number}"} for number in range(60)]


@pytest.fixture
def quick_poll(monkeypatch):
    monkeypatch.setattr("airflow_provider_llmbeam.pipeline.engine_thread.STOP_POLL_SECONDS", 0.0)


@pytest.fixture
def stopped(monkeypatch):
    """An event that is set when an engine was told to end."""
    event, stop = threading.Event(), Engine.stop

    def stop_and_tell(engine: Engine, error: Exception) -> None:
        stop(engine, error)
        event.set()

    monkeypatch.setattr(Engine, "stop", stop_and_tell)
    return event


def test_a_stopped_job_records_what_is_in_flight_and_a_later_run_pays_for_the_rest_alone(
    job, sandbox, quick_poll, stopped
):
    job.write(ROWS)
    job.spec["limits"] |= {"max_in_flight": 8}
    spec = JobSpec.parse(job.spec)
    hold = sandbox.faults.hold(GEMINI, "row", after=20)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, spec)
        until(lambda: hold.waiting, "requests are held")
        Path(spec.paths.stop_uri).touch()
        until(stopped.is_set, "the engine is told to end")
        hold.release()
        with pytest.raises(JobCancelledError, match=r"nothing more is sent or billed"):
            running.result()
    assert len(sandbox.requests) == 20 + 8  # answered before, and in flight
    assert len(job.run().answers) == len(sandbox.requests) == 60
    assert not Path(spec.paths.stop_uri).exists()


def test_a_batch_waits_for_the_cancellation_of_its_job_when_what_was_in_flight_is_recorded(
    tmp_path, monkeypatch, sandbox, quick_poll, stopped
):
    waits: list[tuple[float, int]] = []

    def sleep(seconds: float) -> None:
        entries = (path.read_bytes().splitlines() for path in tmp_path.glob("journal/*.jsonl"))
        waits.append((seconds, sum(map(len, entries))))

    monkeypatch.setattr("airflow_provider_llmbeam.pipeline.job_handler.time", SimpleNamespace(sleep=sleep))
    handler = LLMModelHandler(
        GeminiModel(type="gemini", base_url=sandbox.gemini_url),
        limits=Limits(max_in_flight=8),
        journal_uri=f"{tmp_path}/journal/",
    )
    handler.context = replace(handler.context, stop_uri=f"{tmp_path}/stop")
    handler.spec = handler.spec.model_copy(update={"runner": FlinkRunner.model_construct()})
    hold = sandbox.faults.hold(GEMINI, "row", after=20)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: handler.run_inference([row["text"] for row in ROWS], handler.load_model()))
        until(lambda: hold.waiting == 8, "requests are in flight")
        (tmp_path / "stop").touch()
        until(stopped.is_set, "the engine is told to end")
        hold.release()
        with pytest.raises(JobCancelledError):
            running.result()
    assert waits == [(CANCELLATION_SECONDS, len(sandbox.requests))]


def test_a_stopped_worker_stores_its_answers_before_the_requests_in_flight_are_awaited(
    google, sandbox, quick_poll, tmp_path
):
    """An object store has a file once it is closed, and a worker may end before its last requests do."""
    handler = LLMModelHandler(
        GeminiModel(type="gemini", base_url=sandbox.gemini_url),
        limits=Limits(max_in_flight=64),  # so that four of twenty answers wait for others to be stored with
        journal_uri="gs://rows/journal/",
    )
    handler.context = replace(handler.context, stop_uri=f"{tmp_path}/stop")

    def stored() -> int:
        return sum(len(storage.open(uri).readlines()) for uri in storage.match("gs://rows/journal/*"))

    hold = sandbox.faults.hold(GEMINI, "row", after=20)
    with ThreadPoolExecutor(1) as pool:
        texts = [f"row {number}" for number in range(20 + 2 * 64)]  # more than are answered or in flight
        running = pool.submit(lambda: handler.run_inference(texts, handler.load_model()))
        until(lambda: hold.waiting, "twenty requests are answered, and others are held")
        until(
            lambda: stored() >= 16,
            lambda: f"two objects are stored; {stored()} answers are",
        )
        assert stored() == 16
        (tmp_path / "stop").touch()
        until(lambda: stored() == 20, lambda: f"all answers are stored; {stored()} are")
        hold.release()
        with pytest.raises(JobCancelledError):
            running.result()
    assert stored() == len(sandbox.requests.paid(GEMINI))


def test_an_estimate_is_not_ended_by_the_stop_file_of_an_earlier_job(job, sandbox, quick_poll):
    job.write(ROWS)
    spec = JobSpec.parse(job.spec)
    Path(spec.paths.stop_uri).parent.mkdir(parents=True)
    Path(spec.paths.stop_uri).touch()
    assert estimate(spec, 4)["sample_usage"]["requests"] == 4
