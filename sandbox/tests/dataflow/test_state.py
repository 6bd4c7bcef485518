"""Jobs that the sandbox's Dataflow really runs, submitted by Beam through the proxy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from llmbeam_sandbox import DataflowSettings, Proxy, Sandbox
from waiting import until

from tests.clouds import authorized
from tests.processes import has_ended

pytestmark = pytest.mark.slow

PIPELINES = Path(__file__).with_name("dataflow_pipelines.py")
PLACES = [
    "--runner=DataflowRunner",
    "--project=llmbeam-sandbox",
    "--region=us-central1",
    "--temp_location=gs://rows/tmp",
]
TEMPLATE = {
    "image": "p/launcher",
    "metadata": {"parameters": [{"name": "output"}, {"name": "failures", "isOptional": True}]},
}


class Cloud:
    """A sandbox behind its proxy, and Beam in processes of their own."""

    def __init__(self, sandbox: Sandbox, proxy: Proxy) -> None:
        self.sandbox = sandbox
        self.environment = {**os.environ, **proxy.environment()}
        self.api = httpx.Client(base_url=sandbox.url, headers=authorized(sandbox), timeout=60)
        self.submitter = subprocess.Popen(
            [sys.executable, str(PIPELINES)],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def submit(self, name: str, job_name: str, *options: str) -> dict[str, Any]:
        """Submit a pipeline; only one worker unless told otherwise."""
        if not any("max_num_workers" in option for option in options):
            options = (*options, "--max_num_workers=1")
        order = [name, *PLACES, f"--job_name={job_name}", *options]
        self.submitter.stdin.write(f"{json.dumps(order)}\n".encode())
        self.submitter.stdin.flush()
        return json.loads(self.submitter.stdout.readline())

    def job(self, job_id: str, rest: str = "", **query: str) -> Any:
        path = f"/v1b3/projects/llmbeam-sandbox/locations/us-central1/jobs/{job_id}{rest}"
        return self.api.get(path, params=query).raise_for_status().json()

    def until(self, condition: Callable[[], Any]) -> Any:
        return until(condition, lambda: self.sandbox.dataflow.jobs, pause_seconds=0.05)

    def ended(self, job_id: str) -> str:
        """Wait for the end of a job; returns its state."""
        states = ("DONE", "FAILED", "CANCELLED")
        state = self.until(lambda: self.job(job_id)["currentState"].removeprefix("JOB_STATE_") in states)
        assert state
        return self.job(job_id)["currentState"].removeprefix("JOB_STATE_")

    def texts(self, job_id: str, importance: str = "JOB_MESSAGE_BASIC") -> list[str]:
        found = self.job(job_id, "/messages", minimumImportance=importance)["jobMessages"]
        return [one["messageText"] for one in found]

    def counter(self, job_id: str, name: str) -> dict[str, Any]:
        """Return the committed and the tentative value of a counter."""
        return {
            "tentative" if "tentative" in one["name"]["context"] else "committed": one.get("scalar")
            for one in self.job(job_id, "/metrics")["metrics"]
            if one["name"]["name"] == name
        }

    def put(self, name: str, data: str | bytes) -> None:
        path = f"/upload/storage/v1/b/rows/o?uploadType=media&name={name}"
        self.api.post(path, content=data).raise_for_status()

    def lines(self, prefix: str) -> list[str]:
        names = self.api.get("/storage/v1/b/rows/o", params={"prefix": prefix}).json().get("items", [])
        media = [
            self.api.get(f"/storage/v1/b/rows/o/{one['name'].replace('/', '%2F')}?alt=media") for one in names
        ]
        return sorted(line for one in media for line in one.text.splitlines())


def cloud(**options: Any) -> Iterator[Cloud]:
    with Sandbox(buckets=("rows",), dataflow=DataflowSettings(**options)) as sandbox, Proxy(sandbox) as proxy:
        served = Cloud(sandbox, proxy)
        with served.api, served.submitter:
            yield served
            sandbox.faults.assert_all_consumed()
            served.submitter.stdin.close()


@pytest.fixture(scope="module")
def four() -> Iterator[Cloud]:
    """At most four harnesses a job; a flex template starts the word count."""
    launcher = (sys.executable, str(PIPELINES), "words")
    yield from cloud(workers=4, flex_launcher=launcher)


def outputs(folder: str) -> list[str]:
    return [f"--{name}=gs://rows/{folder}/{place}" for name, place in {"output": "out", "total": "total"}.items()]


def pids(notes: Path) -> set[int]:
    return (
        {int(pid) for line in notes.read_text().splitlines() for pid in line.split()} if notes.exists() else set()
    )


@pytest.mark.parametrize("workers", [1, 4])
def test_beam_counts_words_between_buckets_in_the_requested_number_of_processes(four: Cloud, workers: int) -> None:
    for part in range(8):
        four.put(f"in/{part}.txt", "the cat the dog\n" * 10)
    name, output = f"words-{workers}", f"gs://rows/out{workers}/counts"
    waits = ["--wait"] if workers == 1 else []
    told = four.submit(
        "words", name, f"--output={output}", f"--max_num_workers={workers}", "--labels=team=search", *waits
    )
    assert four.ended(told["id"]) == "DONE"
    assert four.counter(told["id"], "words") == {"committed": 320, "tentative": 320}
    if waits:
        assert told["state"] == "DONE"
        assert told["words"] == ["Split", "320", "320"]
        assert "count=320" in told["lengths"][1]
        assert "max=3" in told["lengths"][2]
    assert four.lines(f"out{workers}/") == ["cat 80", "dog 80", "the 160"]
    found = four.job(told["id"], view="JOB_VIEW_ALL")
    assert found["labels"] == {"team": "search"}
    assert found["createTime"] <= found["startTime"] <= found["currentStateTime"]
    assert found["environment"]["workerPools"][0]["autoscalingSettings"]["maxNumWorkers"] == workers
    assert [state[10:] for state in four.sandbox.dataflow.states(told["id"])] == ["PENDING", "RUNNING", "DONE"]
    assert f"Starting {workers} workers in us-central1..." in four.texts(told["id"])
    assert four.sandbox.stats()["refused_hosts"] == {}


def test_a_bundle_that_fails_four_times_fails_the_job(four: Cloud, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    told = four.submit("flaky", "broken", f"--notes={notes}", "--failures=99", *outputs("broken"))
    assert four.ended(told["id"]) == "FAILED"
    errors = four.texts(told["id"], "JOB_MESSAGE_ERROR")
    assert len(notes.read_text().splitlines()) == 4
    assert ["ValueError: row 3 is bad" in error and "Traceback" in error for error in errors] == [True] * 4 + [
        False
    ]
    assert "work item has failed 4 times" in errors[-1]
    assert not any(four.counter(told["id"], "rows").values())
    assert four.lines("broken/out") == []


def test_a_bundle_that_fails_once_is_tried_again_and_counts_once_in_outputs_state_and_counters(
    four: Cloud, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    told = four.submit("flaky", "shaky", f"--notes={notes}", "--failures=1", *outputs("shaky"))
    assert four.ended(told["id"]) == "DONE"
    assert len(notes.read_text().splitlines()) == 2
    assert four.counter(told["id"], "rows") == {"committed": 5, "tentative": 5}
    assert (four.lines("shaky/out"), four.lines("shaky/total")) == (["5"], ["10"])
    assert len(four.texts(told["id"], "JOB_MESSAGE_ERROR")) == 1


def test_a_job_shows_its_counters_while_it_runs_keeps_its_name_and_is_cancelled(
    four: Cloud, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    job_id = four.submit("slow", "slow", f"--notes={notes}")["id"]
    four.until(lambda: four.counter(job_id, "rows") == {"committed": 0, "tentative": 1})
    assert four.job(job_id)["currentState"] == "JOB_STATE_RUNNING"
    assert four.sandbox.stats()["dataflow_jobs"]["RUNNING"] == 1

    again = four.submit("slow", "slow", f"--notes={notes}")
    assert again["error"].startswith("DataflowJobAlreadyExistsError")
    assert f"with id: {job_id}." in again["error"]

    processes = pids(notes)
    assert len(processes) == 2
    path = f"/v1b3/projects/llmbeam-sandbox/locations/us-central1/jobs/{job_id}"
    four.api.put(path, json={"requestedState": "JOB_STATE_CANCELLED"}).raise_for_status()
    assert four.ended(job_id) == "CANCELLED"
    four.until(lambda: all(map(has_ended, processes)))
    assert four.sandbox.dataflow.states(job_id)[-2:] == ["JOB_STATE_CANCELLING", "JOB_STATE_CANCELLED"]


def test_a_harness_that_is_killed_is_replaced_and_its_bundle_run_again(four: Cloud, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    job_id = four.submit("slow", "lost-worker", f"--notes={notes}")["id"]
    four.until(lambda: pids(notes))
    four.api.post(f"/sandbox/dataflow/jobs/{job_id}/kill-harness").raise_for_status()
    four.until(lambda: len(notes.read_text().splitlines()) == 2)
    notes.with_suffix(".go").touch()
    assert four.ended(job_id) == "DONE"
    assert four.counter(job_id, "rows") == {"committed": 1, "tentative": 1}
    assert any("disconnected: killed by SIGKILL" in text for text in four.texts(job_id, "JOB_MESSAGE_WARNING"))


def test_code_that_ends_its_process_fails_the_job_after_four_processes(four: Cloud) -> None:
    job_id = four.submit("deadly", "deadly")["id"]
    assert four.ended(job_id) == "FAILED"
    assert sum("disconnected: exit status 3." in text for text in four.texts(job_id, "JOB_MESSAGE_ERROR")) == 4
    assert "work item has failed 4 times" in four.texts(job_id)[-1]


def test_a_flex_template_starts_the_job_that_was_queued(four: Cloud) -> None:
    four.put("template.json", json.dumps(TEMPLATE))
    environment = {
        "tempLocation": "gs://rows/tmp",
        "machineType": "n1-standard-2",
        "maxWorkers": 1,
        "ipConfiguration": "WORKER_IP_PRIVATE",
        "additionalUserLabels": {"team": "search"},
    }
    launch = {
        "jobName": "flex-words",
        "containerSpecGcsPath": "gs://rows/template.json",
        "parameters": {"output": "gs://rows/flex/counts"},
        "environment": environment,
    }
    path = "/v1b3/projects/llmbeam-sandbox/locations/us-central1/flexTemplates:launch"
    queued = four.api.post(path, json={"launchParameter": launch}).raise_for_status().json()["job"]
    assert queued["currentState"] == "JOB_STATE_QUEUED"
    again = four.api.post(path, json={"launchParameter": launch})
    assert (again.status_code, again.json()["error"]["status"]) == (409, "ALREADY_EXISTS")
    assert four.ended(queued["id"]) == "DONE", four.texts(queued["id"])
    assert four.sandbox.dataflow.states(queued["id"])[:3] == [
        f"JOB_STATE_{s}" for s in ("QUEUED", "PENDING", "RUNNING")
    ]
    pool = four.job(queued["id"], view="JOB_VIEW_ALL")["environment"]["workerPools"][0]
    assert (pool["machineType"], pool["ipConfiguration"]) == ("n1-standard-2", "WORKER_IP_PRIVATE")
    assert four.job(queued["id"])["labels"] == {"team": "search"}
    assert four.lines("flex/") == four.lines("out1/")
    assert len([job for job in four.sandbox.dataflow.jobs if job["name"] == "flex-words"]) == 1


def test_a_launcher_that_fails_fails_the_queued_job_whose_message_does_not_say_why(four: Cloud) -> None:
    # Its pipeline asks for no output, and for an SDK that is not there: it gives up before it submits.
    launch = {"jobName": "flex-bad", "containerSpec": {"image": "i"}, "parameters": {"sdk_location": "/absent"}}
    path = "/v1b3/projects/llmbeam-sandbox/locations/us-central1/flexTemplates:launch"
    queued = four.api.post(path, json={"launchParameter": launch}).raise_for_status().json()["job"]
    assert four.ended(queued["id"]) == "FAILED"
    assert four.texts(queued["id"], "JOB_MESSAGE_ERROR") == [
        "Error occurred in the launcher container: Template launch failed. See console logs."
    ]


def test_airflow_hooks_follow_a_job_over_rest_and_grpc(four: Cloud) -> None:
    job_id = next(job["id"] for job in four.sandbox.dataflow.jobs if job["currentState"] == "JOB_STATE_DONE")
    code = f"""
