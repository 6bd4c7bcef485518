from __future__ import annotations

import json

import httpx
import pytest
from google import genai
from google.genai import types
from google.genai.errors import ClientError
from llmbeam_sandbox import ManualClock, ModelSettings, Sandbox

MODEL = "gemini-2.5-flash"
EMBEDDING = "gemini-embedding-001"
ROW = "batch.geminiRow"
#: google-genai says so of `create_embeddings`.
experimental = pytest.mark.filterwarnings("ignore:.*is experimental")


def inlined(number):
    return {
        "contents": f"prompt {number}",
        "metadata": {"key": f"row-{number}"},
        "config": {"max_output_tokens": 64, "system_instruction": "Be short."},
    }


class Api:
    """The client of a user, and the calls that several tests need."""

    def __init__(self, sandbox, clock):
        self.sandbox, self.clock = sandbox, clock
        self.client = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=sandbox.url))

    def submit(self, count=4):
        src = [inlined(number) for number in range(count)]
        return self.client.batches.create(model=MODEL, src=src, config={"display_name": "night"})

    def get(self, job, seconds=0):
        self.clock.advance(seconds)
        return self.client.batches.get(name=job.name)

    def raw(self, job):
        headers = {"x-goog-api-key": "k"}
        return httpx.get(f"{self.sandbox.url}/v1beta/{job.name}", headers=headers, trust_env=False).json()

    def upload(self, tmp_path, lines):
        path = tmp_path / "in.jsonl"
        path.write_text("\n".join(lines))
        return self.client.files.upload(file=path, config={"mime_type": "application/jsonl", "display_name": "in"})


@pytest.fixture(scope="module")
def clock():
    return ManualClock()


@pytest.fixture(scope="module")
def server(clock):
    with Sandbox(clock=clock) as sandbox:
        yield sandbox


@pytest.fixture
def api(server, clock):
    server.reset()
    return Api(server, clock)


def lines_of(count):
    return [
        json.dumps({"key": f"row-{number}", "request": {"contents": [{"parts": [{"text": f"prompt {number}"}]}]}})
        for number in range(count)
    ]


def test_inline_requests_are_answered_with_their_metadata(api) -> None:
    api.sandbox.batches.change(queue_seconds=60, run_seconds=100)
    made = api.submit()
    assert (made.state, made.display_name) == (types.JobState.JOB_STATE_PENDING, "night")
    assert api.get(made, 60).state == types.JobState.JOB_STATE_RUNNING
    api.clock.advance(50)
    assert api.raw(made)["metadata"]["batchStats"] == {
        "requestCount": "4",
        "successfulRequestCount": "2",
        "failedRequestCount": "0",
        "pendingRequestCount": "2",
    }
    done = api.get(made, 50)
    assert done.state == types.JobState.JOB_STATE_SUCCEEDED
    found = {one.metadata["key"]: one.response.text for one in done.dest.inlined_responses}
    assert set(found) == {f"row-{number}" for number in range(4)}
    config = types.GenerateContentConfig(max_output_tokens=64, system_instruction="Be short.")
    assert (
        found["row-2"] == api.client.models.generate_content(model=MODEL, contents="prompt 2", config=config).text
    )
    assert api.raw(made)["done"] is True


def test_a_file_of_requests_gives_a_file_of_results(api, tmp_path) -> None:
    api.sandbox.batches.change(fail_ratio=0.1, malformed_ratio=0.1)
    uploaded = api.upload(tmp_path, lines_of(10))
    assert (uploaded.state.name, uploaded.source.name) == ("ACTIVE", "UPLOADED")
    made = api.client.batches.create(model=MODEL, src=uploaded.name)
    name = api.get(made).dest.file_name
    rows, malformed = [], 0
    for line in api.client.files.download(file=name).splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            malformed += 1
    assert (len(rows), malformed) == (9, 1)
    errors = [row["error"] for row in rows if "error" in row]
    assert errors == [{"code": 500, "message": "Internal error encountered.", "status": "INTERNAL"}]
    answers = {row["key"]: row["response"] for row in rows if "response" in row}
    assert len(answers) == 8
    for key, answer in answers.items():
        assert key.replace("row-", "prompt ") in answer["candidates"][0]["content"]["parts"][0]["text"]
    headers = {"x-goog-api-key": "k"}
    url = f"{api.sandbox.url}/download/v1beta/{name}:download?alt=media"
    assert len(httpx.get(url, headers=headers, trust_env=False).content.splitlines()) == 10


