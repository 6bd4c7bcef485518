"""The cases with an endpoint of their own: its job is killed, and what it bills has to end with the run.

`python -m bench.verdict.gpu KIND DIRECTORY` runs the Dag of a kind in a process of its own, by `dag.test()`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from llmbeam_sandbox import Latency, ModelSettings, Proxy, Sandbox

from bench.run import environment_of
from bench.verdict.cases import ENDPOINTS, Endpoint, EndpointCase
from bench.verdict.history import History, Kill
from bench.verdict.places import BUCKET, PROJECT, Folder, dead_letter_of, make_output
from bench.verdict.record import HEAD, LATENCY_SECONDS, MAX_SECONDS, rents_of, requests_of, rows_of

MAX_IN_FLIGHT, LOCATION = 4, "us-central1"
_SPECS: dict[Endpoint, dict[str, Any]] = {
    "garden": {"type": "vertex", "model": "google/gemma3@gemma-3-4b-it", "accept_eula": True},
    "cloud_run": {"type": "cloud_run", "model": "Qwen/Qwen3-4B"},
}


def record_endpoints(plan: Sequence[EndpointCase], home: Path) -> list[History]:
    """Runs the Dag of each case, and kills its job once; the retry of the task resumes it."""
    database = home / "airflow"
    database.mkdir()
    code = "from airflow.utils import db; db.initdb()"
    subprocess.run([sys.executable, "-c", code], env=_environment(database, {}), check=True, capture_output=True)
    return [_record(case, home / case.name, database) for case in plan]


def _environment(database: Path, added: dict[str, str]) -> dict[str, str]:
    airflow = {
        "AIRFLOW_HOME": str(database),
        "AIRFLOW__CORE__DAGS_FOLDER": str(database / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LLMBEAM__DEPLOYMENT": "verdict",
        "AIRFLOW__LLMBEAM__JOB_ENVIRONMENT": "LLMBEAM_TESTS_*",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{database}/airflow.db",
    }
    return environment_of({**airflow, **added})


def _record(case: EndpointCase, directory: Path, database: Path) -> History:
    texts = case.texts
    (directory / "data").mkdir(parents=True)
    place = Folder(directory / "data")
    place.write("in.jsonl", "".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(texts)))
    models = ModelSettings(latency=Latency(mean_seconds=LATENCY_SECONDS))
    with Sandbox(buckets=(BUCKET,), models=models) as sandbox, Proxy(sandbox) as proxy:
        output = make_output("jsonl", place, sandbox, "")
        command = [sys.executable, "-m", "bench.verdict.gpu", case.kind, str(directory / "data")]
        began_at = time.time()
        with (directory / "output.txt").open("wb") as log:
            process = subprocess.Popen(
                command, env=_environment(database, proxy.environment()), stdout=log, stderr=subprocess.STDOUT
            )
        kills: list[Kill] = []
        while process.poll() is None and time.time() < began_at + MAX_SECONDS:
            time.sleep(0.005)
            # The endpoint was asked once whether it serves.
            if not kills and sandbox.requests.paid().total() - 1 >= case.kill:
                since = time.time()
                for job in _jobs_of(process.pid):
                    job.kill()
                    job.wait()
                    shown = len(output.read())
                    kills = [Kill(since=since, until=time.time(), in_flight=MAX_IN_FLIGHT, published=shown)]
        failure = "" if process.poll() == 0 else (directory / "output.txt").read_text(errors="replace")[-600:]
        if process.poll() is None:
            process.kill()
            process.wait()
        return History(
            case=case.name,
            began_at=began_at,
            ended_at=time.time(),
            failure=failure,
            rows=rows_of(texts),
            requests=requests_of(sandbox, texts),
            published=output.read(),
            dead_letter=dead_letter_of(place),
            kills=tuple(kills),
            rents=rents_of(sandbox),
            gpus=1,
            probes=1,
        )


def _jobs_of(pid: int) -> Iterator[psutil.Process]:
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # or a zombie
            if "airflow_provider_llmbeam.pipeline" in process.cmdline():
                yield process


def run_dag(kind: Endpoint, directory: Path) -> bool:
    """Runs the Dag of a kind of endpoint in this process; returns whether it succeeded."""
    from airflow.dag_processing.bundles import manager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.sdk import DAG

    from airflow_provider_llmbeam.endpoints import teardown
    from airflow_provider_llmbeam.operators.inference_endpoint import inference_endpoint
    from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
    from airflow_provider_llmbeam.triggers.base import PollingTrigger

    # The emulated cloud is quick.
    PollingTrigger.first_poll_delay_seconds = teardown.ROUND_SECONDS = 0.1
    soon = timedelta(seconds=0)
    with (
        DAG(f"verdict_{kind}", schedule=None) as dag,
        inference_endpoint(
            endpoint={**_SPECS[kind], "project": PROJECT, "locations": (LOCATION,)},
            provision={"poll_interval_seconds": 0.2},
            teardown={"gone_within_seconds": 10.0, "retries": 0},
        ) as made,
    ):
        RunInferenceOperator(
            task_id="ask",
            source={"uri": f"{directory}/in.jsonl", "key": ["id"]},
            prompt={"template": HEAD + "{{ row.text }}"},
            model=made.model,
            limits={"max_in_flight": MAX_IN_FLIGHT},
            sink={"uri": f"{directory}/out"},
            state_uri=f"{directory}/state",
            retries=1,
            retry_delay=soon,
        )
    bundles: Any = manager  # untyped
    bundles.DagBundlesManager().sync_bundles_to_db()
    bag = DagBag(os.devnull, bundle_path=Path(os.environ["AIRFLOW_HOME"], "dags"))
    bag.bag_dag(dag)
    sync_bag_to_db(bag, "dags-folder", None)
    return str(dag.test().state) == "success"


if __name__ == "__main__":
    _, given, folder = sys.argv
    sys.exit(0 if run_dag(next(kind for kind in ENDPOINTS if kind == given), Path(folder)) else 1)
