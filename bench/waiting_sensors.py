"""Measures the cost of waiting sensors: `python -m bench.waiting_sensors [--sensors 200] [--seconds 120]`.

It runs a real Airflow with its own triggerer, and the sandbox with an exhausted pool in a separate process. One
`QuotaHealthSensor` starts and defers itself. A scheduler would take minutes to start hundreds of sensors, so the
rows of this sensor in the metadata database are copied instead, and the triggerer runs the copies as after a
restart: starting sensors is not measured.

It prints, for the triggerer and its child processes, without sensors and with all sensors: the share of one core,
memory, threads and open connections; the calls of Cloud Monitoring and the model; and the delay from the time at
which a poll was due to its result, which includes the duration of the poll.
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
#: Interval between polls, in seconds: the default of Airflow's sensors, which the Dag uses.
POKE_INTERVAL_SECONDS = 60.0
#: Part of the sentence that each poll writes to the log of its task.
POLL_LOG_TEXT = "is exhausted"
TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class ResourceUsage:
    """Resource usage of some processes.

    Attributes:
        at: Time of the sample on the monotonic clock, in seconds.
        cpu_seconds: Processor time used so far, in seconds.
        memory_mib: Current memory, in MiB; memory that the processes share is counted once.
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
    parser.add_argument(
        "--sensors", type=int, default=200, metavar="N", help="number of waiting sensors (default: 200)"
    )
    parser.add_argument("--seconds", type=float, default=120.0, metavar="X", help="duration in s (default: 120)")
    parser.add_argument("--probes", type=int, default=0, metavar="N", help="`probe_requests` (default: 0)")
    parser.add_argument(
        "--latency-seconds",
        type=float,
        default=0.0,
        metavar="X",
        help="delay of each reply of the cloud, in s (default: 0)",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, exhausted_cloud(options.latency_seconds) as cloud:
        home = Path(directory)
        with _airflow(home, {**cloud.environment, "LLMBEAM_BENCH_PROBES": str(options.probes)}) as airflow:
            _measure(airflow, cloud, home, options.sensors, options.seconds)


def _measure(airflow: LocalAirflow, cloud: ExhaustedCloud, home: Path, sensors: int, seconds: float) -> None:
    triggerer = airflow.component("triggerer")
    idle = _usage(triggerer)
    time.sleep(20)
    _print_line(f"{'no sensor':>12}  {_usage_text(idle, _usage(triggerer))}")
    run_id = airflow.trigger(DAG_ID)
    _wait_until(lambda: airflow.task(DAG_ID, run_id, "wait")["state"] == "deferred", "the sensor is deferred")
    _copy_rows(home / "airflow.db", sensors - 1)
    _wait_until(lambda: len(_poll_times(home)) == sensors, "every sensor has polled")
    usage_before, calls_before, started_at = _usage(triggerer), cloud.requests(), time.time()
    time.sleep(seconds)
    usage_after, calls_after = _usage(triggerer), cloud.requests()
    _print_line(f"{f'{sensors} sensors':>12}  {_usage_text(usage_before, usage_after)}")
    minutes = (usage_after.at - usage_before.at) / 60
    for method, calls in calls_after.items():
        _print_line(f"{'':>12}  {(calls - calls_before.get(method, 0)) / minutes:.0f} {method} per minute")
    delays = sorted(
        after - before - POKE_INTERVAL_SECONDS
        for times in _poll_times(home).values()
        for before, after in pairwise(times)
        if after > started_at
    )
    _print_line(
        f"{'':>12}  {len(delays)} poll results, delay after due time: median {statistics.median(delays):.1f} s, "
        f"95th percentile {delays[int(0.95 * len(delays))]:.1f} s, maximum {delays[-1]:.1f} s"
    )


@contextmanager
def _airflow(home: Path, environment: Mapping[str, str]) -> Iterator[LocalAirflow]:
    sys.path.append(str(ROOT / "scripts"))
    from local_airflow import local_airflow

    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with local_airflow(home, ROOT / "bench" / "dags", {**environment, "PYTHONPATH": path}) as airflow:
        yield airflow


def _copy_rows(database: Path, copies: int) -> None:
    """Copies the rows of the one deferred task and its trigger."""
    with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
        connection.row_factory = sqlite3.Row
        (task,) = map(dict, connection.execute("SELECT * FROM task_instance WHERE state = 'deferred'"))
        (trigger,) = map(dict, connection.execute("SELECT * FROM trigger WHERE id = ?", [task["trigger_id"]]))
        for number in range(copies):
            new_trigger = {**trigger, "id": trigger["id"] + number + 1, "triggerer_id": None}
            _insert(connection, "trigger", new_trigger)
            changes = {"id": uuid.uuid4().hex, "map_index": number, "trigger_id": new_trigger["id"]}
            _insert(connection, "task_instance", {**task, **changes})


def _insert(connection: sqlite3.Connection, table: str, row: Mapping[str, object]) -> None:
    placeholders = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({placeholders})", [*row.values()])


def _poll_times(home: Path) -> dict[str, list[float]]:
    """Reads the times of the poll results from the log of each sensor, in seconds of the Unix epoch."""
    times_by_log = {}
    for path in (home / "logs").rglob("*.trigger.*.log"):
        lines = [json.loads(line) for line in path.read_text().splitlines() if POLL_LOG_TEXT in line]
        if times := sorted(datetime.fromisoformat(line["timestamp"]).timestamp() for line in lines):
            times_by_log[str(path)] = times
    return times_by_log


def _usage(process: psutil.Process) -> ResourceUsage:
    processes = [process, *process.children(recursive=True)]
    times = [each.cpu_times() for each in processes]
    return ResourceUsage(
        at=time.monotonic(),
        cpu_seconds=sum(each.user + each.system for each in times),
        memory_mib=sum(each.memory_full_info().pss for each in processes) / 2**20,
        threads=sum(each.num_threads() for each in processes),
        connections=sum(each.status == psutil.CONN_ESTABLISHED for p in processes for each in p.net_connections()),
    )


def _usage_text(before: ResourceUsage, after: ResourceUsage) -> str:
    share = (after.cpu_seconds - before.cpu_seconds) / (after.at - before.at)
    return (
        f"{share:.1%} of a core, {after.memory_mib:.0f} MiB, {after.threads} threads, "
        f"{after.connections} connections"
    )


def _wait_until(condition: Callable[[], bool], description: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"Not reached within {TIMEOUT_SECONDS:g} s: {description}.")
        time.sleep(1)


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
