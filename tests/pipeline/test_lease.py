"""The lease of a job: it runs once at a time, and its next run need not wait for a process that has ended."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from google.cloud.storage import Client
from waiting import until

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline import lease as leases
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.lease import SILENT_SECONDS, Holder, Launcher, ObjectLease, hold_lock
from airflow_provider_llmbeam.spec import JobSpec

pytestmark = pytest.mark.promise(2)

GEMINI = "gemini.generateContent"
ROWS = [{"id": number, "text": f"row {number}"} for number in range(30)]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(leases, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(leases, "RENEWAL_SECONDS", 0.2)
    monkeypatch.setattr(leases, "WAIT_SECONDS", 0.5)


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


def test_the_lease_of_a_killed_process_is_taken_over_at_once(spec, sandbox, tmp_path, quick, monkeypatch):
    monkeypatch.setattr(leases, "LEASE_SECONDS", math.inf)
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
def test_the_lease_of_a_process_that_cannot_be_seen_is_taken_over_when_it_has_not_changed(
    spec, sandbox, quick, monkeypatch
):
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.5)
    lease = Client().bucket("rows").blob("out/.llmbeam/job/lease")
    lease.upload_from_string(held_elsewhere("1"))
    assert run(spec)["rows"]["answered"] == len(ROWS)
    assert not lease.exists()


@pytest.mark.parametrize("spec", ["gs"], indirect=True)
def test_a_process_whose_lease_was_taken_over_ends(spec, sandbox, quick, monkeypatch):
    has_ended = threading.Event()
    monkeypatch.setattr(leases, "end_process", has_ended.set)
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


@pytest.mark.full
@pytest.mark.parametrize("spec", ["gs"], indirect=True)
def test_the_command_of_a_job_that_was_taken_over_ends_at_once_and_publishes_nothing(spec, sandbox, tmp_path):
    hold = sandbox.faults.hold(GEMINI, "row", after=5)
    path = tmp_path / "spec.json"
    path.write_text(spec.model_dump_json())
    command = (
        "from airflow_provider_llmbeam.pipeline import __main__, lease\n"
        "lease.RENEWAL_SECONDS = 0.2\n"
        f"raise SystemExit(__main__.main(['--spec={path}']))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", command],
        env=os.environ | {"GOOGLE_API_KEY": "k"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: hold.waiting == len(ROWS) - 5, "all requests are sent")
    bucket = Client().bucket("rows")
    bucket.blob("out/.llmbeam/job/lease").upload_from_string("{}")
    lines = []
    until(lambda: lines.append(child.stderr.readline()) or "taken the job over" in lines[-1], "the process ends")
    hold.release()
    _, log = child.communicate()
    assert child.returncode == 1, log
    assert "Interrupted" not in log
    assert not list(bucket.list_blobs(prefix="out/answers"))


@pytest.mark.parametrize("spec", ["gs"], indirect=True)
def test_a_holder_that_was_silent_sends_nothing_until_it_has_renewed_its_lease(spec, sandbox, quick, monkeypatch):
    """Such as a process that was suspended, or whose storage does not answer: another one may have the job."""
    limits = spec.limits.model_copy(update={"max_in_flight": 5})
    hold = sandbox.faults.hold(GEMINI, "row", after=5)
    renew, is_silent = ObjectLease.renew, threading.Event()

    def renew_unless_silent(lease):
        if is_silent.is_set():
            raise OSError("the storage does not answer")
        return renew(lease)

    monkeypatch.setattr(ObjectLease, "renew", renew_unless_silent)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run, spec.model_copy(update={"limits": limits}))
        until(lambda: hold.waiting, "requests are held")
        is_silent.set()
        monkeypatch.setattr(leases, "SURE_SECONDS", 0.5)
        until(lambda: not leases.holds_its_leases(), "the holder is not sure of its lease")
        hold.release()
        until(lambda: sandbox.stats()["billed_answers"] == 10, "what was in flight is answered")
        time.sleep(1.5)
        assert sandbox.stats()["billed_answers"] == 10
        is_silent.clear()
        assert first.result()["rows"]["answered"] == len(ROWS)
    assert sandbox.stats()["billed_answers"] == len(ROWS)


@pytest.mark.parametrize("spec", ["gs"], indirect=True)
def test_a_holder_that_cannot_renew_its_lease_for_long_ends(spec, sandbox, quick, monkeypatch, caplog):
    has_ended = threading.Event()
    monkeypatch.setattr(leases, "end_process", has_ended.set)
    monkeypatch.setattr(leases, "UNRENEWED_SECONDS", 0.5)
    monkeypatch.setattr(ObjectLease, "renew", Mock(side_effect=OSError("the storage does not answer")))
    with ObjectLease(Client().bucket("rows"), "lease", "1").hold("job", "gs://rows/lease", 1.0):
        until(has_ended.is_set, "the holder ends")
    assert "could not be renewed for 0 s: the storage does not answer" in caplog.text


def test_a_lease_that_is_renewed_is_not_taken_over(sandbox, google, quick, monkeypatch):
    monkeypatch.setattr(leases, "end_process", Mock())
    monkeypatch.setattr(leases, "LEASE_SECONDS", 1.0)
    bucket, uri = Client().bucket("rows"), "gs://rows/lease"
    with (
        ObjectLease(bucket, "lease", "1").hold("job", uri, 1.0),
        pytest.raises(JobFailedError, match="is being run by another process"),
    ):
        ObjectLease(bucket, "lease", "2").take("job", uri, 2.0)


@pytest.mark.parametrize("spec", ["gs"], indirect=True)
def test_a_renewal_whose_reply_was_lost_keeps_the_lease(spec, sandbox):
    bucket = Client().bucket("rows")
    lease = ObjectLease(bucket, "lease", "1")
    lease.take("job", "gs://rows/lease", 1.0)
    generation = lease._generation
    assert lease.renew()
    lease._generation = generation
    assert lease.renew()


def test_a_lock_file_names_its_holder(job, sandbox):
    job.run(ROWS)
    holder = json.loads(Path(job.out, ".llmbeam", "job", "lease").read_text())
    assert holder["pid"] == os.getpid()
    assert {"host", "at"} <= set(holder)


def test_a_process_of_another_kernel_or_of_another_user_has_not_certainly_ended(monkeypatch):
    this = Holder.this_process("1")
    ended = this.model_copy(update={"pid": 2**31 - 1})
    assert not this.has_ended()
    assert ended.has_ended()
    assert not ended.model_copy(update={"kernel": "another"}).has_ended()
    assert not ended.model_copy(update={"kernel": None}).has_ended()
    monkeypatch.setattr(os, "kill", Mock(side_effect=PermissionError))
    assert not ended.has_ended()


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"pid": 0}', '{"lease_id": "1", "host": "h", "pid": "x"}'])
def test_a_lease_without_a_valid_holder_names_none(content):
    assert Holder.parse(content) is None


def test_a_launcher_on_this_machine_has_ended_when_its_lock_is_free_or_belongs_to_another(tmp_path):
    path = tmp_path / "lease"
    launcher = Launcher(str(path), "1")
    assert not launcher.has_ended(0.0), "the lock may be on another machine"
    with hold_lock("job", path, "1", 1.0):
        assert not launcher.has_ended(1.0)
    assert launcher.has_ended(2.0)
    with hold_lock("job", path, "2", 1.0):
        assert launcher.has_ended(3.0)
        assert not Launcher(str(path), "2").has_ended(3.0)
    path.write_text(held_elsewhere("1"))
    assert not launcher.has_ended(4.0), "a disk of another machine"


def test_a_launcher_on_another_machine_has_ended_when_it_renews_no_more_or_was_replaced(sandbox, google):
    lease = Client().bucket("rows").blob("lease")
    lease.upload_from_string(held_elsewhere("1", at="12:00"))
    launcher = Launcher("gs://rows/lease", "1")
    assert not launcher.has_ended(0.0)
    assert not launcher.has_ended(SILENT_SECONDS - 1)
    lease.upload_from_string(held_elsewhere("1", at="12:01"))
    assert not launcher.has_ended(SILENT_SECONDS + 10)
    assert not launcher.has_ended(2 * SILENT_SECONDS)
    assert launcher.has_ended(2 * SILENT_SECONDS + 10)

    lease.upload_from_string(held_elsewhere("2"))
    assert not launcher.has_ended(2 * SILENT_SECONDS + 11), "an object is not read at each poll"
    assert launcher.has_ended(2 * SILENT_SECONDS + 30)
    assert not Launcher("gs://rows/lease", "2").has_ended(0.0)

    lease.delete()
    assert Launcher("gs://rows/lease", "2").has_ended(0.0)


def held_elsewhere(lease_id: str, at: str = "12:00") -> str:
    """Returns the content of a lease that a process of another machine holds."""
    return Holder(lease_id=lease_id, host="another", pid=1, at=at, kernel="another").model_dump_json()
