from __future__ import annotations

import json
import threading

import httpx
import pytest
from google import genai
from google.cloud import aiplatform_v1 as v1
from google.cloud import storage
from google.genai import types
from google.genai.errors import ClientError
from llmbeam_sandbox import BatchSettings, Fault, ManualClock, Proxy, Sandbox

from tests.clouds import for_one_test

PROJECT = "llmbeam-sandbox"
MODEL = "gemini-2.5-flash"
PARENT = f"/v1/projects/{PROJECT}/locations/europe-west4/batchPredictionJobs"
ROW = "batch.vertexRow"


def request_of(text, **config):
    return {
        "contents": [{"role": "user", "parts": [{"text": text}]}],
        "generationConfig": {"maxOutputTokens": 64, "temperature": 0.5, **config},
    }


def echo_of(text):
    return request_of(text) | {"contents": [{"role": "user", "parts": [{"fileData": None, "text": text}]}]}


class Cloud:
    """The clients of a user, and the calls that several tests need."""

    def __init__(self, sandbox, clock):
        self.sandbox, self.clock = sandbox, clock
        self.client = genai.Client(vertexai=True, project=PROJECT, location="europe-west4")
        self.bucket = storage.Client(project=PROJECT).bucket("batch-work")

    def upload(self, count=10):
        lines = [json.dumps({"request": request_of(f"prompt {number}")}) for number in range(count)]
        self.bucket.blob("in.jsonl").upload_from_string("\n".join(lines))

    def submit(self, count=10, src="gs://batch-work/in.jsonl", **config):
        self.upload(count)
        config = types.CreateBatchJobConfig(dest="gs://batch-work/out", display_name="night", **config)
        return self.client.batches.create(model=MODEL, src=src, config=config)

    def get(self, job, seconds=0):
        self.clock.advance(seconds)
        return self.client.batches.get(name=job.name)

    def files(self, job):
        directory = job.output_info.gcs_output_directory
        assert directory.startswith(f"gs://batch-work/out/prediction-{MODEL}-")
        prefix = directory.removeprefix("gs://batch-work/")
        found = self.bucket.client.list_blobs("batch-work", prefix=prefix)
        return {blob.name.removeprefix(f"{prefix}/"): blob.download_as_bytes() for blob in found}

    def lines(self, job):
        return [line for data in self.files(job).values() for line in data.splitlines()]

    def rows(self, job):
        return [json.loads(line) for line in self.lines(job)]


@pytest.fixture(scope="module")
def clock():
    return ManualClock()


@pytest.fixture(scope="module")
def served(clock):
    with Sandbox(clock=clock, buckets=["batch-work"]) as sandbox, Proxy(sandbox) as proxy:
        yield sandbox, proxy


@pytest.fixture
def sandbox(served, monkeypatch):
    yield from for_one_test(served, monkeypatch)


@pytest.fixture
def cloud(sandbox, clock):
    return Cloud(sandbox, clock)


def text_of(row):
    return row["request"]["contents"][0]["parts"][0]["text"]


def test_a_job_answers_each_row_as_the_model_does_online(cloud, sandbox) -> None:
    sandbox.batches.change(queue_seconds=60, run_seconds=600)
    made = cloud.submit()
    assert made.state == types.JobState.JOB_STATE_PENDING
    assert cloud.get(made, 60).state == types.JobState.JOB_STATE_RUNNING
    half = cloud.get(made, 300)
    assert (half.completion_stats.successful_count, half.completion_stats.incomplete_count) == (5, 5)
    assert sandbox.token_bill.nano_usd == 0
    done = cloud.get(made, 300)
    assert done.state == types.JobState.JOB_STATE_SUCCEEDED
    assert done.completion_stats.successful_count == 10
    rows = cloud.rows(done)
    assert [text_of(row) for row in rows] != [f"prompt {number}" for number in range(10)]
    assert sorted(map(text_of, rows)) == [f"prompt {number}" for number in range(10)]
    for row in rows:
        config = types.GenerateContentConfig(max_output_tokens=64, temperature=0.5)
        online = cloud.client.models.generate_content(model=MODEL, contents=text_of(row), config=config)
        assert row["response"]["candidates"][0]["content"]["parts"][0]["text"] == online.text
        assert (row["status"], row["request"]) == ("", echo_of(text_of(row)))
    assert set(sandbox.requests.paid(ROW).values()) == {1}


