"""Rows from Python with TaskFlow: a function returns them, and the next task gets the answers.

`@task.llmbeam` takes the arguments of `RunInferenceOperator`. The function is called in the task; each file is a
mapped task, and all of them on one worker keep to one quota (with several workers, set `limits.expected_workers`).
More than 1,000 answers of a task are no list but an `ObjectStoragePath` of their directory.

docs/taskflow.md describes what a function may return, and what a retry pays for.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from typing import Any

from airflow.sdk import DAG, ObjectStoragePath, task

DATA = os.environ.get("LLMBEAM_DATA", "/tmp/llmbeam")

with DAG("taskflow_reviews", schedule=None, params={"shops": ["north", "south"]}, doc_md=__doc__) as dag:

    @task
    def shops(params: dict[str, Any]) -> list[str]:
        return params["shops"]

    @task.llmbeam(
        key="review_id",
        prompt="Is this review good, mixed or bad? Answer with one word.\n\n{{ row.text }}",
        model="gemini-3.5-flash-lite",
        limits={"requests_per_minute": 600},
        sink=f"{DATA}/moods_of_shops/{{{{ ti.map_index }}}}",
        return_answers=True,
        retries=2,
    )
    def moods(shop: str) -> list[dict[str, str]]:
        with ObjectStoragePath(f"{DATA}/shops/{shop}.csv").open(newline="") as file:
            return [*csv.DictReader(file)]

    @task
    def count(answers: list[list[dict[str, Any]]]) -> dict[str, int]:
        return Counter(answer["answer"] for shop in answers for answer in shop)

    count(moods.expand(shop=shops()))
