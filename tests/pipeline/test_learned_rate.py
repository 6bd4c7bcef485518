"""The rate that a job has learned is known to its next run, on another machine, and to the estimate."""

from __future__ import annotations

import json

import pytest

from airflow_provider_llmbeam.pipeline.estimate.run import START_SECONDS, make_estimate
from airflow_provider_llmbeam.sandbox import ModelSettings, Quota, Sandbox
from airflow_provider_llmbeam.spec import JobSpec

QUOTA = Quota(requests_per_minute=600, burst_seconds=1.0)


def rows(night: int, count: int) -> list[dict[str, object]]:
    return [{"id": f"{night}-{number}", "text": f"night {night}, row {number}"} for number in range(count)]


def test_another_run_on_another_machine_begins_with_the_rate_and_has_few_429s(
    make_job, tmp_path, tmp_path_factory, monkeypatch
):
    rejected = []
    with Sandbox(models=ModelSettings(quota=QUOTA)) as sandbox:
        job = make_job(tmp_path, sandbox)
        for night in range(2):
            monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("machine")))
            job.spec |= {"name": f"night-{night}", "owner": "dag/task"}
            ended = job.run(rows(night, 100))
            assert len(ended.answers) == 100
            rejected.append(ended.report["requests"]["rejected"])
        (file,) = (job.out / ".llmbeam" / "rates").glob("learned_rate-*.json")
        record = json.loads(file.read_text())
        rate = record["requests_per_second"]
        assert 5 < rate < 14
        job.write(rows(2, 1200))
        found = make_estimate(JobSpec.parse(job.spec), sample_size=0)
    assert rejected[0] > 3 >= rejected[1]
    assert found.limited_by == "learned_rate"
    assert found.duration_seconds == pytest.approx(START_SECONDS + 1200 / rate, abs=0.1)
    learned = found.demand.learned_rate
    assert learned is not None
    assert (learned.requests_per_minute, learned.learned_at) == (pytest.approx(60 * rate), record["learned_at"])
    words = f"as the rate that an earlier run has learned ({learned.words}) allows no more"
    assert any(words in line for line in found.lines())