import asyncio, json
from airflow.providers.google.cloud.hooks.dataflow import AsyncDataflowHook, DataflowHook
where = {{"job_id": {job_id!r}, "project_id": "llmbeam-sandbox", "location": "us-central1"}}
told = {{"sync": DataflowHook().get_job(**where)["currentState"]}}
async def ask():
    hook = AsyncDataflowHook()
    told["async"] = (await hook.get_job_status(**where)).name
    told["messages"] = len([one async for one in await hook.list_job_messages(**where)])
    told["metrics"] = len((await hook.get_job_metrics(**where)).metrics)
asyncio.run(ask())
print(json.dumps(told))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], env=four.environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert (told["sync"], told["async"]) == ("JOB_STATE_DONE", "JOB_STATE_DONE")
    assert told["messages"] == len(four.texts(job_id))
    assert told["metrics"] > 0


def test_a_staged_wheel_comes_first_and_a_source_distribution_is_refused(four: Cloud, tmp_path: Path) -> None:
    wheel = tmp_path / "extra-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("extra.py", "WORD = 'staged'\n")
        file.writestr("extra-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n")
    sdist = tmp_path / "extra-1.0.tar.gz"
    sdist.write_bytes(b"")
    states = {
        name: four.submit("staged", name, f"--extra_package={package}", "--output=gs://rows/staged/out")["id"]
        for name, package in {"sdist": sdist, "wheel": wheel}.items()
    }
    assert four.ended(states["wheel"]) == "DONE"
    assert four.lines("staged/") == ["staged"]
    assert four.ended(states["sdist"]) == "FAILED"
    assert "The sandbox installs nothing: 'extra-1.0.tar.gz'" in four.texts(states["sdist"])[-1]


