"""Runs a real Airflow on this machine: scheduler, triggerer, API server and UI, with its own AIRFLOW_HOME.

It ends with the process that runs it, in whichever way that ends.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import sessions
from waiting import scaled, until

#: The command `airflow` of this environment.
AIRFLOW = str(Path(sys.executable).with_name("airflow"))
#: Task states in which a run can still continue.
UNFINISHED = frozenset({"queued", "running"})


class LocalAirflow:
    """Controls `airflow standalone` through its REST API.

    Attributes:
        url: Address of the UI and the API.
        home: AIRFLOW_HOME.
        log_path: File with the output of `airflow standalone`.
        process: Process of `airflow standalone`, the parent of all components.
    """

    def __init__(self, url: str, home: Path, environment: Mapping[str, str]) -> None:
        self.url = url
        self.home = home
        self.log_path = home / "standalone.log"
        self._environment = environment
        self._started: list[sessions.Leader] = []
        self._client = httpx.Client(base_url=f"{url}/api/v2", timeout=scaled(30), trust_env=False)
        self.process = self._launch("standalone")

    def close(self) -> None:
        """Closes the connection and ends all processes of this Airflow."""
        self._client.close()
        for process in (*self._started, self.process):
            end_process_group(process)
        self._kill_sessions()

    def kill(self) -> None:
        """Kills all processes of this Airflow at once, with kill -9."""
        roots = [psutil.Process(self.process.pid), *map(psutil.Process, self._running())]
        for process in roots + [child for root in roots for child in root.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for started in (self.process, *self._started):
            started.wait()
        self._kill_sessions()

    def _kill_sessions(self) -> None:
        """Kills what outlived its component: a killed scheduler leaves the workers of its LocalExecutor."""
        sessions.kill((self.process, *self._started))

    def start_again(self, ready_within_seconds: float = 180) -> None:
        """Starts `airflow standalone` again after `kill`, in the same home and on the same port.

        Raises:
            RuntimeError: Airflow ended at once, or was not ready in time; quotes its log.
        """
        self._started.clear()
        begin = self.log_path.stat().st_size
        self.process = self._launch("standalone")
        self.wait_until_ready(ready_within_seconds, begin)

    def wait_until_ready(self, ready_within_seconds: float, log_begin: int = 0) -> None:
        """Waits until Airflow is ready.

        Args:
            ready_within_seconds: Timeout on the reference machine of `waiting`, in seconds.
            log_begin: Offset in the log at which this start begins, in bytes.

        Raises:
            RuntimeError: Airflow ended at once, or was not ready in time; quotes its log.
        """
        deadline = time.monotonic() + scaled(ready_within_seconds)
        while b"Airflow is ready" not in self.log_path.read_bytes()[log_begin:] or not _answers(self.url):
            if self.process.poll() is not None or time.monotonic() > deadline:
                words = self.log_path.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"Airflow did not start; its log {self.log_path} ends:\n{words}")
            time.sleep(0.3)
        # Airflow 3.1 requires a token even if every user is an admin.
        token = self._client.get(f"{self.url}/auth/token").raise_for_status().json()["access_token"]
        self._client.headers["Authorization"] = f"Bearer {token}"

    def component(self, name: str) -> psutil.Process:
        """Returns the process of the `scheduler`, the `triggerer` or the `dag-processor`.

        Raises:
            RuntimeError: The component is not running.
        """
        if (found := self._component(name)) is None:
            raise RuntimeError(f"no {name} runs; the log of Airflow is {self.log_path}")
        return found

    def is_running(self, name: str) -> bool:
        """Returns whether a component is running."""
        return self._component(name) is not None

    def start(self, name: str) -> None:
        """Starts another `scheduler`, `triggerer` or `dag-processor`, as a service manager does after a crash."""
        self._started.append(self._launch(name))

    def trigger(
        self,
        dag_id: str,
        conf: Mapping[str, Any] | None = None,
        logical_date: str | None = None,
        run_id: str | None = None,
    ) -> str:
        """Starts a run, by default without a logical date, once its Dag is parsed.

        Returns:
            Id of the run; by default Airflow makes one.
        """
        dag = f"dags/{dag_id}"
        until(lambda: self._client.get(dag).status_code != 404, f"{dag_id} is parsed", pause_seconds=0.5)
        body = {"logical_date": logical_date, "conf": dict(conf or {}), "dag_run_id": run_id}
        return str(self._call("POST", f"{dag}/dagRuns", json=body)["dag_run_id"])

    def command(self, *arguments: str) -> str:
        """Runs an `airflow` command against this Airflow; returns its output.

        Raises:
            RuntimeError: The command failed.
        """
        ended = subprocess.run([AIRFLOW, *arguments], env=self._environment, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(f"airflow {' '.join(arguments)}: {ended.stderr[-2000:]}")
        return ended.stdout

    def runs(self, dag_id: str) -> dict[str, str]:
        """Returns the states of a Dag's runs by their ids."""
        found = self._call("GET", f"dags/{dag_id}/dagRuns", params={"limit": 100})["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in found}

    def is_backfilling(self, dag_id: str) -> bool:
        """Returns whether a backfill of a Dag is active; it ends some seconds after its last run."""
        found = self._call("GET", "backfills", params={"dag_id": dag_id})["backfills"]
        return any(backfill["completed_at"] is None for backfill in found)

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Returns a run as the API shows it."""
        return self._call("GET", f"dags/{dag_id}/dagRuns/{run_id}")

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Returns `queued`, `running`, `success` or `failed`."""
        return str(self.run(dag_id, run_id)["state"])

    def wait(self, dag_id: str, run_id: str, timeout_seconds: float) -> str:
        """Waits for the end of a run; returns its state.

        Args:
            dag_id: Id of the Dag.
            run_id: Id of the run.
            timeout_seconds: Timeout on the reference machine of `waiting`, in seconds.

        Raises:
            TimeoutError: The run did not end in time.
        """

        def ended() -> str | None:
            state = self.run_state(dag_id, run_id)
            return None if state in UNFINISHED else state

        return until(ended, f"the end of {dag_id} {run_id}", timeout_seconds, pause_seconds=0.5) or ""

    def tasks(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """Returns the task instances of a run by their ids."""
        found = self._call("GET", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances", params={"limit": 100})
        return {task["task_id"]: task for task in found["task_instances"]}

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """Returns a task instance as the API shows it."""
        return self._call("GET", f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}")

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Marks a task, as a user does in the UI."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        self._call("PATCH", path, json={"new_state": state})

    def clear(self, dag_id: str, run_id: str, task_id: str | None = None) -> None:
        """Clears a run, or one of its tasks with the downstream tasks, as a user does in the UI."""
        if task_id is None:
            self._call("POST", f"dags/{dag_id}/dagRuns/{run_id}/clear", json={"dry_run": False})
            return
        options = {"dry_run": False, "only_failed": False, "include_downstream": True}
        body = {"dag_run_id": run_id, "task_ids": [task_id], **options}
        self._call("POST", f"dags/{dag_id}/clearTaskInstances", json=body)

    def set_run_state(self, dag_id: str, run_id: str, state: str) -> None:
        """Marks a run, as a user does in the UI."""
        self._call("PATCH", f"dags/{dag_id}/dagRuns/{run_id}", json={"state": state})

    def pause(self, dag_id: str, *, is_paused: bool = True) -> None:
        """Pauses or unpauses a Dag."""
        self._call("PATCH", f"dags/{dag_id}", json={"is_paused": is_paused})

    def add_connection(self, connection_id: str, **fields: Any) -> None:
        """Adds a connection, as a user does in the UI; `fields` as in the API."""
        self._call("POST", "connections", json={"connection_id": connection_id, **fields})

    def delete_connection(self, connection_id: str) -> None:
        """Deletes a connection."""
        self._call("DELETE", f"connections/{connection_id}")

    def xcom(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """Returns the return value of a task."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
        return self._call("GET", path, params={"deserialize": "true"})["value"]

    def add_xcom(self, dag_id: str, run_id: str, task_id: str, key: str, value: Any) -> None:
        """Stores an XCom of a task, as the task itself would."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries"
        self._call("POST", path, json={"key": key, "value": value})

    def required_actions(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Returns the forms of a run that people fill in, as the page "Required Actions" shows them."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/hitlDetails"
        found: list[dict[str, Any]] = self._call("GET", path, params={"limit": 100})["hitl_details"]
        return found

    def respond(self, task: Mapping[str, Any], option: str, fields: Mapping[str, Any]) -> None:
        """Fills in a form of a task instance, as a person does in the UI.

        Args:
            task: The `task_instance` of the form.
            option: The option that is chosen.
            fields: Values of all its fields.
        """
        run = f"dags/{task['dag_id']}/dagRuns/{task['dag_run_id']}"
        path = f"{run}/taskInstances/{task['task_id']}/{task['map_index']}/hitlDetails"
        self._call("PATCH", path, json={"chosen_options": [option], "params_input": dict(fields)})

    def log_lines(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> list[str]:
        """Returns the messages of a task's log so far; the log of a skipped task contains the reason."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        content = self._call("GET", path, params={"full_content": "true"})["content"]
        return [
            " ".join(filter(None, (item["event"], item.get("reason")))) if isinstance(item, dict) else str(item)
            for item in content
        ]

    def import_errors(self) -> list[dict[str, Any]]:
        """Returns the import errors of Dag files."""
        errors: list[dict[str, Any]] = self._call("GET", "importErrors")["import_errors"]
        return errors

    def _component(self, name: str) -> psutil.Process | None:
        begun = map(psutil.Process, self._running())
        for process in [*begun, *psutil.Process(self.process.pid).children()]:
            try:
                if process.status() != psutil.STATUS_ZOMBIE and name in " ".join(process.cmdline()).split():
                    return process
            except psutil.NoSuchProcess:
                continue
        return None

    def _running(self) -> list[int]:
        return [process.pid for process in self._started if process.poll() is None]

    def _launch(self, name: str) -> sessions.Leader:
        with self.log_path.open("ab") as log:
            return sessions.start([AIRFLOW, name], env=self._environment, stdout=log, stderr=subprocess.STDOUT)

    def _call(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        response = self._client.request(method, path, **kwargs)
        if response.is_error:
            raise RuntimeError(f"{method} {path}: HTTP {response.status_code} {response.text[:500]}")
        answer: dict[str, Any] = response.json() if response.content else {}
        return answer


@contextmanager
def local_airflow(
    home: Path,
    dags_folder: Path,
    environment: Mapping[str, str],
    *,
    ready_within_seconds: float = 180,
) -> Iterator[LocalAirflow]:
    """Runs Airflow during the `with` block, and ends all its processes afterwards.

    Args:
        home: AIRFLOW_HOME; created, and kept afterwards.
        dags_folder: Folder of the Dags; Airflow only reads it.
        environment: Additional environment variables, e.g. connections.
        ready_within_seconds: Timeout of the start on the reference machine of `waiting`, in seconds (usual: 10).

    Raises:
        RuntimeError: Airflow ended at once, or was not ready in time; quotes its log.
    """
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    whole = {**os.environ, **airflow_environment(home, dags_folder, port), **environment}
    with closing(LocalAirflow(f"http://127.0.0.1:{port}", home, whole)) as airflow:
        airflow.wait_until_ready(ready_within_seconds)
        yield airflow


def airflow_environment(home: Path, dags_folder: Path, port: int) -> dict[str, str]:
    """Returns settings that make a local Airflow fast and quiet, and keep all its files in `home`."""
    options = {
        "CORE__DAGS_FOLDER": dags_folder,
        "CORE__LOAD_EXAMPLES": False,
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
        "CORE__PARALLELISM": 4,
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": True,
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=60",
        "API__HOST": "127.0.0.1",
        "API__PORT": port,
        "API__WORKERS": 1,
        "API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "DAG_PROCESSOR__REFRESH_INTERVAL": 5,
        "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": 1,
        "SCHEDULER__USE_JOB_SCHEDULE": False,  # only the runs that are triggered
        # At least Airflow's defaults: a busy machine makes live components and tasks miss shorter ones. A test
        # that kills one sets its last heartbeat back instead of waiting.
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": 300,
        "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": round(scaled(30)),
        "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": round(scaled(30)),
        "TRIGGERER__RUNNER_HEALTH_CHECK_THRESHOLD": round(scaled(30)),
        # 5 s by default: where a busy API server takes longer to answer, the try of a task fails before it begins.
        "WORKERS__EXECUTION_API_TIMEOUT": round(scaled(15)),
        # 5 by default, which are over before an API server that starts beside the scheduler answers.
        "WORKERS__EXECUTION_API_RETRIES": 12,
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": 5,  # 10 s by default
        "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": 5,  # 300 s by default
        "TRIGGERER__JOB_HEARTBEAT_SEC": 2,
        "LOGGING__LOGGING_LEVEL": "INFO",
        "LOGGING__WORKER_LOG_SERVER_PORT": free_port(),
        "LOGGING__TRIGGER_LOG_SERVER_PORT": free_port(),
        "USAGE_DATA_COLLECTION__ENABLED": False,
    }
    return {
        "AIRFLOW_HOME": str(home),
        "NO_COLOR": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        **{f"AIRFLOW__{name}": str(value) for name, value in options.items()},
    }


def free_port() -> int:
    """Returns a port on which no process listens.

    Airflow binds it some 15 s later. In the meantime, an outgoing connection of any process may take an ephemeral
    port (on Linux from 32768 on); the returned port is not one of those.

    Raises:
        RuntimeError: No free port was found.
    """
    for _ in range(100):
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port between 20000 and 31999 is free on 127.0.0.1")


def end_process_group(leader: sessions.Leader, grace_seconds: float = 20) -> None:
    """Ends a session leader and its children: `airflow standalone` alone would orphan them."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if not _group_lives(leader):
            break
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.killpg(leader.pid, sign)
        deadline = time.monotonic() + grace_seconds
        while time.monotonic() < deadline and _group_lives(leader):
            time.sleep(0.1)
    leader.wait()


def _group_lives(leader: sessions.Leader) -> bool:
    leader.poll()
    if not leader.has_its_id:
        return False
    try:
        os.killpg(leader.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _answers(url: str) -> bool:
    """Returns whether both APIs answer; that of the tasks is built at its first request, which takes seconds."""
    try:
        paths = ("api/v2/version", "execution/health")
        return all(httpx.get(f"{url}/{path}", timeout=scaled(15), trust_env=False).is_success for path in paths)
    except httpx.HTTPError:
        return False
