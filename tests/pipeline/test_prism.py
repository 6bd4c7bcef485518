"""The promises on Prism: no row is lost, no answer is paid for twice, and a mistake is one sentence."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from waiting import until

from tests.prism import prism_binary

pytestmark = [pytest.mark.full, pytest.mark.promise(1), pytest.mark.promise(2)]


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Returns the command line of a job on Prism."""
    binary = prism_binary()
    monkeypatch.setenv("AIRFLOW__LLMBEAM__ALLOWED_PROGRAMS", str(binary))

    def command_of(job):
        job.spec["runner"] = {"type": "prism", "binary_path": binary}
        (tmp_path / "job.json").write_text(json.dumps(job.spec))
        options = ["--spec", tmp_path / "job.json", "--result", tmp_path / "result.json"]
        return [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", *options]

    return command_of


def test_a_job_whose_harness_is_killed_half_way_loses_no_row_and_pays_for_no_answer_twice(
    job, sandbox, command, tmp_path, monkeypatch
):
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    prompts, flight = 60, 4
    rows = [{"id": number, "text": f"row {number % prompts}"} for number in range(70)]
    job.write([*rows, '{"id": 99, "text": '])
    job.spec["limits"] |= {"max_in_flight": flight}
    hold = sandbox.faults.hold("gemini.generateContent", "row", after=30)
    process = subprocess.Popen(command(job), stderr=subprocess.DEVNULL)
    until(lambda: hold.waiting == flight, "half of the answers are there")
    process.send_signal(signal.SIGKILL)  # the workers are threads of this process
    process.wait()
    hold.release()

    def run():
        ended = subprocess.run(command(job), capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        return job.ended(json.loads((tmp_path / "result.json").read_text())["report"]), ended.stderr

    first, log = run()
    assert first.manifest["rows"] == {"read": 71, "answered": 70, "dead_letter": 1, "skipped": 0}
    assert sorted(row["id"] for row in first.answers) == list(range(70))
    assert first.origins["resumed"] >= 30
    sent = len(sandbox.requests)
    assert prompts <= sent <= prompts + flight  # what was in flight at the kill is asked again
    assert "rows 71/71 (100%)" in log
    again, _ = run()
    assert again.manifest["rows"] == first.manifest["rows"]
    assert len(sandbox.requests) == sent


def test_duplicate_keys_end_the_command_with_2_and_one_sentence(echo_job, command, tmp_path):
    echo_job.write([{"id": number % 5, "text": f"t{number}"} for number in range(10)])
    ended = subprocess.run(command(echo_job), capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    error = json.loads((tmp_path / "result.json").read_text())["error"]
    assert error["type"] == "JobSpecError"
    assert error["message"].startswith("`source.key`: 5 keys belong to several rows each")
    assert error["message"].endswith("Nothing was sent or billed.")
    assert "\n" not in error["message"]
    assert any(line.endswith(f" {error['message']}") for line in ended.stderr.splitlines())
    assert "read_grpc_client_inputs" not in ended.stderr
