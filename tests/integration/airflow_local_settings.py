"""Settings of the shared Airflow: a cluster policy, and imports that its tasks need not repeat."""

from __future__ import annotations

import gc
import importlib
import sys

# The scheduler forks the workers of its LocalExecutor, and these fork the tasks; the Dag processor forks the
# parsers. Each would import these libraries again: 2.3 s of CPU time in a task that provisions an endpoint. This
# package is not imported here.
if {"scheduler", "dag-processor"} & set(sys.argv):
    for library in (
        "airflow.providers.google.cloud.hooks.dataflow",
        "airflow.providers.google.cloud.hooks.gcs",
        "airflow.providers.standard.operators.python",
        "airflow.sdk.execution_time.task_runner",
        "google.cloud.aiplatform_v1",
        "google.cloud.storage",
    ):
        importlib.import_module(library)
    gc.freeze()


def task_policy(task):
    """Lets one of the Dags wait in the worker while its file stays as it is."""
    if task.dag_id == "reviews_waiting":
        task.deferrable = False