def embedding_lines(count):
    names = ("outputDimensionality", "output_dimensionality")
    return [
        json.dumps(
            {"key": f"row-{n}", "request": {"content": {"parts": [{"text": f"text {n}"}]}, names[n % 2]: 4}}
        )
        for n in range(count)
    ]


@experimental
def test_a_file_of_texts_gives_a_file_of_vectors_that_equal_those_of_online_requests(api, tmp_path) -> None:
    api.sandbox.batches.change(fail_ratio=0.1, malformed_ratio=0.1, missing_ratio=0.1)
    uploaded = api.upload(tmp_path, embedding_lines(10))
    made = api.client.batches.create_embeddings(model=EMBEDDING, src={"file_name": uploaded.name})
    done = api.get(made)
    assert done.state == types.JobState.JOB_STATE_SUCCEEDED
    assert api.raw(made)["metadata"]["@type"].endswith(".EmbedContentBatch")
    lines = api.client.files.download(file=done.dest.file_name).splitlines()
    assert len(lines) == 9
    rows = [json.loads(line) for line in lines if line.endswith(b"}}")]
    found = {row["key"]: row["response"] for row in rows if "response" in row}
    assert len(found) == 7
    for key, response in found.items():
        config = types.EmbedContentConfig(output_dimensionality=4)
        text = key.replace("row-", "text ")
        online = api.client.models.embed_content(model=EMBEDDING, contents=text, config=config)
        assert response == {"embedding": {"values": online.embeddings[0].values}, "tokenCount": 2}
    (charge,) = [charge for charge in api.sandbox.token_bill.charges if charge.tier == "batch"]
    assert (charge.answers, charge.input_tokens) == (9, 18)


@experimental
def test_inline_texts_are_embedded(api) -> None:
    src = {"inlined_requests": {"contents": ["a", "b"], "config": {"output_dimensionality": 4}}}
    made = api.client.batches.create_embeddings(model=EMBEDDING, src=src)
    found = api.get(made).dest.inlined_embed_content_responses
    assert [len(one.response.embedding.values) for one in found] == [4, 4]
    assert [one.response.token_count for one in found] == [1, 1]


@pytest.mark.parametrize(
    ("model", "verb"), [(MODEL, "asyncBatchEmbedContent"), (EMBEDDING, "batchGenerateContent")]
)
def test_a_model_has_the_batches_of_its_kind_alone(clock, model, verb) -> None:
    with Sandbox(clock=clock, models=ModelSettings(any_model=False)) as sandbox:
        url = f"{sandbox.url}/v1beta/models/{model}:{verb}"
        refused = httpx.post(url, json={}, headers={"x-goog-api-key": "k"}, trust_env=False)
    assert (refused.status_code, "is not found" in refused.text) == (404, True)


def test_a_large_file_is_uploaded_in_chunks_listed_and_deleted(api, tmp_path) -> None:
    content = json.dumps({"key": "a", "request": {"contents": [{"parts": [{"text": "x" * 9_000_000}]}]}})
    uploaded = api.upload(tmp_path, [content])
    assert uploaded.size_bytes == len(content)
    assert [file.name for file in api.client.files.list()] == [uploaded.name]
    assert api.client.files.get(name=uploaded.name).display_name == "in"
    with pytest.raises(ClientError, match="cannot be downloaded"):
        api.client.files.download(file=uploaded.name)
    api.client.files.delete(name=uploaded.name)
    with pytest.raises(ClientError, match="may not exist"):
        api.client.files.get(name=uploaded.name)


def test_inline_results_can_be_missing_and_empty(api) -> None:
    api.sandbox.batches.change(missing_ratio=0.25, malformed_ratio=0.25)
    responses = api.get(api.submit()).dest.inlined_responses
    assert sum(one.response is not None for one in responses) == 2
    assert len(responses) == 3


def test_the_number_of_jobs_is_limited(api) -> None:
    api.sandbox.batches.change(max_jobs=2, outcome="stuck")
    first = api.submit()
    api.submit()
    with pytest.raises(ClientError) as refused:
        api.submit()
    assert (refused.value.code, refused.value.status) == (429, "RESOURCE_EXHAUSTED")
    api.client.batches.cancel(name=first.name)
    assert api.submit().state == types.JobState.JOB_STATE_PENDING


def test_the_enqueued_tokens_of_a_model_are_limited(api) -> None:
    api.sandbox.batches.change(max_enqueued_tokens=30, run_seconds=60)
    first = api.submit()
    with pytest.raises(ClientError, match="exhausted"):
        api.submit()
    assert api.client.batches.create(model="gemini-2.5-pro", src=[inlined(1)]).state.name == "JOB_STATE_PENDING"
    api.get(first, 60)
    assert api.submit()


