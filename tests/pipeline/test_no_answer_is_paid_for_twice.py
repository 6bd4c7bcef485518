"""Retries, crashes and repeated runs reuse the answers that were paid for."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from llmbeam_sandbox import Fault, Latency, ModelSettings, Quota, Sandbox
from waiting import until

from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.spec import JobSpec
from tests.pipeline.conftest import read_lines
from tests.processes import has_ended

pytestmark = [pytest.mark.promise(2), pytest.mark.slow]

GEMINI = "gemini.generateContent"
MAX_IN_FLIGHT = 8


def rows(count: int) -> list[dict]:
    return [{"id": number, "text": f"row number {number}"} for number in range(count)]


def test_a_second_run_sends_nothing_and_writes_the_same(job, sandbox):
    first = job.run(rows(40))
    second = job.run()
    assert len(sandbox.requests) == 40
    assert second.origins == Counter(fresh=0, resumed=40, duplicate=0)
    same = [{**answer, "llmbeam_origin": None} for answer in first.answers]
    assert sorted(map(str, same)) == sorted(str({**answer, "llmbeam_origin": None}) for answer in second.answers)


def test_a_second_run_sends_only_the_failed_rows(job, sandbox):
    sandbox.faults.queue(GEMINI, *[Fault(kind="error", http_status=400, message="not now")] * 5)
    assert len(job.run(rows(40)).dead_letter) == 5
    ended = job.run()
    assert len(ended.answers) == 40
    assert len(sandbox.requests) == 45


def test_a_changed_prompt_is_sent_again(job, sandbox):
    job.run(rows(10))
    job.run(prompt={"template": "Say it louder: {{ row.text }}"})
    assert len(sandbox.requests) == 20


def test_an_incomplete_journal_line_costs_one_request(job, sandbox):
    job.run(rows(10))
    (segment,) = (job.out / ".llmbeam" / "job" / "journal@loopback").glob("*.jsonl")
    segment.write_bytes(segment.read_bytes()[:-20])
    assert job.run().origins == Counter(fresh=1, resumed=9, duplicate=0)
    assert len(sandbox.requests) == 11


def start_command(job, tmp_path: Path) -> subprocess.Popen[bytes]:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(job.spec))
    return subprocess.Popen([sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--spec", str(spec)])


def content(answers: list[dict]) -> list[str]:
    """Returns the output rows without the values that vary between runs."""
    varying = ("llmbeam_origin", "llmbeam_attempts", "llmbeam_latency_seconds")
    return sorted(str({name: value for name, value in row.items() if name not in varying}) for row in answers)


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.full)])
def test_a_job_killed_with_kill_9_at_any_moment_resumes_to_the_result_of_an_undisturbed_run(
    tmp_path, make_job, kills
):
    """Kills a job at random moments: before the first request, while sending or publishing, after the end."""
    count, seed = 120, random.randrange(10**6)
    chances = random.Random(seed)
    with Sandbox(models=ModelSettings(latency=Latency(mean_seconds=0.05))) as sandbox:

        def make(name: str):
            (tmp_path / name).mkdir()
            made = make_job(tmp_path / name, sandbox)
            made.spec["limits"] = {"max_in_flight": MAX_IN_FLIGHT}
            made.write(rows(count))
            return made

        undisturbed, began = make("undisturbed"), time.monotonic()
        assert start_command(undisturbed, tmp_path / "undisturbed").wait() == 0
        seconds = time.monotonic() - began
        expected = content(read_lines(undisturbed.out / "answers-00000-of-00001.jsonl"))
        for number in range(kills):
            job, moment = make(f"{number}"), chances.uniform(0.2, 1.1) * seconds
            sandbox.reset()
            child = start_command(job, tmp_path / f"{number}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(moment)
            child.kill()
            child.wait()
            answers = job.out / "answers-00000-of-00001.jsonl"
            what = (
                f"seed {seed}, kill {number} after {moment:.2f} of {seconds:.2f} s, {len(sandbox.requests)} sent"
            )
            assert not answers.exists() or content(read_lines(answers)) == expected, f"half a run is seen: {what}"
            assert content(job.run().answers) == expected, what
            paid = sandbox.requests.paid(GEMINI)
            assert len(paid) == count, what
            assert paid.total() - count <= MAX_IN_FLIGHT, what


def test_a_job_ends_when_its_parent_process_ends(tmp_path, make_job):
    with Sandbox(models=ModelSettings(quota=Quota(requests_per_minute=60))) as sandbox:
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
        code += "print(child.pid, flush=True)\ntime.sleep(3600)"
        parent = subprocess.Popen([sys.executable, "-c", code, *command], stdout=subprocess.PIPE, text=True)
        child_pid = int(parent.stdout.readline())
        until(lambda: len(sandbox.requests), "the job sends requests")
        parent.kill()
        parent.wait()
        parent.stdout.close()
        until(lambda: has_ended(child_pid), "the job ends with its parent")


def test_a_bundle_that_the_runner_repeats_is_not_paid_for_again(job, sandbox):
    job.write(rows(60))
    manifest = run(JobSpec.parse(job.spec), ["--direct_runner_bundle_repeat=2"])
    assert manifest["rows"] == {"read": 60, "answered": 60, "dead_letter": 0, "skipped": 0}
    assert len(sandbox.requests) == 60
    assert set(sandbox.requests.paid().values()) == {1}


@pytest.mark.parametrize("batch_size", [7, *(pytest.param(size, marks=pytest.mark.full) for size in (1, 100))])
def test_work_that_is_repeated_in_other_batches_is_not_paid_for_again(job, sandbox, monkeypatch, batch_size):
    """As when a runner restarts a job whose launch saw no journal, and deals out its work anew."""
    from airflow_provider_llmbeam.pipeline import storage

    has_match, hidden = storage.has_match, []

    def found(pattern: str) -> bool:
        if "/journal" in pattern:
            hidden.append(pattern)
            return False
        return has_match(pattern)

    monkeypatch.setattr(storage, "has_match", found)
    job.run(rows(40), batching={"max_batch_size": 16})
    again = job.run(random.sample(rows(40), 40), batching={"max_batch_size": batch_size})
    assert hidden, "the launch looked for a journal"
    assert len(again.answers) == len(sandbox.requests) == 40
