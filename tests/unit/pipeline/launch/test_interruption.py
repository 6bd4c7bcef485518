from __future__ import annotations

from airflow_provider_llmbeam.pipeline.launch.interruption import what_remains
from airflow_provider_llmbeam.spec import JobSpec


def test_a_job_on_flink_may_go_on() -> None:
    spec = JobSpec.parse(
        {
            "name": "n",
            "source": {"uri": "/mnt/in.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.t }}"},
            "model": {"type": "echo"},
            "sink": {"uri": "/mnt/out"},
            "runner": {
                "type": "flink",
                "rest_url": "http://jm:8081",
                "job_endpoint": "localhost:8099",
                "flink_version": "1.19",
                "environment": {"type": "DOCKER", "image": "i"},
            },
        }
    )
    assert what_remains(spec).startswith(
        "The job may be running, and billing, on the Flink cluster at http://jm:8081"
    )
