"""Runs a case against a sandbox of its own, kills it at its moments, and records what happened."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import httpx
import psycopg
from llmbeam_sandbox import DataflowSettings, Fault, Latency, ModelSettings, Proxy, Sandbox
from llmbeam_sandbox.models.answers import answer_text, prompt_sha256
from psycopg import sql

from bench.run import environment_of
from bench.verdict.cases import REFUSED, Case, Provider
from bench.verdict.history import History, Kill, PublishedRow, Rent, Request, SourceRow
from bench.verdict.places import BUCKET, PROJECT, Bucket, Folder, Output, Place, dead_letter_of, make_output

LATENCY_SECONDS, WORKERS, LOCATION = 0.05, 2, "europe-west1"
#: Time after which a job counts as one that does not end, in seconds.
MAX_SECONDS = 300.0
HEAD = "Say it: "
METHODS: Mapping[Provider, str] = {
    "gemini": "gemini.generateContent",
    "vertex": "gemini.generateContent",
    "openai": "openai.chatCompletions",
    "anthropic": "anthropic.messages",
}
_ENDED = ("JOB_STATE_DONE", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED")
_QUOTED_CHARACTERS = 600


def record(case: Case, directory: Path, dsn: str, prism: str = "") -> History:
    """Runs a case to its end.

    Args:
        case: The case.
        directory: An empty folder.
        dsn: Connection string of a PostgreSQL server.
        prism: The binary of Prism.
    """
    models = ModelSettings(latency=Latency(mean_seconds=LATENCY_SECONDS))
    dataflow = DataflowSettings(workers=WORKERS, shuffles_retries=True)
    with (
        Sandbox(buckets=(BUCKET,), models=models, dataflow=dataflow) as sandbox,
        Proxy(sandbox) as proxy,
        new_database(dsn) as database,
    ):
        (directory / "data").mkdir()
        place: Place = Bucket(sandbox) if case.runner == "dataflow" else Folder(directory / "data")
        place.write(
            "in.jsonl", "".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(case.texts))
        )
        output = make_output(case.sink, place, sandbox, database)
        spec = _spec_of(case, place, output, sandbox, prism)
        keys = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "LLMBEAM_POSTGRES_DSN": database}
        environment = environment_of({**proxy.environment(), **keys, "AIRFLOW__LLMBEAM__ALLOWED_PROGRAMS": prism})
        if case.runner == "dataflow":
            spec["runner"]["environment_secrets"] = _make_secrets(case, keys | {"GOOGLE_API_KEY": "k"}, sandbox)
        if case.provider != "batch":
            method = METHODS[case.provider]
            sandbox.faults.when(method, HEAD + REFUSED, Fault(kind="error", http_status=400, message="refused"))
            sandbox.faults.queue(method, *[Fault(kind="error", http_status=503)] * case.failing)
        (directory / "spec.json").write_text(json.dumps(spec))
        job: _Job = (_OnDataflow if case.runner == "dataflow" else _Process)(case, directory, environment, sandbox)
        began_at = time.time()
        kills = tuple(_kills(case, job, sandbox, output.read))
        return History(
            case=case.name,
            began_at=began_at,
            failure=job.finish(),
            ended_at=time.time(),
            rows=rows_of(case.texts),
            requests=requests_of(sandbox, case.texts),
            published=output.read(),
            dead_letter=dead_letter_of(place),
            kills=kills,
            rents=rents_of(sandbox),
        )


def rows_of(texts: tuple[str, ...]) -> tuple[SourceRow, ...]:
    """Returns the rows of a source; their keys are their positions."""
    return tuple(SourceRow(key=key, prompt=prompt_sha256(HEAD + text)) for key, text in enumerate(texts))


def requests_of(sandbox: Sandbox, texts: tuple[str, ...]) -> tuple[Request, ...]:
    """Returns the log of the model server; the answer to a prompt depends on it and on the model alone."""
    prompts = {prompt_sha256(HEAD + text): HEAD + text for text in texts}
    return tuple(
        Request(
            prompt=each.prompt_sha256,
            http_status=each.http_status,
            is_paid=each.is_billed,
            answer=answer_text(prompts[each.prompt_sha256], model=each.model).text
            if each.is_billed and each.prompt_sha256 in prompts
            else "",
            received_at=each.received_at,
        )
        for each in sandbox.requests
        if each.prompt_sha256
    )


def rents_of(sandbox: Sandbox) -> tuple[Rent, ...]:
    """Returns what the bill for accelerators has, and what still runs."""
    charges = [*sandbox.bill.lines, *sandbox.bill.running]
    return tuple(
        Rent(name=each.name, gpus=each.gpus, since=each.since, until=each.until) for each in charges if each.gpus
    )


@contextmanager
def new_database(dsn: str) -> Iterator[str]:
    """Yields the connection string of an empty database."""
    name = f"verdict_{secrets.token_hex(4)}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield dsn.replace("/postgres", f"/{name}")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _spec_of(case: Case, place: Place, output: Output, sandbox: Sandbox, prism: str) -> dict[str, Any]:
    gemini = {"type": "gemini", "name": "gemini-2.5-flash", "base_url": sandbox.gemini_url}
    models: Mapping[Provider, dict[str, Any]] = {
        "gemini": gemini,
        "vertex": gemini | {"project": PROJECT},
        "batch": gemini,
        "openai": {"type": "openai", "name": "gemma-3-4b-it", "base_url": sandbox.openai_url},
        "anthropic": {"type": "anthropic", "name": "claude-haiku-5-5", "base_url": sandbox.url},
    }
    runners: dict[str, dict[str, Any]] = {
        "process": {},
        "prism": {"runner": {"type": "prism", "binary_path": prism}},
        "dataflow": {"runner": {"type": "dataflow", "project": PROJECT, "location": LOCATION}},
    }
    price = {"input_usd_per_million_tokens": 0.30, "output_usd_per_million_tokens": 2.50}
    return {
        "name": case.name,
        "source": {"uri": f"{place.uri}/in.jsonl", "key": ["id"]},
        "prompt": {"template": HEAD + "{{ row.text }}"},
        "model": models[case.provider],
        "generation": {"max_output_tokens": 500},
        "limits": {"max_in_flight": case.max_in_flight, "max_dead_letter_ratio": 1.0, "price": price},
        "batching": {"max_batch_size": case.max_batch_size},
        "sink": output.spec,
        "state_uri": f"{place.uri}/state",
        **runners[case.runner],
        **({"inference": {"mode": "batch"}} if case.provider == "batch" else {}),
    }


def _make_secrets(case: Case, values: Mapping[str, str], sandbox: Sandbox) -> dict[str, str]:
    """Puts what the workers of a case need into Secret Manager; returns the secrets by variable."""
    needed = {"gemini": "GOOGLE_API_KEY", "openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
    names = [needed[case.provider]] if case.provider in needed else []
    names += ["LLMBEAM_POSTGRES_DSN"] if case.sink == "postgres" else []
    address = f"{sandbox.authorized_url}/v1/projects/{PROJECT}/secrets"
    for name in names:
        made = httpx.post(address, params={"secretId": name}, json={"replication": {"automatic": {}}})
        made.raise_for_status()
        data = b64encode(values[name].encode()).decode()
        httpx.post(f"{address}/{name}:addVersion", json={"payload": {"data": data}}).raise_for_status()
    return {name: f"projects/{PROJECT}/secrets/{name}/versions/latest" for name in names}


class _Job(Protocol):
    """A job that can be killed and goes on."""

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended by itself."""

    def kill(self) -> int:
        """Kills the job or a worker, and has it go on; returns how many requests may have been in flight."""

    def finish(self) -> str:
        """Waits for the end; returns what failed, or ""."""


