"""A retry, a crash and a repeated run re-use what was answered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_llmbeam.pipeline.__main__ import run
from airflow_provider_llmbeam.sandbox import Fault, Latency, Quota, Sandbox
from airflow_provider_llmbeam.spec import JobSpec

GEMINI = "gemini.generateContent"
MAX_IN_FLIGHT = 8


def rows(count: int) -> list[dict]:
    return [{"id": number, "text": f"row number {number}"} for number in range(count)]


def test_a_second_run_sends_nothing_and_writes_the_same(job, sandbox):
    first = job.run(rows(40))
    second = job.run()
    assert len(sandbox.requests) == 40
    assert second.origins == Counter(fresh=0, resumed=40, duplicate=0)
    same = [{**answer, "origin": None} for answer in first.answers]
    assert sorted(map(str, same)) == sorted(str({**answer, "origin": None}) for answer in second.answers)


def test_a_second_run_asks_only_for_rows_that_failed(job, sandbox):
    sandbox.faults.queue(GEMINI, *[Fault(kind="error", http_status=400, message="not now")] * 5)
    assert len(job.run(rows(40)).dead) == 5
    ended = job.run()
    assert len(ended.answers) == 40
    assert len(sandbox.requests) == 45


def test_a_changed_prompt_is_a_new_question(job, sandbox):
    job.run(rows(10))
    job.run(prompt={"template": "Say it louder: {{ row.text }}"})
    assert len(sandbox.requests) == 20


def test_a_torn_journal_line_costs_one_request(job, sandbox):
    job.run(rows(10))
    (segment,) = (job.out / ".llmbeam" / "job" / "journal").glob("*.jsonl")
    segment.write_bytes(segment.read_bytes()[:-20])
    assert job.run().origins == Counter(fresh=1, resumed=9, duplicate=0)
    assert len(sandbox.requests) == 11


@pytest.mark.parametrize("when", [0.15, 0.5, 0.85])
def test_a_job_killed_with_kill_9_pays_again_at_most_for_what_was_in_flight(tmp_path, make_job, when):
    count = 100
    with Sandbox(latency=Latency(mean_seconds=0.05)) as sandbox:
        job = make_job(tmp_path, sandbox)
        job.write(rows(count))
        spec = tmp_path / "spec.json"
        spec.write_text(json.dumps(job.spec | {"limits": {"max_in_flight": MAX_IN_FLIGHT}}))
        child = subprocess.Popen([sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--spec", str(spec)])
        while len(sandbox.requests) < when * count:
            assert child.poll() is None, "the job ended too early"
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert not list(job.out.glob("*")) or [path.name for path in job.out.glob("*")] == [".llmbeam"]
        ended = job.run()
        paid = sandbox.requests.paid(GEMINI)
    assert len(ended.answers) == count
    assert len(paid) == count
    assert paid.total() - count <= MAX_IN_FLIGHT


def test_a_job_ends_when_its_parent_dies(tmp_path, make_job):
    with Sandbox(quota=Quota(requests_per_minute=60)) as sandbox:
        job = make_job(tmp_path, sandbox)
        job.write(rows(500))
        spec = tmp_path / "spec.json"
        spec.write_text(json.dumps(job.spec))
        command = [
            sys.executable,
            "-m",
            "airflow_provider_llmbeam.pipeline",
            f"--spec={spec}",
            "--child",
        ]
        code = "import subprocess, sys, time\nchild = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)\n"
        code += "print(child.pid, flush=True)\ntime.sleep(60)"
        parent = subprocess.Popen([sys.executable, "-c", code, *command], stdout=subprocess.PIPE, text=True)
        child_pid = int(parent.stdout.readline())
        while not len(sandbox.requests):
            time.sleep(0.01)
        parent.kill()
        parent.wait()
        parent.stdout.close()
        deadline = time.monotonic() + 5
        while _lives(child_pid):
            assert time.monotonic() < deadline, "the job outlived its parent"
            time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_bundle_that_the_runner_repeats_is_not_paid_again(job, sandbox):
    job.write(rows(60))
    manifest = run(JobSpec.parse(job.spec), ["--direct_runner_bundle_repeat=2"])
    assert manifest["rows"] == {"read": 60, "answered": 60, "dead_letter": 0}
    assert len(sandbox.requests) == 60
    assert set(sandbox.requests.paid().values()) == {1}
