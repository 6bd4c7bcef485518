"""The trial jobs of `llmbeam doctor --send`: one prompt, one line of batch inference, ten rows on Dataflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_llmbeam.doctor.finding import Finding
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.inference import PILOT_ROWS
from airflow_provider_llmbeam.spec.model.price import price_of
from airflow_provider_llmbeam.spec.runner import DataflowRunner
from airflow_provider_llmbeam.spec.sink import FilesSink

#: Limit of the cost of one trial, in US dollars.
_BUDGET_USD = 0.5
#: Longest wait for the line of batch inference, in seconds.
_BATCH_SECONDS = 3600.0


def trials_of(spec: JobSpec, token: str) -> Iterator[tuple[str, JobSpec]]:
    """Yields the trial jobs of a job, with their names: its model and its runner, with rows of their own.

    Args:
        spec: The job.
        token: Makes the names of the jobs unique.
    """
    yield "one prompt", _trial(spec, f"llmbeam-doctor-prompt-{token}", rows=1)
    if spec.inference.mode != "online":
        batch = {"inference": {"mode": "batch", "max_batch_wait_seconds": _BATCH_SECONDS}}
        name = f"llmbeam-doctor-batch-{token}"
        yield "one line of batch inference", _trial(spec, name, rows=PILOT_ROWS + 1, **batch)
    if isinstance(spec.runner, DataflowRunner):
        runner = {"runner": spec.runner.model_dump(mode="json")}
        yield "ten rows on Dataflow", _trial(spec, f"llmbeam-doctor-dataflow-{token}", rows=10, **runner)


def _trial(spec: JobSpec, name: str, rows: int, **others: Any) -> JobSpec:
    base = spec.state_uri or (spec.sink.uri.rstrip("/") + "/" if isinstance(spec.sink, FilesSink) else ".llmbeam/")
    data = spec.model_dump(mode="json", include={"task", "model", "generation", "embedding", "kms_key_name"})
    price = spec.limits.price
    return JobSpec.parse(
        {
            **data,
            **others,
            "name": name,
            "deployment": spec.deployment,
            "source": {"type": "rows", "key": ["id"], "rows": [{"id": number} for number in range(rows)]},
            "prompt": {"template": "Say OK. {{ row.id }}"},
            "limits": {"budget_usd": _BUDGET_USD, "price": price} if price_of(spec.model, price) else {},
            "sink": {"type": "files", "uri": f"{base}doctor/{name}/"},
        }
    )


def send(spec: JobSpec, token: str, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Runs the trial jobs, one after the other; each is billed.

    Args:
        spec: The job.
        token: Makes the names of the jobs unique.
        environment: Environment variables with the secrets of its connections.
    """
    for what, trial in trials_of(spec, token):
        with tempfile.NamedTemporaryFile("w", prefix="llmbeam-", suffix=".json") as file:
            file.write(trial.model_dump_json())
            file.flush()
            command = [sys.executable, "-m", "airflow_provider_llmbeam", "run", file.name, "--json"]
            ended = subprocess.run(
                command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
            )
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["no reason was given"])[-1]
            remedy = f"its files are in {trial.paths.output_uri}"
            yield Finding(subject=what, verdict="fault", sentence=last, remedy=remedy)
            continue
        manifest = json.loads(ended.stdout)
        if trial.inference.mode == "batch" and not manifest["origins"].get("batch"):
            sentence = f"it was not answered within {_BATCH_SECONDS / 60:g} minutes, and was sent online."
            remedy = "llmbeam run with `inference` 'batch', which waits a day"
            yield Finding(subject=what, verdict="unknown", sentence=sentence, remedy=remedy)
            continue
        sentence = f"{manifest['rows']['answered']} answered; below {trial.paths.output_uri}"
        yield Finding(subject=what, verdict="holds", sentence=sentence)