def _kills(
    case: Case, job: _Job, sandbox: Sandbox, read: Callable[[], tuple[PublishedRow, ...]]
) -> Iterator[Kill]:
    for moment in case.kills:
        deadline = time.monotonic() + MAX_SECONDS
        while sandbox.requests.paid().total() < moment and not job.has_ended and time.monotonic() < deadline:
            time.sleep(0.002)
        if job.has_ended:  # it was quicker
            return
        since = time.time()
        in_flight = job.kill()
        yield Kill(since=since, until=time.time(), in_flight=in_flight, published=len(read()))


class _Process:
    """A job in a process of this machine, which a kill ends with kill -9; the next one resumes it."""

    def __init__(self, case: Case, directory: Path, environment: dict[str, str], sandbox: Sandbox) -> None:
        self._case, self._directory, self._environment = case, directory, environment
        self._start()

    def _start(self) -> None:
        # As a task starts it: it ends when its standard input closes, that is, with this process.
        command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--child"]
        command.append(f"--spec={self._directory}/spec.json")
        with (self._directory / "output.txt").open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def kill(self) -> int:
        """Kills the process, and those that it has started."""
        self._end()
        self._start()
        return self._case.max_in_flight

    def finish(self) -> str:
        """Waits for the end."""
        try:
            status = self._process.wait(MAX_SECONDS)
        except subprocess.TimeoutExpired:
            self._end()
            return f"the job did not end within {MAX_SECONDS:g} s: {self._quote()}"
        self._process.communicate()
        return f"exit status {status}: {self._quote()}" if status else ""

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _quote(self) -> str:
        return (self._directory / "output.txt").read_text(errors="replace")[-_QUOTED_CHARACTERS:]


