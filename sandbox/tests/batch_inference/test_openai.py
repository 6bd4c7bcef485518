from __future__ import annotations

import json

import httpx
import openai
import pytest
from llmbeam_sandbox import ManualClock, ModelSettings, Proxy, Sandbox

from tests.clouds import use_environment

CHAT = "/v1/chat/completions"
ROW = "batch.openaiRow"


def line(number, url=CHAT, model="gpt-4o-mini", **fields):
    text = f"prompt {number}"
    body = {"input": text} if url.endswith("embeddings") else {"messages": [{"role": "user", "content": text}]}
    return {"custom_id": f"row-{number}", "method": "POST", "url": url, "body": {"model": model, **body}} | fields


class Api:
    """The client of a user, and the calls that several tests need."""

    def __init__(self, sandbox, clock):
        self.sandbox, self.clock = sandbox, clock
        self.client = openai.OpenAI(base_url=sandbox.openai_url, api_key="sk-right", max_retries=0)

    def upload(self, lines):
        data = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines)
        return self.client.files.create(file=("in.jsonl", data.encode()), purpose="batch")

    def submit(self, lines=None, endpoint=CHAT):
        lines = [line(number) for number in range(4)] if lines is None else lines
        return self.client.batches.create(
            input_file_id=self.upload(lines).id, endpoint=endpoint, completion_window="24h", metadata={"run": "1"}
        )

    def get(self, batch, seconds=0):
        self.clock.advance(seconds)
        return self.client.batches.retrieve(batch.id)

    def rows(self, file_id):
        return [json.loads(one) for one in self.client.files.content(file_id).text.splitlines()]


@pytest.fixture(scope="module")
def clock():
    return ManualClock()


@pytest.fixture(scope="module")
def server(clock):
    with Sandbox(clock=clock, models=ModelSettings(openai_api_key="sk-right")) as sandbox:
        yield sandbox


@pytest.fixture
def api(server, clock):
    server.reset()
    return Api(server, clock)


def test_a_batch_answers_each_line_as_the_model_does_online(api) -> None:
    api.sandbox.batches.change(queue_seconds=10, run_seconds=200)
    made = api.submit()
    assert (made.status, made.metadata) == ("validating", {"run": "1"})
    half = api.get(made, 110)
    assert (half.status, half.request_counts.completed, half.request_counts.total) == ("in_progress", 2, 4)
    assert api.get(made, 98).status == "finalizing"
    done = api.get(made, 2)
    assert (done.status, done.completed_at - done.in_progress_at, done.error_file_id) == ("completed", 200, None)
    rows = {row["custom_id"]: row["response"] for row in api.rows(done.output_file_id)}
    assert set(rows) == {f"row-{number}" for number in range(4)}
    messages = [{"role": "user", "content": "prompt 3"}]
    online = api.client.chat.completions.create(model="gpt-4o-mini", messages=messages)
    assert rows["row-3"]["status_code"] == 200
    assert rows["row-3"]["body"]["choices"][0]["message"]["content"] == online.choices[0].message.content


def test_embeddings_are_answered(api) -> None:
    url = "/v1/embeddings"
    done = api.get(api.submit([line(1, url=url, model="text-embedding-3-small")], endpoint=url))
    (row,) = api.rows(done.output_file_id)
    online = api.client.embeddings.create(
        model="text-embedding-3-small", input="prompt 1", encoding_format="float"
    )
    assert row["response"]["body"]["data"][0]["embedding"] == online.data[0].embedding


def test_rows_with_errors_are_in_a_file_of_their_own(api) -> None:
    api.sandbox.batches.change(fail_ratio=0.25)
    streamed = line(9)
    streamed["body"]["stream"] = True
    done = api.get(api.submit([line(1), line(2), line(3, body={"model": "gpt-4o-mini"}), streamed]))
    assert (done.status, done.request_counts.total) == ("completed", 4)
    errors = api.rows(done.error_file_id)
    assert {row["response"]["status_code"] for row in errors} <= {400, 500}
    assert len(errors) == done.request_counts.failed
    assert all(row["response"]["body"]["error"]["message"] for row in errors)
    assert len(api.rows(done.output_file_id)) == done.request_counts.completed


