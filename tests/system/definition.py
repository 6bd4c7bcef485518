"""What makes a Dag in `dags/` a system test of Airflow (AIP-47): rows before it, check and teardown after it."""

from __future__ import annotations

import json
import os
import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from airflow.providers.google.cloud.hooks.gcs import GCSHook
from airflow.sdk import DAG, task

DAGS = Path(__file__).resolve().parents[2] / "dags"
BUCKET = os.environ.get("LLMBEAM_BUCKET", "my-bucket")
#: Name of the environment, as in Airflow's own system tests: two of them do not share rows.
ENV_ID = os.environ.get("SYSTEM_TESTS_ENV_ID", "default")
TEN_REVIEWS = "".join(
    json.dumps({"review_id": number, "text": f"The {number} pairs are fine."}) + "\n" for number in range(10)
)


@dataclass(frozen=True, kw_only=True)
class SystemTest:
    """A system test.

    Attributes:
        dag_id: Name of the Dag, and of its file in `dags/`.
        usd: Most that a run costs, estimated from list prices of 2026-11, in US dollars.
        minutes: Most that a run takes, estimated, in minutes.
        needs: What it needs besides the bucket.
        files: Texts of its source by the names of the files; names may be templated.
        output: Directory of its answers; may be templated.
        rows: Number of its rows.
    """

    dag_id: str
    usd: float
    minutes: float
    needs: str
    files: Mapping[str, str]
    output: str
    rows: int

    def make_dag(self) -> DAG:
        """Returns the Dag, with its set-up and teardown, and with the watcher that fails the run with any task."""
        prefix = f"system/{ENV_ID}/{self.dag_id}/"
        place = f"{BUCKET}/{prefix}".rstrip("/")
        with mock.patch.dict(os.environ, {"LLMBEAM_DATA": f"gs://{place}", "LLMBEAM_BUCKET": place}):
            dag: DAG = runpy.run_path(str(DAGS / f"{self.dag_id}.py"))["dag"]
        roots, leaves = dag.roots, dag.leaves
        with dag:

            @task
            def write_rows(files: list[tuple[str, str]]) -> None:
                for name, text in files:
                    GCSHook().upload(BUCKET, name, data=text)

            @task
            def check_report(name: str, rows: int) -> None:
                answered = json.loads(GCSHook().download(BUCKET, name))["rows"]["answered"]
                if answered != rows:
                    raise RuntimeError(f"{answered} of {rows} rows are answered.")

            @task(trigger_rule="all_done")
            def delete_rows() -> None:
                for name in GCSHook().list(BUCKET, prefix=prefix):
                    GCSHook().delete(BUCKET, name)

            @task(trigger_rule="one_failed", retries=0)
            def watcher() -> None:
                raise RuntimeError("A task of this run failed; its teardown has run.")

            written = write_rows([(f"{prefix}{name}", text) for name, text in self.files.items()])
            checked = check_report(f"{prefix}{self.output}/report.json", self.rows)
            written >> roots
            leaves >> checked >> delete_rows()
            # Airflow lets no task with another rule than `all_success` follow a set-up; what follows fails, too.
            [each for each in dag.tasks if not each.is_setup] >> watcher()
        return dag
