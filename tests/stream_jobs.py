"""A job that can be a stream, as tests need it."""

from __future__ import annotations

from typing import Any

from airflow_provider_llmbeam.spec import JobSpec


def stream_job(**changes: Any) -> JobSpec:
    """Returns a job from topic `q` to topic `a` of a cluster that is nowhere, with the echo model."""
    queue = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1"}
    return JobSpec.parse(
        {
            "name": "stream",
            "source": {**queue, "topic": "q"},
            "prompt": {"template": "{{ row.text }}"},
            "model": {"type": "echo"},
            "sink": {**queue, "topic": "a"},
            "state_uri": "/tmp/llmbeam-stream-test/",
            **changes,
        }
    )
