from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, PrismRunnerOptions
from waiting import until

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.launch.prism import _START, LocalPrism, binary_of
from airflow_provider_llmbeam.pipeline.launch.runner import runner_of
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.runner import PrismRunner

_PROGRAM = "/bin/sleep"


def test_the_binary_is_that_of_the_field_or_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISM_LOCATION", "/bin/cat")
    assert binary_of(PrismRunner(type="prism", binary_path=_PROGRAM)) == _PROGRAM
    assert binary_of(PrismRunner(type="prism")) == "/bin/cat"


def test_a_job_without_a_binary_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PRISM_LOCATION", raising=False)
    with pytest.raises(JobSpecError, match=r"`runner.binary_path`: .* is needed: .* Nothing was sent or billed\."):
        binary_of(PrismRunner(type="prism"))
    (tmp_path / "prism").write_text("not executable")
    missing = str(tmp_path / "prism")
    with pytest.raises(JobSpecError, match=r"`runner.binary_path`: there is no program at '.*/prism'\."):
        binary_of(PrismRunner(type="prism", binary_path=missing))
    monkeypatch.setenv("PRISM_LOCATION", missing)
    with pytest.raises(JobSpecError, match="`PRISM_LOCATION` in the environment: there is no program at"):
        binary_of(PrismRunner(type="prism"))


def test_the_spec_becomes_options_of_beam_that_download_nothing() -> None:
    spec = JobSpec.parse(
        {
            "name": "n",
            "source": {"uri": "rows.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.t }}"},
            "model": {"type": "echo"},
            "sink": {"uri": "out"},
            "runner": {"type": "prism", "binary_path": _PROGRAM},
        }
    )
    runner, options = runner_of(spec, [])
    assert runner is None
    assert options.view_as(PrismRunnerOptions).prism_location == _PROGRAM
    assert options.get_all_options()["runner"].endswith(".LocalPrism")


def test_the_server_is_the_binary_and_serves_no_web_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # which the runner replaces
    server = LocalPrism().default_job_server(PipelineOptions([f"--prism_location={_PROGRAM}"]))
    command, endpoint = server._job_server.subprocess_cmd_and_endpoint()
    assert command[:2] == [sys.executable, "-c"]
    assert command[3] == _PROGRAM
    assert "--serve_http=false" in command
    assert endpoint == f"localhost:{command[command.index('--job_port') + 1]}"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends the server")
def test_the_server_ends_with_a_job_that_is_killed() -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1], '/bin/sleep', '600'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, _START], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        until(lambda: child.name() == "sleep", "the server is started")
        parent.send_signal(signal.SIGKILL)
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "it has ended")
