"""Builds one graph, without running it, and the template of the report: each fork has what is kept of them.

The first small job of a process takes 0.34 s of CPU time, and after this 0.19 s.
"""

import logging
import tempfile
import time
from pathlib import Path

import apache_beam as beam
from apache_beam.runners.portability import fn_api_runner, prism_runner  # noqa: F401

from airflow_provider_llmbeam.pipeline import (
    alerts,  # noqa: F401
    command,  # noqa: F401
)
from airflow_provider_llmbeam.pipeline.build import build
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.launch import reachable, runner, worker_package  # noqa: F401
from airflow_provider_llmbeam.pipeline.reporting import html, page  # noqa: F401
from airflow_provider_llmbeam.spec import JobSpec

with tempfile.TemporaryDirectory() as directory:
    rows = Path(directory, "rows.jsonl")
    rows.write_text('{"id": 1, "text": "a"}\n')
    spec = {
        "name": "warm",
        "source": {"uri": str(rows), "key": ["id"]},
        "prompt": {"template": "Say it: {{ row.text }}"},
        "model": {"type": "echo"},
        "sink": {"uri": str(Path(directory, "out"))},
    }
    pipeline = beam.Pipeline()
    build(pipeline, JobSpec.parse(spec), RunContext(started_at=time.time()))
    pipeline.to_runner_api()
html.template("report")

# Beam's warnings have given the root logger a handler; each job has its own.
logging.getLogger().handlers.clear()
