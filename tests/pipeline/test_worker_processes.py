"""Workers in processes of their own, as on portable runners: errors keep their class, and progress is shown."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from waiting import until

from airflow_provider_llmbeam.pipeline.lease import Holder

pytestmark = [pytest.mark.full, pytest.mark.promise(2), pytest.mark.slow]
#: Beam's local runner with worker processes, which report to the launcher as those of other portable runners do.
WORKER_PROCESSES = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")


@pytest.fixture
def run_job(echo_job):
    """Runs the job by the command line; returns the exit code, the outcome and the lines of its log."""

    def run(rows):
        echo_job.write(rows)
        spec, result = echo_job.directory / "job.json", echo_job.directory / "result.json"
        spec.write_text(json.dumps(echo_job.spec))
        command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--spec", spec, "--result", result]
        ended = subprocess.run([*command, *WORKER_PROCESSES], capture_output=True, text=True, check=False)
        return ended.returncode, json.loads(result.read_text()), ended.stderr

    return run


def test_the_progress_of_worker_processes_is_shown(echo_job, run_job):
    code, outcome, log = run_job([{"id": number, "text": "t"} for number in range(60)])
    assert code == 0, log
    assert outcome["report"]["rows"] == {"read": 60, "answered": 60, "dead_letter": 0, "skipped": 0}
    lines = re.findall(r"rows \d+/\d+ .*", log)
    assert lines, log
    assert lines[-1].startswith("rows 60/60 (100%)"), log
    assert list((echo_job.out / ".llmbeam" / "job" / "progress").iterdir()) == []


def test_an_error_in_a_worker_process_ends_the_job_with_its_class_and_one_sentence(run_job):
    code, outcome, log = run_job([{"id": number % 5, "text": f"t{number}"} for number in range(10)])
    assert code == 2, log
    message = outcome["error"]["message"]
    assert outcome["error"]["type"] == "JobSpecError"
    assert message.startswith("`source.key`: 5 keys belong to several rows each")
    assert message.endswith("Nothing was sent or billed.")
    assert "\n" not in message
    assert log.rstrip().endswith(message)


def test_worker_processes_whose_launcher_has_ended_send_nothing_more(job, sandbox, tmp_path):
    job.write([{"id": number, "text": f"row {number}"} for number in range(60)])
    job.spec["limits"] |= {"max_in_flight": 4}
    spec, log = tmp_path / "job.json", tmp_path / "log"
    spec.write_text(json.dumps(job.spec))
    hold = sandbox.faults.hold("gemini.generateContent", "row", after=10)
    command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--spec", spec, *WORKER_PROCESSES]
    with log.open("wb") as file:
        launcher = subprocess.Popen(command, env=os.environ | {"GOOGLE_API_KEY": "k"}, stderr=file)
    until(lambda: hold.waiting == 2 * 4, "requests are in flight")
    assert segments_in_use(job.out)
    # Beam's local runner ends its workers itself. What a worker sees of a launcher that has ended is its lease.
    lease = job.out / ".llmbeam" / "job" / "lease"
    lease.write_text(Holder.this_process("that of the next launcher").model_dump_json())
    closed = "the workers close their segments before their requests end"
    until(lambda: not segments_in_use(job.out), closed, pause_seconds=1)  # it asks every process
    hold.release()
    assert launcher.wait() == 1
    assert len(sandbox.requests) == 10 + 2 * 4
    assert "nothing more is sent or billed" in log.read_text()


def segments_in_use(directory: Path) -> list[str]:
    """Returns the segments of journals below a directory that a process has open."""
    opened = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            opened += [file.path for file in process.open_files()]
    return [path for path in opened if path.startswith(str(directory)) and path.endswith(".jsonl")]
