"""The stop file of a job: every worker records what is in flight, and sends nothing more."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import until

from airflow_provider_llmbeam.exceptions import JobCancelledError
from airflow_provider_llmbeam.pipeline.__main__ import estimate, run
from airflow_provider_llmbeam.pipeline.run_inference import CANCELLATION_SECONDS, LLMModelHandler
from airflow_provider_llmbeam.spec import GeminiModel, JobSpec, Limits

GEMINI = "gemini.generateContent"
ROWS = [{"id": number, "text": f"row {number}"} for number in range(60)]


@pytest.fixture
def quick_poll(monkeypatch):
    monkeypatch.setattr("airflow_provider_llmbeam.pipeline.engine_thread.STOP_POLL_SECONDS", 0.0)


def test_a_stopped_job_records_what_is_in_flight_and_a_later_run_pays_for_the_rest_alone(job, sandbox, quick_poll):
    job.write(ROWS)
    job.spec["limits"] |= {"max_in_flight": 8, "request_timeout_seconds": 60}
    spec = JobSpec.parse(job.spec)
    hold = sandbox.faults.hold(GEMINI, "row", after=20)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, spec)
        until(lambda: hold.waiting, "requests are held")
        Path(spec.stop_uri).touch()
        # An object store shows a segment when it is closed, and a worker may end before its last requests do.
        (first,) = Path(spec.journal_uri).glob("*.jsonl")
        until(lambda: not is_open(first), "the segment is closed while requests are in flight")
        hold.release()
        with pytest.raises(JobCancelledError, match=r"nothing more is sent or billed"):
            running.result()
    assert len(sandbox.requests) == 20 + 8  # answered before, and in flight
    assert len(job.run().answers) == len(sandbox.requests) == 60
    assert not Path(spec.stop_uri).exists()


def test_a_batch_waits_for_the_cancellation_of_its_job_when_what_was_in_flight_is_recorded(
    tmp_path, monkeypatch, sandbox, quick_poll
):
    waits: list[tuple[float, int]] = []

    def sleep(seconds: float) -> None:
        entries = (path.read_bytes().splitlines() for path in tmp_path.glob("journal/*.jsonl"))
        waits.append((seconds, sum(map(len, entries))))

    monkeypatch.setattr("airflow_provider_llmbeam.pipeline.run_inference.time", SimpleNamespace(sleep=sleep))
    handler = LLMModelHandler(
        GeminiModel(type="gemini", base_url=sandbox.gemini_url),
        limits=Limits(max_in_flight=8),
        journal_uri=f"{tmp_path}/journal/",
        stop_uri=f"{tmp_path}/stop",
        awaits_cancellation=True,
    )
    hold = sandbox.faults.hold(GEMINI, "row", after=20)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: handler.run_inference([row["text"] for row in ROWS], handler.load_model()))
        until(lambda: hold.waiting == 8, "requests are in flight")
        (tmp_path / "stop").touch()
        (first,) = tmp_path.glob("journal/*.jsonl")
        until(lambda: not is_open(first), "the segment is closed")
        hold.release()
        with pytest.raises(JobCancelledError):
            running.result()
    assert waits == [(CANCELLATION_SECONDS, len(sandbox.requests))]


def is_open(path: Path) -> bool:
    """Whether this process has a file open."""
    return any(link.exists() and link.resolve() == path for link in Path("/proc/self/fd").iterdir())


def test_an_estimate_is_not_ended_by_the_stop_file_of_an_earlier_job(job, sandbox, quick_poll):
    job.write(ROWS)
    spec = JobSpec.parse(job.spec)
    Path(spec.stop_uri).parent.mkdir(parents=True)
    Path(spec.stop_uri).touch()
    assert estimate(spec, 4)["sample_usage"]["requests"] == 4
