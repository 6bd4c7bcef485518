"""The file of turnarounds, which the jobs of a cache share."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from airflow_provider_llmbeam.pipeline.batch_inference.turnaround import PRIOR
from airflow_provider_llmbeam.pipeline.measure.estimate.turnaround_file import (
    expected_turnaround,
    record_turnaround,
)
from airflow_provider_llmbeam.providers.batch import BatchJob
from airflow_provider_llmbeam.spec import JobSpec


def test_jobs_that_end_at_the_same_time_are_all_recorded(tmp_path: Path) -> None:
    spec = JobSpec.parse(
        {
            "name": "night",
            "source": {"type": "rows", "rows": [{"id": 1}], "key": ["id"]},
            "prompt": {"template": "{{ row.id }}"},
            "model": {"type": "gemini", "name": "gemini-2.5-flash"},
            "sink": {"uri": f"{tmp_path}/out"},
        }
    )
    now = time.time()
    job = BatchJob(name="b", display_name="d", state="ENDED", phase="succeeded", created_at=now - 60, ended_at=now)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: record_turnaround(spec, job, 88), range(64)))
    assert len(expected_turnaround(spec, 88, now).points) == len(PRIOR) + 64
