"""A sandbox with rows in its bucket, in which the command line submits jobs to Dataflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
from google.cloud import storage
from llmbeam_sandbox import DataflowSettings, Latency, ModelSettings, Proxy, Sandbox
from llmbeam_sandbox.models.skill import Skill
from waiting import until

from tests.clouds import use_environment


@dataclass
class Cloud:
    """A sandbox with rows in its bucket, and the environment that leads clients to it."""

    sandbox: Sandbox
    proxy: Proxy

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.proxy.environment()}

    def spec(self, name: str, **changes: Any) -> dict[str, Any]:
        """Returns the spec of a job with its own directory in the bucket."""
        return {
            "name": name,
            "source": {"uri": "gs://rows/in.jsonl", "key": ["id"]},
            "prompt": {"template": f"{name}: {{{{ row.text }}}}"},
            "model": {"type": "gemini", "project": self.proxy.project},
            "sink": {"uri": f"gs://rows/{name}"},
            "runner": {"type": "dataflow", "project": self.proxy.project, "location": "europe-west1"},
            **changes,
        }

    def run_command(self, spec: dict[str, Any] | str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs the command line with a spec, or with the URI of one."""
        address, text = (spec, None) if isinstance(spec, str) else ("/dev/stdin", json.dumps(spec))
        return subprocess.run(
            [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", f"--spec={address}", *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
        )

    def submit(self, spec: dict[str, Any] | str) -> str:
        done = self.run_command(spec, "--step=submit")
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        (job,) = (job for job in self.sandbox.dataflow.jobs if job["id"] == job_id)
        return job

    def wait(self, job_id: str) -> dict[str, Any]:
        ended = ("JOB_STATE_DONE", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED")
        until(lambda: self.job(job_id)["currentState"] in ended, lambda: self.job(job_id)["currentState"])
        return self.job(job_id)

    def text(self, name: str) -> str:
        text: str = self.bucket.blob(name).download_as_text()
        return text

    @property
    def bucket(self) -> Any:
        return storage.Client().bucket("rows")


@contextmanager
def dataflow_cloud(
    rows: int, *, latency_seconds: float, skills: Mapping[str, Skill] = MappingProxyType({}), **settings: Any
) -> Iterator[Cloud]:
    """Starts a sandbox whose jobs have two workers, and puts it in place of Google's hosts.

    Args:
        rows: Number of rows of `gs://rows/in.jsonl`.
        latency_seconds: Latency of the model.
        skills: How well models answer, by name.
        **settings: Further `DataflowSettings`.
    """
    with (
        Sandbox(
            buckets=("rows",),
            models=ModelSettings(latency=Latency(mean_seconds=latency_seconds), skills=skills),
            dataflow=DataflowSettings(workers=2, **settings),
        ) as sandbox,
        Proxy(sandbox) as proxy,
        pytest.MonkeyPatch.context() as patched,
    ):
        use_environment(patched, proxy.environment())
        cloud = Cloud(sandbox, proxy)
        lines = "".join(json.dumps({"id": number, "text": f"row {number}"}) + "\n" for number in range(rows))
        cloud.bucket.blob("in.jsonl").upload_from_string(lines)
        yield cloud
