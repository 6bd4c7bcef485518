from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from llmbeam_sandbox import Fault, Latency, Quota, Sandbox
from llmbeam_sandbox.__main__ import banner, fault_of, gpu_quota_of, main
from waiting import until

COMMAND = [sys.executable, "-m", "llmbeam_sandbox"]


@pytest.mark.parametrize("stop_signal", [signal.SIGINT, signal.SIGTERM])
def test_the_sandbox_writes_its_ready_file_and_ends_cleanly(tmp_path: Path, stop_signal: signal.Signals) -> None:
    ready = tmp_path / "ready.json"
    with subprocess.Popen(
        [*COMMAND, "--port", "0", "--ready-file", str(ready), "--requests-per-minute", "600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    ) as process:
        until(lambda: ready.exists() or process.poll() is not None, "the sandbox is ready or has ended")
        assert process.poll() is None, process.stderr and process.stderr.read()
        found = json.loads(ready.read_text())
        assert found["pid"] == process.pid
        assert ready.stat().st_mode & 0o077 == 0
        refused, done = (
            httpx.post(found["url"] + "/sandbox/reset", headers={"Authorization": f"Bearer {token}"})
            for token in ("guess", found["token"])
        )
        assert (refused.status_code, done.status_code) == (401, 200)
        assert httpx.get(found["url"] + "/sandbox/stats").json()["quota"]["requests_per_minute"] == 600
        process.send_signal(stop_signal)
        printed, complaints = process.communicate(timeout=60)
    assert process.returncode == 0
    assert complaints == b""
    assert f"GOOGLE_GEMINI_BASE_URL={found['url']}" in printed.decode()
    assert list(tmp_path.iterdir()) == []


def test_the_banner_can_be_copied_into_a_shell() -> None:
    text = banner(
        "http://127.0.0.1:1",
        "http://127.0.0.1:1/v1",
        quota=Quota(requests_per_minute=60),
        latency=Latency(mean_seconds=0.2, sigma=0.5),
    )
    assert "export GOOGLE_API_KEY=sandbox GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:1\n" in text
    assert "OPENAI_BASE_URL=http://127.0.0.1:1/v1\n" in text
    assert "60 requests per minute, tokens unlimited" in text
    assert "0.2 s mean, sigma 0.5" in text


def test_a_taken_port_ends_with_status_one(sandbox: Sandbox) -> None:
    result = subprocess.run([*COMMAND, "--port", str(sandbox.port)], capture_output=True, check=False, timeout=60)
    assert result.returncode == 1
    assert f"Port {sandbox.port} cannot be used" in result.stderr.decode()


def test_times_below_zero_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    for option, name in (
        ("endpoint", "EndpointSettings.operation_seconds"),
        ("endpoint-warm", "EndpointSettings.warm_seconds"),
        ("cold-start", "EndpointSettings.cold_start_seconds"),
        ("monitoring-delay", "monitoring_delay_seconds"),
    ):
        with pytest.raises(SystemExit):
            main([f"--{option}-seconds", "-1"])
        assert f"`{name}` must be >= 0" in capsys.readouterr().err


def test_a_wrong_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--requests-per-minute", "0"])
    assert caught.value.code == 2
    assert "`requests_per_minute` must be >= 1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--dataflow-workers", "0"])
    assert "`DataflowSettings.workers` must be >= 1" in capsys.readouterr().err


def test_a_fault_and_a_quota_are_each_one_word() -> None:
    assert fault_of("gemini.generateContent=error:503/10") == (
        "gemini.generateContent",
        10,
        Fault(kind="error", http_status=503),
    )
    assert fault_of("openai.chat.completions=hang") == ("openai.chat.completions", 1, Fault(kind="hang"))
    assert gpu_quota_of(["europe-west4=NVIDIA_L4:0", "us-central1=NVIDIA_L4:2"]) == {
        "europe-west4": {"NVIDIA_L4": 0},
        "us-central1": {"NVIDIA_L4": 2},
    }
    assert gpu_quota_of([]) is None


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--fault", "gemini.generateContent", "must be METHOD=KIND"),
        ("--fault", "gemini.generateContent=oops", "`kind` must be one of error"),
        ("--fault", "gemini.generate=error", "gemini.generate"),
        ("--gpu-quota", "NVIDIA_L4:0", "must be LOCATION=GPU:N"),
        ("--gpu-quota", "europe-west4=L5:0", "must hold numbers >= 0 of"),
    ],
)
def test_a_fault_or_quota_of_another_form_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], option: str, value: str, words: str
) -> None:
    with pytest.raises(SystemExit):
        main(["--port", "0", option, value])
    assert words in capsys.readouterr().err
