"""Ctrl-C on the command line, and jobs with gs:// on a machine without a network."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from waiting import until

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline.launch.reachable import check_reachable
from airflow_provider_llmbeam.spec import JobSpec
from tests.prism import prism_binary

GEMINI = "gemini.generateContent"
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")


@pytest.fixture
def command(job, monkeypatch):
    def start(**changes):
        path = job.directory / "job.json"
        path.write_text(json.dumps(job.spec | changes))
        return subprocess.Popen(
            [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--spec", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # A shell starts what runs in its background with SIGINT ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    monkeypatch.delenv("LLMBEAM_TESTS_FORK_SERVER", raising=False)  # whose client would get the signal
    return start


@pytest.mark.full
@pytest.mark.promise(2)
@pytest.mark.parametrize(("number", "runner"), [(signal.SIGINT, "direct"), (signal.SIGTERM, "prism")])
def test_a_signal_records_the_answers_in_flight_and_ends_with_one_line_and_130_and_the_next_run_sends_the_rest(
    job, sandbox, command, number, runner, monkeypatch
):
    job.write([{"id": number, "text": f"row {number}"} for number in range(40)])
    changes = {"limits": job.spec["limits"] | {"max_in_flight": 5}}
    if runner == "prism":
        monkeypatch.setenv("PRISM_LOCATION", prism_binary())
        changes["runner"] = {"type": "prism"}
    hold = sandbox.faults.hold(GEMINI, "row", after=15)
    with command(**changes) as started:
        until(lambda: hold.waiting == 5 and sandbox.stats()["billed_answers"] == 15, "5 requests are in flight")
        os.killpg(started.pid, number)  # as a terminal does, and a task that is killed
        until(lambda: "for up to 4 s. A second signal" in started.stderr.readline(), "the engine is told")
        hold.release()
        _, log = started.communicate()
    assert started.returncode == 130, log
    if runner == "direct":  # Beam 2.77 prints what a worker of a job service raises
        assert "Traceback" not in log
        last = log.splitlines()[-1]
        assert f"Interrupted. The answers so far are in '{job.out}/.llmbeam/job/journal" in last
        assert last.endswith("the same command sends only the rest.")
    assert "Interrupted. The answers so far are in" in log
    assert sandbox.stats()["billed_answers"] == len(sandbox.requests) == 20
    assert job.run().origins["resumed"] == 20


@pytest.fixture
def refused(monkeypatch):
    """A proxy that refuses every connection."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    for name in PROXIES:
        monkeypatch.setenv(name, address)
    for name in ("NO_PROXY", "no_proxy", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    return address


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("source.uri", {"source": {"uri": "gs://b/in/*.jsonl", "key": ["id"]}}),
        ("sink.uri", {"sink": {"uri": "gs://b/out"}}),
        ("state_uri", {"state_uri": "gs://b/state"}),
    ],
)
def test_without_a_network_a_job_with_gs_ends_before_credentials_are_looked_for(job, refused, field, changes):
    job.write([])
    with pytest.raises(JobFailedError) as failed:
        check_reachable(JobSpec.parse(job.spec | changes))
    address = next(iter(changes.values()))
    uri = JobSpec.parse(job.spec | changes).source.uri if field == "source.uri" else None
    shown = uri or (address["uri"] if isinstance(address, dict) else address) + "/"
    assert str(failed.value) == (
        f"`{field}` {shown!r}: Cloud Storage (https://storage.googleapis.com) cannot be reached: through the "
        "proxy, Connection refused. Nothing was sent or billed. Check the network and HTTPS_PROXY."
    )
    assert len(str(failed.value)) <= 240


def test_the_command_ends_with_that_line_alone(job, refused, command):
    with command(source={"uri": "gs://b/in/*.jsonl", "key": ["id"]}) as started:
        _, log = started.communicate(timeout=60)
    assert started.returncode == 1
    assert len(log.splitlines()) == 1, log
    assert "cannot be reached" in log


def test_a_server_that_accepts_and_never_answers_is_given_up(job, monkeypatch):
    from airflow_provider_llmbeam.pipeline.launch import reachable

    monkeypatch.setattr(reachable, "_TIMEOUT_SECONDS", (0.1, 0.1))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(JobFailedError, match="no answer within"):
            check_reachable(JobSpec.parse(job.spec | {"sink": {"uri": "gs://b/out"}}))


def test_any_answer_will_do(job, google):
    check_reachable(JobSpec.parse(job.spec | {"sink": {"uri": "gs://no-such-bucket/out"}}))


def test_a_job_without_gs_asks_nothing(job, refused):
    job.write([])
    check_reachable(JobSpec.parse(job.spec))
