"""Settings of the shared Airflow: imports that its tasks need not repeat."""

from __future__ import annotations

import gc
import importlib
import sys

# The scheduler forks the workers of its LocalExecutor, these fork the tasks, and the Dag processor forks the
# parsers: each would import these modules again, 2.8 s of CPU time in a task that provisions an endpoint. The
# Airflow of scripts/demo, which is tested too, imports them in each task, as that of a user does.
if {"scheduler", "dag-processor"}.intersection(sys.argv):
    for module in (
        "airflow.providers.google.cloud.hooks.dataflow",
        "airflow.providers.google.cloud.hooks.gcs",
        "airflow.providers.standard.operators.python",
        "airflow.sdk.execution_time.task_runner",
        "google.cloud.aiplatform_v1",
        "google.cloud.storage",
        "airflow_provider_llmbeam.operators.inference_endpoint",
        "airflow_provider_llmbeam.operators.run_inference",
        "airflow_provider_llmbeam.sensors.quota",
    ):
        importlib.import_module(module)
    gc.freeze()
