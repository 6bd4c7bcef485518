from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_llmbeam.pipeline.batch_inference import decide
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.steps import run_step
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.protocol.steps import EstimateSample


@dataclass
class Ended:
    """The output files of a job that has ended."""

    manifest: dict[str, Any]
    answers: list[dict[str, Any]]
    dead_letter: list[dict[str, Any]]
    report: dict[str, Any]

    @property
    def origins(self) -> Counter[str]:
        return Counter(self.manifest["origins"])

    @property
    def kinds(self) -> Counter[str]:
        return Counter(row["llmbeam_error"]["kind"] for row in self.dead_letter)


class Job:
    """A job in its own directory; every run checks that no row is lost."""

    def __init__(self, directory: Path, model: dict[str, Any]) -> None:
        self.directory = directory
        self.source = directory / "rows.jsonl"
        self.out = directory / "out"
        self.spec: dict[str, Any] = {
            "name": "job",
            "source": {"uri": str(self.source), "key": ["id"]},
            "prompt": {"template": "Say it: {{ row.text }}"},
            "model": model,
            "limits": {"max_dead_letter_ratio": 1.0},
            "sink": {"uri": str(self.out)},
        }

    def write(self, rows: list[Any]) -> None:
        """Writes rows as JSON lines; a `str` or `bytes` is a line as it stands."""
        with self.source.open("wb") as file:
            for row in rows:
                line = row if isinstance(row, (str, bytes)) else json.dumps(row)
                file.write((line.encode() if isinstance(line, str) else line) + b"\n")

    def run(self, rows: list[Any] | None = None, **changes: Any) -> Ended:
        if rows is not None:
            self.write(rows)
        if "limits" in changes:
            changes["limits"] = self.spec["limits"] | changes["limits"]
        manifest = run(JobSpec.parse(self.spec | changes))
        ended = self.ended(manifest)
        counts = manifest["rows"]
        assert counts["read"] == counts["answered"] + counts["dead_letter"] + counts["skipped"]
        assert counts["answered"] == len(ended.answers)
        assert counts["dead_letter"] == len(ended.dead_letter)
        if rows is not None:
            assert counts["read"] == len(rows)
        if rows is not None and not counts["skipped"]:
            before = Counter(row["id"] for row in rows if isinstance(row, dict) and "id" in row)
            assert Counter(row["id"] for row in [*ended.answers, *ended.dead_letter] if "id" in row) == before
        return ended

    def ended(self, manifest: dict[str, Any]) -> Ended:
        answers: list[dict[str, Any]] = []
        for uri in manifest["answers_uris"]:
            path = Path(uri)
            answers += pq.read_table(path).to_pylist() if path.suffix == ".parquet" else read_lines(path)
        report = json.loads(Path(manifest["report_uri"]).read_text())
        return Ended(manifest, answers, read_lines(Path(manifest["dead_letter_uri"])), report)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n") if line]


@pytest.fixture
def make_job():
    """Makes a job against the Gemini Developer API of a sandbox."""
    return lambda directory, sandbox: Job(
        directory, {"type": "gemini", "name": "gemini-2.5-flash", "base_url": sandbox.gemini_url}
    )


@pytest.fixture
def job(tmp_path, sandbox, make_job):
    """A job against the emulated Gemini Developer API."""
    return make_job(tmp_path, sandbox)


@pytest.fixture
def echo_job(tmp_path):
    """A job without a server."""
    return Job(tmp_path, {"type": "echo"})


@pytest.fixture
def openai_job(tmp_path, sandbox):
    """A job against the emulated OpenAI-compatible server."""
    return Job(tmp_path, {"type": "openai", "name": "gemma-3-4b-it", "base_url": sandbox.openai_url})


@pytest.fixture
def days(tmp_path, sandbox, make_job):
    """Two runs of one Dag: jobs with different names and outputs and a common cache."""

    def make(name):
        (tmp_path / name).mkdir()
        job = make_job(tmp_path / name, sandbox)
        job.spec |= {"name": name, "state_uri": str(tmp_path / "state"), "cache": {"scope": "summaries"}}
        return job

    return make("monday"), make("tuesday")


@pytest.fixture
def quick_batch_polls(monkeypatch):
    """Shortens the interval between polls of batch-inference jobs."""
    monkeypatch.setattr(decide, "MIN_POLL_SECONDS", 0.05)
    monkeypatch.setattr(decide, "MAX_POLL_SECONDS", 0.05)


def estimate(spec, sample_size):
    """Estimates a job as its process does; returns the estimate as plain data."""
    return run_step("estimate", spec, EstimateSample(sample_size=sample_size))["result"]