def test_an_expired_batch_returns_what_was_finished_and_names_the_rest(api) -> None:
    api.sandbox.batches.change(run_seconds=200_000)
    made = api.submit()
    done = api.get(made, 24 * 3600)
    assert (done.status, done.expired_at) == ("expired", done.expires_at)
    assert len(api.rows(done.output_file_id)) == 1
    assert {row["error"]["code"] for row in api.rows(done.error_file_id)} == {"batch_expired"}
    assert api.sandbox.requests.paid(ROW).total() == 1


def test_a_cancelled_batch_returns_what_was_finished(api) -> None:
    api.sandbox.batches.change(run_seconds=100, cancel_seconds=60)
    made = api.submit()
    api.get(made, 50)
    assert api.client.batches.cancel(made.id).status == "cancelling"
    done = api.get(made, 60)
    assert (done.status, len(api.rows(done.output_file_id))) == ("cancelled", 2)
    with pytest.raises(openai.ConflictError, match="status 'cancelled'"):
        api.client.batches.cancel(made.id)


def test_a_batch_beyond_the_enqueued_tokens_fails(api) -> None:
    api.sandbox.batches.change(max_enqueued_tokens=15, run_seconds=60)
    first = api.submit()
    refused = api.get(api.submit())
    assert refused.status == "failed"
    assert refused.errors.data[0].code == "token_limit_exceeded"
    assert api.get(first, 60).status == "completed"


def test_a_failed_batch_has_a_message(api) -> None:
    api.sandbox.batches.change(outcome="failed", failure="Billing hard limit has been reached.")
    assert api.get(api.submit()).errors.data[0].message == "Billing hard limit has been reached."


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (["no json"], "invalid_json_line"),
        ([{"custom_id": "x"}], "invalid_json_line"),
        ([line(1, body="x")], "invalid_json_line"),
        ([line(1), line(1)], "duplicate_custom_id"),
        ([line(1, url="/v1/embeddings")], "mismatched_url"),
        ([line(1), line(2, model="other")], "mismatched_model"),
        ([line(1, method="GET")], "invalid_request"),
        ([line(1, custom_id=["x"])], "invalid_request"),
        ([], "invalid_request"),
    ],
)
def test_a_batch_with_an_invalid_file_fails(api, lines, code) -> None:
    done = api.get(api.submit(lines))
    assert (done.status, done.errors.data[0].code) == ("failed", code)


def test_invalid_requests_are_refused(api) -> None:
    file_id = api.upload([line(1)]).id
    create = api.client.batches.create
    for fields in (
        {"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h"},
        {"input_file_id": file_id, "endpoint": "/v1/moderations", "completion_window": "24h"},
        {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "1h"},
    ):
        with pytest.raises(openai.BadRequestError, match="Invalid"):
            create(**fields)
    with pytest.raises(openai.NotFoundError, match="No batch found"):
        api.client.batches.retrieve("batch_x")
    assert httpx.get(f"{api.sandbox.openai_url}/files", trust_env=False).status_code == 401
    form = {"files": {"other": ("a", b"b")}, "headers": {"Authorization": "Bearer sk-right"}}
    answer = httpx.post(f"{api.sandbox.openai_url}/files", trust_env=False, **form)
    assert answer.json()["error"]["message"] == "'file' and 'purpose' are required properties"


def test_batches_and_files_are_listed_in_pages_the_newest_first(api) -> None:
    made = [api.submit([line(1)]).id for _ in range(3)]
    assert [batch.id for batch in api.client.batches.list(limit=2)] == made[::-1]
    files = [file.id for file in api.client.files.list(purpose="batch")]
    assert len(files) == 3
    assert api.client.files.retrieve(files[0]).filename == "in.jsonl"
    assert api.client.files.delete(files[0]).deleted
    with pytest.raises(openai.NotFoundError, match="No such File object"):
        api.client.files.content(files[0])


def test_the_host_of_openai_leads_to_the_sandbox(api, monkeypatch) -> None:
    with Proxy(api.sandbox) as proxy:
        use_environment(monkeypatch, proxy.environment())
        assert openai.OpenAI(api_key="sk-right").batches.list().data == []
