"""Workers in processes of their own, as on portable runners: errors keep their class, and progress is shown."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
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
    assert outcome["report"]["rows"] == {"read": 60, "answered": 60, "dead_letter": 0}
    lines = re.findall(r"rows \d+/\d+ .*", log)
    assert lines, log
    assert lines[-1].startswith("rows 60/60 (100%)"), log
    assert list((echo_job.out / ".llmbeam" / "job" / "progress").iterdir()) == []


def test_an_error_in_a_worker_process_ends_the_job_with_its_class_and_one_sentence(run_job):
    code, outcome, log = run_job([{"id": number % 5, "text": "t"} for number in range(10)])
    assert code == 2, log
    message = outcome["error"]["message"]
    assert outcome["error"]["type"] == "JobSpecError"
    assert message.startswith("`source.key`: 5 keys belong to several rows each")
    assert message.endswith("Nothing was sent or billed.")
    assert "\n" not in message
    assert log.rstrip().endswith(message)
