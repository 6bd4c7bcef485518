"""What the modules that share one real Airflow have in common: its cloud, a run of a Dag, and playing cases."""

from __future__ import annotations

import base64
import gzip
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from itertools import count
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import psycopg
from llmbeam_sandbox import Sandbox
from local_airflow import LocalAirflow
from waiting import scaled, until

from airflow_provider_llmbeam.spec.protocol.manifest import PAGE_KEY

#: Timeout of one step of a case, in seconds of the reference machine.
STEP_SECONDS = 180
#: Components of Airflow that run tasks and triggers, with the types of their jobs in its metadata database.
COMPONENTS = {"scheduler": "SchedulerJob", "triggerer": "TriggererJob"}
#: Two heartbeats of a scheduler and one of its loops.
HEARTBEATS_SECONDS = 7
#: After this time without a heartbeat a liveness probe has a component killed and started again, in seconds.
PROBE_SECONDS = 60


def shown_page(dag_run: Any, task_id: str) -> str:
    """Returns the page that a task shows in Airflow."""
    page = dag_run.get_task_instance(task_id).xcom_pull(task_ids=task_id, key=PAGE_KEY)
    return gzip.decompress(base64.b64decode(page["html_gzip"])).decode()


class Cloud:
    """The sandbox, Airflow and its metadata database.

    Args:
        sandbox: The emulated cloud.
        airflow: The Airflow that all modules share.
        database: Connection string of its metadata database.

    Attributes:
        left: What each case left; an error where a case could not be played.
    """

    def __init__(self, sandbox: Sandbox, airflow: LocalAirflow, database: str) -> None:
        self.sandbox = sandbox
        self.airflow = airflow
        self.left: dict[str, Any] = {}
        self._database = database
        self._local = threading.local()
        self._connections: list[psycopg.Connection[Any]] = []

    def close(self) -> None:
        """Closes the connections of all threads to the metadata database."""
        for connection in self._connections:
            connection.close()

    def upload(self, name: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Writes JSON lines to the bucket `rows`."""
        text = "".join(json.dumps(row) + "\n" for row in rows)
        url = f"{self.sandbox.authorized_url}/upload/storage/v1/b/rows/o"
        httpx.post(url, params={"uploadType": "media", "name": name}, content=text).raise_for_status()

    def download(self, name: str) -> str | None:
        """Reads an object of the bucket `rows`."""
        url = f"{self.sandbox.authorized_url}/storage/v1/b/rows/o/{quote(name, safe='')}"
        answer = httpx.get(url, params={"alt": "media"})
        return None if answer.status_code == 404 else answer.raise_for_status().text

    def objects(self, prefix: str) -> list[str]:
        """Returns the names of the objects of the bucket `rows` that begin with a prefix."""
        url = f"{self.sandbox.authorized_url}/storage/v1/b/rows/o"
        found = httpx.get(url, params={"prefix": prefix}).raise_for_status().json()
        return [item["name"] for item in found.get("items", ())]

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Runs a statement on Airflow's metadata database; again where a case has cut this very connection."""
        try:
            return self._execute(statement, values)
        except psycopg.OperationalError:
            self._local.connection = None
            return self._execute(statement, values)

    def _execute(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = psycopg.connect(self._database, autocommit=True)
            self._connections.append(connection)
        cursor = connection.execute(statement, values)
        return cursor.fetchall() if cursor.description else []

    def tables(self) -> dict[str, str]:
        """Returns the rows of each table of Airflow's metadata database, as text."""
        found = self.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        return {name: str(self.execute(f'SELECT row_to_json(t)::text FROM "{name}" t')) for (name,) in found}

    def heartbeat(self, kind: str) -> datetime:
        """Returns the last heartbeat of a `SchedulerJob` or a `TriggererJob`."""
        ((at,),) = self.execute("SELECT max(latest_heartbeat) FROM job WHERE job_type = %s", kind)
        return at

    def wait_heartbeats(self, kind: str, number: int = 2) -> None:
        """Waits until a component has had time for whatever there is to do."""
        for _ in range(number):
            before = self.heartbeat(kind)
            until(lambda: self.heartbeat(kind) > before, f"a heartbeat of a {kind}", STEP_SECONDS, 0.2)  # noqa: B023

    def forget_heartbeats(self, kind: str) -> None:
        """Sets the clock forward for a component that was killed, so that another one takes over at once."""
        self.execute(
            "UPDATE job SET latest_heartbeat = latest_heartbeat - interval '1 day'"
            " WHERE job_type = %s AND state = 'running'",
            kind,
        )

    def forget_task_heartbeats(self, run_id: str, task_id: str = "%") -> None:
        """Sets the clock forward for tasks whose supervisors were killed; `task_id` is a LIKE pattern."""
        self.execute(
            "UPDATE task_instance SET last_heartbeat_at = last_heartbeat_at - interval '1 day'"
            " WHERE run_id = %s AND task_id LIKE %s AND state IN ('running', 'restarting')",
            run_id,
            task_id,
        )

    def revive(self, name: str, within_seconds: float = -HEARTBEATS_SECONDS) -> None:
        """Starts a component again if it has ended, or sends no heartbeat, as a service manager does.

        Args:
            name: Component.
            within_seconds: Age of a heartbeat that shows that it lives, in seconds; negative for one to come.
        """
        kind, begun = COMPONENTS[name], time.monotonic()
        ((wanted,),) = self.execute("SELECT now() - %s * interval '1 second'", within_seconds)

        def lives() -> bool:
            if self.airflow.is_running(name) and time.monotonic() - begun > scaled(PROBE_SECONDS):
                self.kill_scheduler() if name == "scheduler" else self.kill(name, kind)
            if self.airflow.is_running(name):
                return self.heartbeat(kind) > wanted
            self.forget_heartbeats(kind)
            self.airflow.start(name)
            return True

        until(lives, f"the {name} lives or is started again", STEP_SECONDS)

    def kill(self, name: str, kind: str) -> None:
        """Kills a component with all that it started, and has its heartbeats forgotten."""
        kill_all(tree(self.airflow.component(name)))
        self.forget_heartbeats(kind)

    def kill_scheduler(self) -> None:
        """Kills the scheduler alone: the workers of its LocalExecutor go on, and with them their tasks."""
        scheduler = self.airflow.component("scheduler")
        ports = [connection.laddr.port for connection in scheduler.net_connections("tcp")]
        kill_all([scheduler])
        # The workers were forked with its connections, so that PostgreSQL does not see their end, and what the
        # scheduler had locked stays locked: with Airflow 3.3.2 the next one then starts no task of those runs.
        self.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE client_port = ANY(%s)", ports)
        self.forget_heartbeats("SchedulerJob")


class Run:
    """A run of a Dag, read from the metadata database: many cases at a time would keep the API busy.

    Args:
        cloud: Where it runs.
        dag_id: Dag of the run.
        rows: Number of rows, uploaded as `in.jsonl` of the case where there are any.

    Attributes:
        case: Folder of the run in the bucket `rows`; a part of each prompt.
        texts: One for each row.
        run_id: Id of the run.
    """

    _numbers = count(1)

    def __init__(self, cloud: Cloud, dag_id: str, rows: int = 0) -> None:
        self.cloud, self.dag_id = cloud, dag_id
        self.case = f"case-{next(self._numbers)}"
        self.texts = [f"{self.case} {number}" for number in range(rows)]
        if self.texts:
            lines = ({"id": number, "text": text} for number, text in enumerate(self.texts))
            cloud.upload(f"{self.case}/in.jsonl", lines)
        self.run_id = cloud.airflow.trigger(dag_id, self.conf())

    def conf(self) -> dict[str, str]:
        """Returns the configuration of the run; called before it starts."""
        return {"case": self.case}

    def task_fields(self, task_id: str) -> dict[str, Any]:
        """Returns id, state, number of the try, process and moments of a task."""
        return self.tasks_fields()[task_id]

    def tasks_fields(self) -> dict[str, dict[str, Any]]:
        """Returns the same of all tasks by their ids."""
        found = self.cloud.execute(
            "SELECT task_id, id, state, try_number, pid, start_date, end_date FROM task_instance"
            " WHERE dag_id = %s AND run_id = %s",
            self.dag_id,
            self.run_id,
        )
        names = ("id", "state", "try_number", "pid", "start_date", "end_date")
        return {task_id: dict(zip(names, values, strict=True)) for task_id, *values in found}

    @property
    def state(self) -> str:
        """State of the run."""
        statement = "SELECT state FROM dag_run WHERE dag_id = %s AND run_id = %s"
        ((state,),) = self.cloud.execute(statement, self.dag_id, self.run_id)
        return state

    def log(self, task_id: str, try_number: int | None = None) -> str:
        """Returns the lines of a try of a task and of its triggers, or of all tries, from Airflow's log files."""
        logs = self.cloud.airflow.home / "logs" / f"dag_id={self.dag_id}" / f"run_id={self.run_id}"
        files = sorted((logs / f"task_id={task_id}").glob(f"attempt={try_number or '*'}.log*"))
        return "\n".join(
            _event(line) for file in files for line in file.read_text(errors="replace").splitlines() if line
        )

    def describe(self) -> str:
        """Describes the run for the error of a wait."""
        states = {task_id: task["state"] for task_id, task in self.tasks_fields().items()}
        logs = "\n".join(f"{task_id}:\n{self.log(task_id)[-2000:]}" for task_id in states)
        return f"{self.dag_id} is {self.state}, its tasks are {states}\n{logs}"

    def until(self, condition: Callable[[], object], what: str, pause_seconds: float = 0.3) -> Any:
        """Waits for a condition; the error of a timeout describes the run."""
        return until(condition, lambda: f"{what}; {self.describe()}", STEP_SECONDS, pause_seconds)

    def until_task(self, task_id: str, *states: str) -> None:
        """Waits until a task has one of some states."""
        self.until(lambda: self.task_fields(task_id)["state"] in states, f"{task_id} is {' or '.join(states)}")

    def until_logged(self, task_id: str, words: str) -> None:
        """Waits until a task or its trigger has logged something."""
        self.until(lambda: words in self.log(task_id), f"the log of {task_id} says {words!r}")

    def process_of(self, task_id: str) -> psutil.Process:
        """Waits for the process of a running task."""

        def found() -> psutil.Process | None:
            task = self.task_fields(task_id)
            if task["state"] != "running" or not task["pid"]:
                return None
            process = psutil.Process(task["pid"])
            # The pid is that of an earlier try until the next one has begun.
            return process if str(task["id"]) in " ".join(process.cmdline()) else None

        def found_alive() -> psutil.Process | None:
            try:
                return found()
            except psutil.NoSuchProcess:
                return None

        return self.until(found_alive, f"{task_id} has a process", pause_seconds=0.1)

    def mark_task(self, task_id: str, state: str) -> None:
        """Marks a task, as a person does in the UI."""
        self.cloud.airflow.set_task_state(self.dag_id, self.run_id, task_id, state)


def play_all(
    cloud: Cloud, cases: Mapping[str, Callable[[Cloud], Any] | None], at_once: int, *others: Callable[[], None]
) -> None:
    """Plays cases at the same time, and records what each left or why it could not be played.

    Args:
        cloud: Where to play and record.
        cases: Each plays one case and returns its run; None is recorded by one of the others.
        at_once: How many play at the same time.
        others: Played among them.
    """

    def play(name: str, case: Callable[[Cloud], Any]) -> None:
        try:
            cloud.left[name] = case(cloud).left()
        except Exception as error:  # noqa: BLE001 - shown by the test of this case
            cloud.left[name] = error

    with ThreadPoolExecutor(at_once) as pool:
        for name, case in cases.items():
            if case is not None:
                pool.submit(play, name, case)
        for other in others:
            pool.submit(other)


def show_table(pytestconfig: Any, title: str, rows: Iterable[Iterable[str]], seconds: float) -> None:
    """Prints a table in Markdown, also where pytest captures output."""
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    with pytestconfig.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print(f"\n\n{title}, {seconds:.0f} s\n\n{lines}\n")


def tree(process: psutil.Process) -> list[psutil.Process]:
    """Returns a process and all that came of it."""
    return [process, *process.children(recursive=True)]


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kills processes with kill -9, and waits until all have ended; those nobody waits for stay as zombies."""
    killed = list(processes)
    for process in killed:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    until(lambda: not any(map(_runs, killed)), "the end of the killed processes", STEP_SECONDS, 0.05)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _event(line: str) -> str:
    """Returns the message of a line; that of a skip has its reason."""
    try:
        item = json.loads(line)
        return " ".join(filter(None, (item["event"], item.get("reason"))))
    except (ValueError, KeyError, TypeError):
        return line
