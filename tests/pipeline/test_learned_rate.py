"""The rate that a job has learned is known to its next run, on another machine, and to the estimate."""

from __future__ import annotations

import json
import random

import pytest
from llmbeam_sandbox import ModelSettings, Quota, Sandbox

from airflow_provider_llmbeam.pipeline.measure.estimate.run import START_SECONDS, make_estimate
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.transport.server_reply import ErrorBody

QUOTA = Quota(requests_per_minute=600, burst_seconds=1.0)


#: Tokens per minute. The rows below have some 100,000.
TOKENS = 480_000


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
    assert rejected[0] > rejected[1] <= 3
    assert found.limited_by == "learned_rate"
    assert found.duration_seconds == pytest.approx(START_SECONDS + 1200 / rate, abs=0.1)
    learned = found.demand.learned_rate
    assert learned is not None
    assert (learned.requests_per_minute, learned.learned_at) == (pytest.approx(60 * rate), record["learned_at"])
    words = f"as the rate that an earlier run has learned ({learned.words}) allows no more"
    assert any(words in line for line in found.lines())


def long_and_short(night: int, count: int) -> list[dict[str, object]]:
    """Makes rows of 10 to 3,000 words, as many of each order of magnitude."""
    rng = random.Random(night)
    return [
        {"id": f"{night}-{number}", "text": " ".join(["word"] * round(10 * 300 ** rng.random()))}
        for number in range(count)
    ]


@pytest.mark.full
@pytest.mark.parametrize("is_named", [True, False], ids=["named", "not named"])
def test_a_quota_of_tokens_that_the_job_is_not_told_is_learned(tmp_path, monkeypatch, make_job, is_named):
    """Its 429s are few, whether the server names what the quota counts or not."""
    (tmp_path / "machine").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "machine"))
    if not is_named:
        monkeypatch.setattr(ErrorBody, "quota_unit", None)
    quota = Quota(tokens_per_minute=TOKENS, burst_seconds=5.0, tells_retry_delay=is_named)
    with Sandbox(models=ModelSettings(quota=quota)) as sandbox:
        job = make_job(tmp_path, sandbox)
        ended = job.run(long_and_short(0, 160))
    assert len(ended.answers) == 160
    (file,) = (job.out / ".llmbeam" / "rates").glob("learned_rate-*.json")
    learned = json.loads(file.read_text())
    assert learned["unit_tokens"] > 0
    assert learned["requests_per_second"] * learned["unit_tokens"] == pytest.approx(TOKENS / 60, rel=0.5)
    assert ended.report["requests"]["rejected"] <= 16