def test_an_expired_job_returns_nothing_and_is_billed(api) -> None:
    api.sandbox.batches.change(outcome="stuck_at", run_seconds=60)
    made = api.submit()
    assert api.get(made, 48 * 3600 - 1).state == types.JobState.JOB_STATE_RUNNING
    done = api.get(made, 1)
    assert (done.state, done.dest) == (types.JobState.JOB_STATE_EXPIRED, None)
    assert api.sandbox.requests.paid(ROW).total() == 3


def test_a_failed_and_a_cancelled_job_have_errors(api) -> None:
    api.sandbox.batches.change(outcome="failed", failure="Quota exceeded.")
    failed = api.submit()
    assert api.get(failed).state == types.JobState.JOB_STATE_FAILED
    assert api.raw(failed)["error"]["message"] == "Quota exceeded."
    api.sandbox.batches.change(outcome="stuck", cancel_returns_rows=False)
    cancelled = api.submit()
    api.client.batches.cancel(name=cancelled.name)
    assert api.get(cancelled).state == types.JobState.JOB_STATE_CANCELLED
    assert api.raw(cancelled)["error"]["code"] == 1
    with pytest.raises(ClientError, match="cannot be cancelled"):
        api.client.batches.cancel(name=cancelled.name)


def test_jobs_are_listed_in_pages_the_newest_first_and_deleted(api) -> None:
    names = [api.submit(1).name for _ in range(3)]
    assert [job.name for job in api.client.batches.list(config={"page_size": 2})] == names[::-1]
    api.client.batches.delete(name=names[0])
    with pytest.raises(ClientError, match="not found"):
        api.client.batches.get(name=names[0])


def test_invalid_requests_are_refused(api, tmp_path) -> None:
    with pytest.raises(ClientError, match="is not found"):
        api.client.batches.create(model="gpt-5", src=[inlined(1)])
    with pytest.raises(ClientError, match="may not exist"):
        api.client.batches.create(model=MODEL, src="files/none")
    url = f"{api.sandbox.url}/v1beta/models/{MODEL}:batchGenerateContent"
    assert httpx.post(url, json={}, trust_env=False).status_code == 403
    assert httpx.post(url, json={}, headers={"x-goog-api-key": "k"}, trust_env=False).status_code == 400
    for wrong in ([1], {"inputConfig": "text"}, {"inputConfig": {"requests": {"requests": ["text"]}}}):
        refused = httpx.post(url, json={"batch": wrong}, headers={"x-goog-api-key": "k"}, trust_env=False)
        assert (refused.status_code, "Expected an object" in refused.text) == (400, True)
    big = {"batch": {"inputConfig": {"requests": {"requests": [{"request": {"x": "a" * 21_000_000}}]}}}}
    answer = httpx.post(url, json=big, headers={"x-goog-api-key": "k"}, trust_env=False)
    assert "payload size exceeds" in answer.text
    uploaded = api.upload(tmp_path, ["no json"])
    made = api.client.batches.create(model=MODEL, src=uploaded.name)
    assert api.get(made).state == types.JobState.JOB_STATE_FAILED
    assert "line 1" in api.raw(made)["error"]["message"]


def test_an_upload_in_the_wrong_place_is_refused(api) -> None:
    url = f"{api.sandbox.url}/upload/v1beta/files"
    headers = {"x-goog-api-key": "k", "X-Goog-Upload-Command": "start"}
    started = httpx.post(url, json={"file": {"name": "files/own"}}, headers=headers, trust_env=False)
    session = started.headers["x-goog-upload-url"]
    wrong = {"X-Goog-Upload-Command": "upload, finalize", "X-Goog-Upload-Offset": "5"}
    assert httpx.post(session, content=b"x", headers=wrong, trust_env=False).status_code == 400
    no_number = wrong | {"X-Goog-Upload-Offset": "x"}
    assert httpx.post(session, content=b"x", headers=no_number, trust_env=False).status_code == 400
    right = wrong | {"X-Goog-Upload-Offset": "0"}
    assert httpx.post(session, content=b"x", headers=right, trust_env=False).json()["file"]["name"] == "files/own"
    assert httpx.post(session, content=b"x", headers=right, trust_env=False).status_code == 404
    again = httpx.post(url, json={"file": {"name": "files/own"}}, headers=headers, trust_env=False)
    assert again.status_code == 409