def test_a_job_is_billed_at_half_the_online_price(cloud, sandbox) -> None:
    cloud.get(cloud.submit(1))
    config = types.GenerateContentConfig(max_output_tokens=64)
    cloud.client.models.generate_content(model=MODEL, contents="prompt 0", config=config)
    by_tier = sandbox.token_bill.by_tier()
    assert by_tier["standard"] == 2 * by_tier["batch"] > 0


def test_a_job_that_nobody_reads_is_on_the_bill(cloud, sandbox) -> None:
    cloud.submit(3)
    assert [charge.answers for charge in sandbox.token_bill.charges] == [3]


def test_results_are_in_shards(cloud, sandbox) -> None:
    sandbox.batches.change(rows_per_shard=4)
    assert list(cloud.files(cloud.get(cloud.submit()))) == [
        f"predictions_0000{number}.jsonl" for number in (1, 2, 3)
    ]


def test_rows_fail_are_damaged_and_are_missing(cloud, sandbox) -> None:
    sandbox.batches.change(fail_ratio=0.3, malformed_ratio=0.2, missing_ratio=0.1)
    done = cloud.get(cloud.submit())
    assert done.state == types.JobState.JOB_STATE_SUCCEEDED
    assert (done.completion_stats.successful_count, done.completion_stats.failed_count) == (7, 3)
    good, malformed = [], 0
    for line in cloud.lines(done):
        try:
            good.append(json.loads(line))
        except ValueError:
            malformed += 1
    assert (len(good), malformed) == (7, 2)
    failed = [row for row in good if row["status"]]
    assert [row["response"] for row in failed] == [{}, {}, {}]
    assert "Internal error" in failed[0]["status"]
    assert sandbox.requests.paid(ROW).total() == 7


def test_the_row_of_a_fault_has_its_error(cloud, sandbox) -> None:
    sandbox.faults.when(ROW, "prompt 1", Fault(kind="error", http_status=429), times=1)
    rows = cloud.rows(cloud.get(cloud.submit(3)))
    assert [text_of(row) for row in rows if row["status"].startswith("Too Many Requests")] == ["prompt 1"]


def test_a_fault_that_is_no_error_has_no_effect_on_a_row(cloud, sandbox) -> None:
    sandbox.faults.queue(ROW, Fault(kind="garbage"))
    assert cloud.get(cloud.submit(1)).completion_stats.successful_count == 1


def test_a_row_that_the_model_refuses_has_its_error(cloud) -> None:
    cloud.bucket.blob("bad.jsonl").upload_from_string(json.dumps({"request": {"contents": []}}))
    (row,) = cloud.rows(cloud.get(cloud.submit(src="gs://batch-work/bad.jsonl")))
    assert row["status"].startswith("Bad Request: ")
    assert "contents is not specified" in row["status"]


def test_an_echo_has_other_orders_and_numbers(cloud, sandbox) -> None:
    sandbox.batches.change(reorders_echo=True)
    (row,) = cloud.rows(cloud.get(cloud.submit(1)))
    assert row["request"] == echo_of("prompt 0")
    assert list(row["request"]) == ["generationConfig", "contents"]
    assert '"maxOutputTokens": 64.0' in json.dumps(row["request"])


def test_a_cancelled_job_returns_and_bills_the_rows_that_were_finished(cloud, sandbox) -> None:
    sandbox.batches.change(run_seconds=100, cancel_seconds=30)
    made = cloud.submit()
    cloud.get(made)
    cloud.clock.advance(40)
    cloud.client.batches.cancel(name=made.name)
    assert cloud.get(made, 20).state == types.JobState.JOB_STATE_CANCELLING
    done = cloud.get(made, 10)
    assert done.state == types.JobState.JOB_STATE_CANCELLED
    assert len(cloud.rows(done)) == 4
    assert sandbox.requests.paid(ROW).total() == 4


