"""The command line and Dataflow, without Airflow: the DataflowRunner of Beam against the sandbox."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from llmbeam_sandbox import prompt_sha256

from airflow_provider_llmbeam.engine.journal.segment_name import SegmentName
from tests.pipeline.dataflow_cloud import dataflow_cloud

pytestmark = [pytest.mark.promise(1), pytest.mark.promise(2), pytest.mark.slow]

ROWS = 60


@pytest.fixture(scope="module")
def cloud():
    with dataflow_cloud(ROWS, latency_seconds=0.2, bundle_repeats=1) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def submitted(cloud):
    """A job whose spec is on Cloud Storage, submitted twice; each of its bundles runs twice, too."""
    spec = cloud.spec("once")
    spec["runner"] |= {"labels": {"team": "search"}, "max_workers": 3}
    cloud.bucket.blob("specs/job.json").upload_from_string(json.dumps(spec))
    hold = cloud.sandbox.faults.hold("gemini.generateContent")
    try:
        ids = [cloud.submit("gs://rows/specs/job.json") for _ in range(2)]
    finally:
        hold.release()
    return ids, cloud.wait(ids[0])


def test_repeated_submissions_create_one_job(cloud, submitted):
    ids, job = submitted
    assert ids == [job["id"]] * 2
    assert [one["id"] for one in cloud.sandbox.dataflow.jobs if one["name"].startswith("once-")] == [job["id"]]


def test_a_job_sends_the_requests_to_cloud_storage_that_its_documentation_counts(cloud, submitted):
    journal = "rows/once/.llmbeam/once/journal@loopback/"
    segments = [blob.name for blob in cloud.bucket.list_blobs(prefix=journal.removeprefix("rows/"))]
    assert not [name for name in segments if re.search(r"\.\d+\.jsonl$", name)], "no part of a segment is left"
    sent = Counter(record.method for record in list(cloud.sandbox.requests) if record.resource.startswith(journal))
    answers_of_an_object = 64 // 8
    assert sent["storage.objects.insert"] <= ROWS / answers_of_an_object + 2 * len(segments)
    assert sent["storage.objects.delete"] == sent["storage.objects.insert"] - len(segments)
    # Each attempt of a batch reads the segments that may have its answers, the first attempt not its
    # own. Beam sends three requests to read one.
    shards = [name.shards for name in map(SegmentName.parse, segments) if name is not None]
    readable = sum(bool(own & other) for own in shards for other in shards)
    assert len(segments) <= readable <= 2 * len(segments), "their names tell them apart"
    assert sent["storage.objects.get"] <= 3 * (2 * readable - len(segments))
    assert not sent.keys() - {"storage.objects.insert", "storage.objects.delete", "storage.objects.get"}
    lists = sum(record.method == "storage.objects.list" for record in list(cloud.sandbox.requests))
    assert lists <= 2 * len(segments) + 20, "one for each batch, and the launcher's"


def test_a_bundle_that_dataflow_repeats_pays_for_nothing_twice(cloud, submitted):
    _, job = submitted
    assert job["currentState"] == "JOB_STATE_DONE"
    paid = Counter(record.prompt_sha256 for record in cloud.sandbox.requests if record.is_billed)
    once = {prompt_sha256(f"once: row {number}") for number in range(ROWS)}
    assert [paid[prompt] for prompt in once] == [1] * ROWS
    report = json.loads(cloud.text("once/report.json"))
    assert report["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    assert report["requests"]["sent"] == ROWS
    answers = [json.loads(line) for line in cloud.text("once/answers-00000-of-00001.jsonl").splitlines()]
    assert sorted(answer["id"] for answer in answers) == list(range(ROWS))


def test_a_job_carries_its_labels_and_no_key(cloud, submitted):
    _, job = submitted
    assert job["labels"]["team"] == "search"
    assert job["name"] == f"{job['labels']['llmbeam-job']}-{job['labels']['llmbeam-spec']}"
    assert cloud.proxy.environment()["GOOGLE_API_KEY"] == "sandbox"
    assert '"sandbox"' not in json.dumps(job)


def test_only_a_job_for_dataflow_is_submitted(cloud):
    done = cloud.run_command(cloud.spec("direct", runner={"type": "direct"}), "--step=submit")
    assert done.returncode == 2
    refusal = "`runner.type`: only a job with runner 'dataflow' or 'flink' can be submitted; got 'direct'."
    assert f"{refusal} Nothing was sent or billed." in done.stderr


@pytest.mark.full
def test_a_failed_job_reports_the_reason(cloud):
    done = cloud.run_command(cloud.spec("failed", prompt={"template": "{{ row.text }} [[block]]"}))
    assert done.returncode == 1
    assert "answers were blocked: change `prompt.template`, the rows or the model. prompt blocked:" in done.stderr


@pytest.mark.full
def test_a_job_without_rows_is_skipped_and_its_output_stays(cloud):
    cloud.bucket.blob("empty.jsonl").upload_from_string("")
    answers = cloud.bucket.blob("skipped/answers-00000-of-00001.jsonl")
    answers.upload_from_string("yesterday's")
    owner = {"job": "skipped", "deployment": "", "files": ["answers-00000-of-00001.jsonl"]}
    cloud.bucket.blob("skipped/.llmbeam/_owner.json").upload_from_string(json.dumps(owner))
    source = {"uri": "gs://rows/empty.jsonl", "key": ["id"], "on_empty": "skip"}
    done = cloud.run_command(cloud.spec("skipped", source=source))
    assert done.returncode == 99, done.stderr
    reason = "`source.uri` 'gs://rows/empty.jsonl' has no rows, so the output was left as it is."
    assert json.loads(done.stdout)["skipped_because"] == reason
    assert answers.download_as_text() == "yesterday's"
    assert not cloud.bucket.blob("skipped/report.json").exists()


@pytest.mark.full
def test_the_command_line_waits_for_the_job_and_another_job_of_its_sink_is_refused_before_it_is_submitted(cloud):
    """The worker that checks the sink records its owner."""
    sink = {"uri": "gs://rows/owned"}
    done = cloud.run_command(cloud.spec("owned", sink=sink, owner="etl.judge[0]"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]["answered"] == ROWS
    assert "JOB_STATE_DONE" in done.stderr
    jobs = len(cloud.sandbox.dataflow.jobs)
    done = cloud.run_command(cloud.spec("other", sink=sink, owner="etl.judge[1]"), "--step=submit")
    assert done.returncode == 2
    assert (
        "belongs to 'etl.judge[0]'; 'etl.judge[1]' would replace its answers. Put `{{ ti.map_index }}`"
        in done.stderr
    )
    assert len(cloud.sandbox.dataflow.jobs) == jobs
