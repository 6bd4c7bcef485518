"""A cascade whose rows are answered by workers elsewhere: the task sends the sample, and the workers the rest."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from llmbeam_sandbox import Sandbox
from llmbeam_sandbox.models.skill import Skill

from tests.pipeline.dataflow_cloud import Cloud, dataflow_cloud
from tests.pipeline.portable_service import job_service
from tests.pipeline.test_cascade import ROWS, by_model, make, models, paid

SMALL, LARGE = "gemini-2.5-flash-lite", "gemini-2.5-pro"
SCHEMA = {
    "type": "object",
    "properties": {"label": {"type": "string", "enum": ["a", "b"]}},
    "required": ["label"],
}


@pytest.fixture(scope="module")
def cloud():
    with dataflow_cloud(
        400, latency_seconds=0.0, skills={SMALL: Skill(right_share=0.85), LARGE: Skill()}
    ) as cloud:
        yield cloud


def spec(cloud: Cloud, name: str, **changes: Any) -> dict[str, Any]:
    job = cloud.spec(name, owner="night", sink={"uri": f"gs://rows/{name}"}, state_uri="gs://rows/state")
    job["model"]["name"] = LARGE
    job["prompt"] = {"template": "Which label?\n{{ row.text }}", "output_schema": SCHEMA}
    job["cascade"] = {
        "stages": [{"model": {**job["model"], "name": SMALL}}],
        "target_agreement": 0.8,
        "sample_rows": 150,
    }
    return {**job, **changes}


@pytest.mark.promise(2)
@pytest.mark.slow
def test_on_dataflow_the_sample_is_sent_once_and_the_workers_send_the_rest(cloud):
    monday = spec(cloud, "monday")
    job_id = cloud.submit(monday)
    sampled = by_model(cloud.sandbox)
    assert cloud.submit(monday) == job_id, "the calibration of the first submission is used"
    assert cloud.wait(job_id)["currentState"] == "JOB_STATE_DONE"
    report = json.loads(cloud.text("monday/report.json"))
    counts = report["cascade"]
    assert 0 < sampled[LARGE] < 150
    assert counts["is_guaranteed"]
    assert counts["low"] >= 0.8
    assert set(paid(cloud.sandbox).values()) == {1}
    assert {each["name"]: each["requests"] for each in counts["stages"]} == by_model(cloud.sandbox)
    assert report["requests"]["sent"] == sum(by_model(cloud.sandbox).values())
    lines = cloud.text("monday/answers-00000-of-00001.jsonl").splitlines()
    answered = Counter(json.loads(line)["llmbeam_answered_by"] for line in lines)
    assert answered == {each["name"]: each["answered"] for each in counts["stages"]}
    assert answered[SMALL] > 100

    job_id = cloud.submit(spec(cloud, "tuesday"))
    assert cloud.wait(job_id)["currentState"] == "JOB_STATE_DONE"
    counts = json.loads(cloud.text("tuesday/report.json"))["cascade"]
    assert not counts["is_guaranteed"]
    assert counts["audited"] > 10
    (calibration,) = cloud.bucket.list_blobs(prefix="state/cascades/")
    audits = json.loads(calibration.download_as_text())["audits"]
    assert audits["tuesday"]["audited"] == counts["audited"], "the worker that publishes has noted them"


@pytest.mark.full
def test_behind_a_job_service_each_prompt_is_paid_for_once(tmp_path, monkeypatch):
    with Sandbox(models=models()) as sandbox, job_service() as address:
        monkeypatch.setenv("AIRFLOW__LLMBEAM__ALLOWED_PROGRAMS", address)
        job = make(tmp_path, sandbox)
        job.spec["runner"] = {
            "type": "portable",
            "job_endpoint": address,
            "environment": {"type": "LOOPBACK"},
        }
        ended = job.run(ROWS)
        assert ended.report["cascade"]["is_guaranteed"]
        assert set(paid(sandbox).values()) == {1}
        counts = {each["name"]: each["requests"] for each in ended.report["cascade"]["stages"]}
        assert counts == by_model(sandbox)