def test_a_cancelled_job_that_returns_nothing_is_billed(cloud, sandbox) -> None:
    sandbox.batches.change(run_seconds=100, cancel_returns_rows=False)
    made = cloud.submit()
    cloud.get(made, 40)
    cloud.client.batches.cancel(name=made.name)
    assert cloud.get(made).output_info is None
    assert sandbox.requests.paid(ROW).total() == 4


@pytest.mark.parametrize(("outcome", "rows"), [("stuck", 0), ("stuck_at", 9)])
def test_a_stuck_job_expires_with_the_rows_that_were_finished(cloud, sandbox, outcome, rows) -> None:
    sandbox.batches.change(outcome=outcome, expires_seconds=3600, run_seconds=60)
    made = cloud.submit()
    state = "JOB_STATE_PENDING" if outcome == "stuck" else "JOB_STATE_RUNNING"
    assert cloud.get(made, 3599).state.name == state
    done = cloud.get(made, 1)
    assert done.state == types.JobState.JOB_STATE_EXPIRED
    assert len(cloud.rows(done)) == rows


def test_a_job_expires_at_its_end_with_the_rows_that_were_finished(cloud, sandbox) -> None:
    sandbox.batches.settings = BatchSettings(outcome="expired", run_seconds=60)
    made = cloud.submit()
    assert cloud.get(made).state == types.JobState.JOB_STATE_RUNNING
    done = cloud.get(made, 60)
    assert done.state == types.JobState.JOB_STATE_EXPIRED
    assert (len(cloud.rows(done)), done.completion_stats.incomplete_count) == (9, 1)


def test_a_job_fails_as_a_whole_and_is_not_billed(cloud, sandbox) -> None:
    sandbox.batches.change(outcome="failed", failure="Quota exceeded for aiplatform.googleapis.com.")
    done = cloud.get(cloud.submit())
    assert done.state == types.JobState.JOB_STATE_FAILED
    assert done.error.message == "Quota exceeded for aiplatform.googleapis.com."
    assert sandbox.token_bill.nano_usd == 0


def test_the_next_job_has_the_settings_of_its_creation(cloud, sandbox) -> None:
    sandbox.batches.change(outcome="stuck")
    first = cloud.submit()
    sandbox.batches.change(outcome="partially_succeeded")
    second = cloud.submit()
    assert cloud.get(first).state == types.JobState.JOB_STATE_PENDING
    assert cloud.get(second).state == types.JobState.JOB_STATE_PARTIALLY_SUCCEEDED


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"no json", "line 1"), (b'{"other": 1}', "`request`"), (b"", "1 to 200000"), (b"[]", "not an object")],
)
def test_a_job_whose_input_is_unreadable_fails(cloud, content, message) -> None:
    cloud.bucket.blob("bad.jsonl").upload_from_string(content)
    done = cloud.get(cloud.submit(src="gs://batch-work/bad.jsonl"))
    assert done.state == types.JobState.JOB_STATE_FAILED
    assert message in done.error.message


def test_a_job_without_an_input_fails(cloud) -> None:
    done = cloud.get(cloud.submit(src="gs://batch-work/none.jsonl"))
    assert "no such object" in done.error.message


def create(sandbox, **change):
    fields = {
        "displayName": "x",
        "model": f"publishers/google/models/{MODEL}",
        "inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": ["gs://batch-work/in.jsonl"]}},
        "outputConfig": {"predictionsFormat": "jsonl", "gcsDestination": {"outputUriPrefix": "gs://batch-work/o"}},
    }
    headers = {"Authorization": f"Bearer {sandbox.token}"}
    return httpx.post(f"{sandbox.url}{PARENT}", json=fields | change, headers=headers, trust_env=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "publishers/google/models/gpt-5"}, "was not found"),
        ({"model": "gemini-2.5-flash"}, "is invalid"),
        ({"displayName": ""}, "display_name"),
        ({"labels": {"A": "b"}}, "labels"),
        ({"inputConfig": {"instancesFormat": "csv"}}, "inputConfig"),
        ({"outputConfig": {"predictionsFormat": "jsonl"}}, "outputConfig"),
        ({"outputConfig": {"predictionsFormat": "jsonl", "gcsDestination": {"outputUriPrefix": "x"}}}, "path"),
    ],
)
def test_an_invalid_job_is_refused(cloud, sandbox, change, message) -> None:
    answer = create(sandbox, **change)
    assert answer.status_code in (400, 404)
    assert message in answer.json()["error"]["message"]