def test_every_bundle_can_be_run_once_more_without_effect(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    for repeating in cloud(bundle_repeats=1):
        told = repeating.submit("flaky", "repeated", f"--notes={notes}", "--failures=0", *outputs("repeated"))
        assert repeating.ended(told["id"]) == "DONE"
        assert len(notes.read_text().splitlines()) == 2
        assert (repeating.lines("repeated/out"), repeating.lines("repeated/total")) == (["5"], ["10"])
        assert repeating.counter(told["id"], "rows") == {"committed": 5, "tentative": 5}


def test_a_further_attempt_of_a_bundle_can_have_its_elements_in_another_order(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    for shuffling in cloud(bundle_repeats=2, shuffles_retries=True):
        told = shuffling.submit("ordered", "shuffled", f"--notes={notes}", *outputs("shuffled"))
        assert shuffling.ended(told["id"]) == "DONE"
        attempts = [json.loads(line) for line in notes.read_text().splitlines()]
        assert [sorted(attempt) for attempt in attempts] == [list(range(50))] * 3
        assert len(set(map(str, attempts))) == 3
        assert shuffling.lines("shuffled/out") == [str(sum(range(50)))]


def test_all_processes_end_with_a_sandbox_that_is_killed(tmp_path: Path) -> None:
    file, notes = tmp_path / "env", tmp_path / "notes"
    command = [
        sys.executable,
        "-m",
        "llmbeam_sandbox",
        "--port=0",
        f"--env={file}",
        "--bucket=rows",
    ]
    # Its certificates stay behind.
    beside = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=beside, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: file.exists() or process.poll() is not None, "the sandbox is ready or has ended")
            assert process.poll() is None
            variables = dict(line.removeprefix("export ").split("=", 1) for line in file.read_text().splitlines())
            environment = os.environ | {name: value.strip("'") for name, value in variables.items()}
            submit = [sys.executable, str(PIPELINES), "slow", *PLACES, "--job_name=slow"]
            subprocess.run([*submit, f"--notes={notes}"], env=environment, check=True, capture_output=True)
            processes = until(lambda: pids(notes), "the job runs")
        finally:
            process.send_signal(signal.SIGKILL)
    assert len(processes) == 2
    until(lambda: all(map(has_ended, processes)), "the harness and its runner end with the sandbox")
    assert not list(tmp_path.glob("llmbeam-dataflow-*"))
