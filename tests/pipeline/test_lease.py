"""The lease of a job: it runs once at a time, and its next run need not wait for a process that has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from google.cloud.storage import Client
from waiting import until

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline import lease as lease_module
from airflow_provider_llmbeam.pipeline.__main__ import run
from airflow_provider_llmbeam.pipeline.lease import ObjectLease
from airflow_provider_llmbeam.spec import JobSpec

GEMINI = "gemini.generateContent"
ROWS = [{"id": number, "text": f"row {number}"} for number in range(30)]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(lease_module, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(lease_module, "RENEWAL_SECONDS", 0.2)
    monkeypatch.setattr(lease_module, "LOCK_SECONDS", 0.5)


@pytest.fixture(params=["local", "gs"])
def spec(request, job, sandbox):
    job.write(ROWS)
    if request.param == "local":
        return JobSpec.parse(job.spec)
    request.getfixturevalue("google")
    return JobSpec.parse(job.spec | {"sink": {"uri": "gs://rows/out"}})


def test_a_job_that_is_started_twice_at_once_runs_once(spec, sandbox, quick):
    hold = sandbox.faults.hold(GEMINI, "row", after=5)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run, spec)
        until(lambda: hold.waiting == len(ROWS) - 5, "all requests are sent")
        with pytest.raises(JobFailedError, match=rf"holds its lease.*{os.getpid()}.*billed nothing.*a retry"):
            run(spec)
        hold.release()
        assert first.result()["rows"]["answered"] == len(ROWS)
    assert sandbox.stats()["billed_answers"] == len(ROWS)
    assert run(spec)["rows"]["answered"] == len(ROWS)
    assert sandbox.stats()["billed_answers"] == len(ROWS)


def test_the_lease_of_a_killed_process_is_taken_over(spec, sandbox, tmp_path, quick, monkeypatch):
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 1.0)
    hold = sandbox.faults.hold(GEMINI, "row", after=5)
    path = tmp_path / "spec.json"
    path.write_text(spec.model_dump_json())
    child = subprocess.Popen(
        [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", f"--spec={path}"],
        env=os.environ | {"GOOGLE_API_KEY": "k"},
        stdout=subprocess.DEVNULL,
    )
    until(lambda: hold.waiting, "requests are held")
    child.kill()
    child.wait()
    hold.release()
    assert run(spec)["rows"]["answered"] == len(ROWS)


@pytest.mark.parametrize("spec", ["gs"], indirect=True)
def test_a_process_whose_lease_was_taken_over_ends(spec, sandbox, quick, monkeypatch):
    has_ended = threading.Event()
    monkeypatch.setattr(lease_module, "end_process", has_ended.set)
    hold = sandbox.faults.hold(GEMINI, "row", after=5)
    bucket = Client().bucket("rows")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run, spec)
        until(lambda: hold.waiting, "requests are held")
        other = bucket.blob("out/.llmbeam/job/lease")
        other.upload_from_string("{}")
        until(has_ended.is_set, "the first process ends")
        hold.release()
        first.result()
    assert other.exists()


@pytest.mark.parametrize("spec", ["gs"], indirect=True)
def test_a_renewal_whose_reply_was_lost_keeps_the_lease(spec, sandbox):
    bucket = Client().bucket("rows")
    lease = ObjectLease(bucket, "lease")
    lease.take("job", "gs://rows/lease")
    generation = lease._generation
    assert lease.renew()
    lease._generation = generation
    assert lease.renew()
    lease.release()
    assert not bucket.blob("lease").exists()


def test_a_lock_file_names_its_holder(job, sandbox):
    job.run(ROWS)
    holder = json.loads(Path(job.out, ".llmbeam", "job", "lease").read_text())
    assert holder["pid"] == os.getpid()
    assert {"host", "at"} <= set(holder)