def test_a_job_is_listed_by_its_name_and_state_and_deleted_at_its_end(cloud, sandbox) -> None:
    sandbox.batches.change(outcome="stuck")
    made = cloud.submit()
    for term in ('display_name="night"', 'state="JOB_STATE_PENDING"', 'display_name="night" AND state!="X"'):
        assert [job.name for job in cloud.client.batches.list(config={"filter": term})] == [made.name]
    assert list(cloud.client.batches.list(config={"filter": 'display_name="day"'})) == []
    with pytest.raises(ClientError, match="has not ended"):
        cloud.client.batches.delete(name=made.name)
    cloud.client.batches.cancel(name=made.name)
    cloud.get(made)
    with pytest.raises(ClientError, match="cannot be cancelled"):
        cloud.client.batches.cancel(name=made.name)
    assert cloud.client.batches.delete(name=made.name).done
    with pytest.raises(ClientError, match="does not exist"):
        cloud.get(made)


def test_the_client_of_vertex_ai_finds_a_job_by_its_labels(cloud) -> None:
    jobs = v1.JobServiceClient(
        transport="rest", client_options={"api_endpoint": "europe-west4-aiplatform.googleapis.com"}
    )
    cloud.upload()
    parent = f"projects/{PROJECT}/locations/europe-west4"
    fields = {
        "display_name": "night",
        "model": f"publishers/google/models/{MODEL}",
        "labels": {"llmbeam-run": "r1"},
        "input_config": {"instances_format": "jsonl", "gcs_source": {"uris": ["gs://batch-work/*.jsonl"]}},
        "output_config": {
            "predictions_format": "jsonl",
            "gcs_destination": {"output_uri_prefix": "gs://batch-work/out"},
        },
    }
    made = jobs.create_batch_prediction_job(parent=parent, batch_prediction_job=fields)
    found = jobs.list_batch_prediction_jobs(request={"parent": parent, "filter": "labels.llmbeam-run=r1"})
    assert [job.name for job in found] == [made.name]
    assert not list(jobs.list_batch_prediction_jobs(request={"parent": parent, "filter": "labels.llmbeam-run=r2"}))
    done = jobs.get_batch_prediction_job(name=made.name)
    assert (done.state.name, done.completion_stats.successful_count) == ("JOB_STATE_SUCCEEDED", 10)
    jobs.delete_batch_prediction_job(name=made.name).result(timeout=60)
    assert not list(jobs.list_batch_prediction_jobs(parent=parent))


def test_a_job_whose_bucket_is_gone_fails_after_its_rows_were_billed(cloud, sandbox) -> None:
    bucket = cloud.bucket.client.create_bucket("gone")
    cloud.upload()
    config = types.CreateBatchJobConfig(dest="gs://gone/out", display_name="night")
    made = cloud.client.batches.create(model=MODEL, src="gs://batch-work/in.jsonl", config=config)
    bucket.delete()
    done = cloud.get(made)
    assert (done.state, "bucket does not exist" in done.error.message) == (types.JobState.JOB_STATE_FAILED, True)
    assert sandbox.requests.paid(ROW).total() == 10


def test_other_requests_are_answered_while_rows_are_computed(cloud, sandbox) -> None:
    made = cloud.submit(2_000)
    polled = threading.Thread(target=cloud.get, args=[made])
    polled.start()
    answered = 0
    while polled.is_alive():
        assert httpx.get(f"{sandbox.url}/", trust_env=False).text == "OK"
        answered += 1
    polled.join()
    assert answered > 2  # with a blocked event loop it is one
    assert sandbox.requests.paid(ROW).total() == 2_000


def test_the_answers_of_a_job_are_billed_under_its_labels(cloud, sandbox) -> None:
    cloud.upload(3)
    assert create(sandbox, labels={"team": "data"}).json()["labels"] == {"team": "data"}
    assert sandbox.token_bill.by_label("team") == {"data": sandbox.token_bill.nano_usd}
    assert [request.labels for request in sandbox.requests if request.method == ROW] == [(("team", "data"),)] * 3
