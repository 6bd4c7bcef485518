"""Measures the cost of waiting sensors: `python -m bench.waiting_sensors [--sensors 200] [--seconds 120]`.

It runs a real Airflow, with its own triggerer, and the sandbox in a separate process, where the pool is exhausted.
One `QuotaHealthSensor` starts and defers itself. Starting hundreds would take a scheduler minutes, which are not
measured: its rows in the metadata database are copied, and the triggerer runs the copies as after a restart.

It prints, for the triggerer and its children, without sensors and with all: the share of one core, memory, threads
and open connections; the calls of Cloud Monitoring and the model; and the delay of the poll results after the
time at which the polls were due, the polls themselves included.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bench.exhausted_cloud import ExhaustedCloud, exhausted_cloud
from bench.venvs import ROOT

if TYPE_CHECKING:
    from local_airflow import LocalAirflow

DAG_ID = "waiting"
#: Default interval of Airflow's sensors, which the Dag uses.
POKE_INTERVAL_SECONDS = 60.0
#: Part of the sentence that each poll writes to the log of its task.
TOLD = "is exhausted"
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Use:
    """Resource usage of some processes.

    Attributes:
        at: Time of the monotonic clock, in seconds.
        cpu_seconds: Processor time so far.
        memory_mib: Current memory; memory that they share is counted once.
        threads: Current number of threads.
        connections: Current number of open connections to the sandbox's proxy.
    """

    at: float
    cpu_seconds: float
    memory_mib: float
    threads: int
    connections: int


def main() -> None:
    """Measures and prints the cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sensors", type=int, default=200, metavar="N", help="that wait (default: 200)")
    parser.add_argument("--seconds", type=float, default=120.0, metavar="X", help="to measure (default: 120)")
    parser.add_argument("--probes", type=int, default=0, metavar="N", help="`probe_requests` (default: 0)")
    parser.add_argument(
        "--latency-seconds", type=float, default=0.0, metavar="X", help="of each reply of the cloud (default: 0)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, exhausted_cloud(options.latency_seconds) as cloud:
        home = Path(directory)
        with _airflow(home, {**cloud.environment, "LLMBEAM_BENCH_PROBES": str(options.probes)}) as airflow:
            _measure(airflow, cloud, home, options.sensors, options.seconds)


def _measure(airflow: LocalAirflow, cloud: ExhaustedCloud, home: Path, sensors: int, seconds: float) -> None:
    triggerer = airflow.component("triggerer")
    idle = _used(triggerer)
    time.sleep(20)
    _say(f"{'no sensor':>12}  {_line(idle, _used(triggerer))}")
    run_id = airflow.trigger(DAG_ID)
    _until(lambda: airflow.task(DAG_ID, run_id, "wait")["state"] == "deferred", "the sensor is deferred")
    _copy_rows(home / "airflow.db", sensors - 1)
    _until(lambda: len(_looks(home)) == sensors, "every sensor has looked")
    begun, requests, since = _used(triggerer), cloud.requests(), time.time()
    time.sleep(seconds)
    ended, asked = _used(triggerer), cloud.requests()
    _say(f"{f'{sensors} sensors':>12}  {_line(begun, ended)}")
    minutes = (ended.at - begun.at) / 60
    for method, calls in asked.items():
        _say(f"{'':>12}  {(calls - requests.get(method, 0)) / minutes:.0f} {method} per minute")
    late = sorted(
        after - before - POKE_INTERVAL_SECONDS
        for moments in _looks(home).values()
        for before, after in pairwise(moments)
        if after > since
    )
    _say(
        f"{'':>12}  {len(late)} looks, told after they were due: median {statistics.median(late):.1f} s, "
        f"95th percentile {late[int(0.95 * len(late))]:.1f} s, the last {late[-1]:.1f} s"
    )


@contextmanager
def _airflow(home: Path, environment: Mapping[str, str]) -> Iterator[LocalAirflow]:
    sys.path.append(str(ROOT / "scripts"))
    from local_airflow import local_airflow

    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with local_airflow(home, ROOT / "bench" / "dags", {**environment, "PYTHONPATH": path}) as airflow:
        yield airflow


def _copy_rows(database: Path, copies: int) -> None:
    """Copies the one deferred task and its trigger."""
    with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
        connection.row_factory = sqlite3.Row
        (task,) = map(dict, connection.execute("SELECT * FROM task_instance WHERE state = 'deferred'"))
        (trigger,) = map(dict, connection.execute("SELECT * FROM trigger WHERE id = ?", [task["trigger_id"]]))
        for number in range(copies):
            other = {**trigger, "id": trigger["id"] + number + 1, "triggerer_id": None}
            _insert(connection, "trigger", other)
            own = {"id": uuid.uuid4().hex, "map_index": number, "trigger_id": other["id"]}
            _insert(connection, "task_instance", {**task, **own})


def _insert(connection: sqlite3.Connection, table: str, row: Mapping[str, object]) -> None:
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", [*row.values()])


def _looks(home: Path) -> dict[str, list[float]]:
    """Returns when each sensor reported its poll results, in seconds of the Unix epoch, from the logs."""
    found = {}
    for path in (home / "logs").rglob("*.trigger.*.log"):
        lines = [json.loads(line) for line in path.read_text().splitlines() if TOLD in line]
        if moments := sorted(datetime.fromisoformat(line["timestamp"]).timestamp() for line in lines):
            found[str(path)] = moments
    return found


def _used(process: psutil.Process) -> Use:
    processes = [process, *process.children(recursive=True)]
    times = [each.cpu_times() for each in processes]
    return Use(
        at=time.monotonic(),
        cpu_seconds=sum(each.user + each.system for each in times),
        memory_mib=sum(each.memory_full_info().pss for each in processes) / 2**20,
        threads=sum(each.num_threads() for each in processes),
        connections=sum(each.status == psutil.CONN_ESTABLISHED for p in processes for each in p.net_connections()),
    )


def _line(before: Use, after: Use) -> str:
    share = (after.cpu_seconds - before.cpu_seconds) / (after.at - before.at)
    return (
        f"{share:.1%} of a core, {after.memory_mib:.0f} MiB, {after.threads} threads, "
        f"{after.connections} connections"
    )


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"Never within {PATIENCE_SECONDS:g} s: {what}.")
        time.sleep(1)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
