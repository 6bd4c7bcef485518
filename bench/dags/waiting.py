"""Dag of `bench.waiting_sensors`: one sensor that waits for free quota in the shared pool."""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_provider_llmbeam.sensors.quota import QuotaHealthSensor

with DAG("waiting", schedule=None):
    QuotaHealthSensor(
        task_id="wait",
        model={"type": "gemini", "name": "gemini-2.5-flash", "project": "llmbeam-sandbox"},
        probe_requests=int(os.environ.get("LLMBEAM_BENCH_PROBES", "0")),
        timeout=24 * 3600,
    )