class _OnDataflow:
    """A job on the emulated Dataflow; a kill ends a worker, or the job, which is then submitted again."""

    def __init__(self, case: Case, directory: Path, environment: dict[str, str], sandbox: Sandbox) -> None:
        self._case, self._directory, self._environment, self._sandbox = case, directory, environment, sandbox
        self._failure = self._id = ""
        self._submit()

    def _submit(self) -> None:
        command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--step=submit"]
        command.append(f"--spec={self._directory}/spec.json")
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode:
            self._failure = f"not submitted: {done.stderr[-_QUOTED_CHARACTERS:]}"
        else:
            self._id = str(json.loads(done.stdout)["id"])

    @property
    def _state(self) -> str:
        return next(str(job["currentState"]) for job in self._sandbox.dataflow.jobs if job["id"] == self._id)

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended, or was never there."""
        return bool(self._failure) or self._state in _ENDED

    def kill(self) -> int:
        """Kills a worker, or cancels the job."""
        address = f"{self._sandbox.authorized_url}/v1b3/projects/{PROJECT}/locations/{LOCATION}/jobs/{self._id}"
        if self._case.kills_worker:
            before = self._lost_workers(address)
            self._sandbox.dataflow.kill_harness(self._id)
            self._wait(lambda: self.has_ended or self._lost_workers(address) > before)
            return self._case.max_in_flight
        httpx.put(address, json={"requestedState": "JOB_STATE_CANCELLED"}).raise_for_status()
        self._wait(lambda: self.has_ended)
        self._submit()
        return WORKERS * self._case.max_in_flight

    def finish(self) -> str:
        """Waits for the end."""
        self._wait(lambda: self.has_ended)
        if not self._failure and self._state != "JOB_STATE_DONE":
            self._failure = f"the job is in state {self._state}"
        return self._failure

    def _lost_workers(self, address: str) -> int:
        messages = httpx.get(f"{address}/messages", params={"minimumImportance": "JOB_MESSAGE_WARNING"})
        found = messages.raise_for_status().json().get("jobMessages", [])
        return sum(message["messageImportance"] == "JOB_MESSAGE_WARNING" for message in found)

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + MAX_SECONDS
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.02)
