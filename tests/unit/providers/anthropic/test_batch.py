"""Message Batches of Anthropic, whose jobs have no name, against the sandbox."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from llmbeam_sandbox import Fault, ManualClock, Sandbox

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.exceptions import JobRefusedError
from airflow_provider_llmbeam.providers.batch import BatchJob, BatchProvider, open_provider
from airflow_provider_llmbeam.providers.batch_format import batch_format
from airflow_provider_llmbeam.providers.errors import UncertainSubmitError
from airflow_provider_llmbeam.spec import AnthropicModel, Generation

KEY = "0" * 64
GENERATION = Generation(max_output_tokens=100)
MODEL = AnthropicModel(type="anthropic", name="claude-haiku-5-5")
ON_VERTEX_AI = AnthropicModel(type="anthropic", name="claude-haiku-5-5", project="p")
MESSAGE = {
    "type": "message",
    "model": "claude-haiku-5-5",
    "content": [{"type": "text", "text": "Paris"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 7, "output_tokens": 1},
}
OVERLOAD = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
WRONG = {"type": "error", "error": {"type": "invalid_request_error", "message": "wrong"}}


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def server(clock: ManualClock) -> Iterator[Sandbox]:
    with Sandbox(clock=clock) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(server: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sandbox")
    server.reset()
    return server


@pytest.fixture
def provider(sandbox: Sandbox) -> BatchProvider:
    return open_provider(MODEL.model_copy(update={"base_url": sandbox.url}), output_uri="")


def submit(provider: BatchProvider, rows: int = 3) -> BatchJob:
    lines = batch_format(MODEL, GENERATION, None)
    content = b"".join(lines.encode(f"row-{number}", Prompt(f"text\n{number}"))[1] for number in range(rows))
    return provider.submit("night-1", "in.jsonl", lambda uri: io.BytesIO(content), len(content))


def test_a_batch_is_submitted_polled_and_read(
    provider: BatchProvider, sandbox: Sandbox, clock: ManualClock
) -> None:
    sandbox.batches.change(run_seconds=100)
    job = submit(provider)
    assert (job.display_name, job.phase, job.rows, job.results) == ("night-1", "running", 3, ())
    clock.advance(100)
    done = provider.poll(job)
    assert (done.display_name, done.phase, done.answered, done.failed) == ("night-1", "succeeded", 3, 0)
    ((_, chunks),) = provider.results(done)
    assert {json.loads(line)["custom_id"] for line in b"".join(chunks).splitlines()} == {"row-0", "row-1", "row-2"}
    provider.delete(done)
    assert provider.created_since(0) == []


def test_batches_are_found_by_their_time_and_by_no_name(
    provider: BatchProvider, sandbox: Sandbox, clock: ManualClock
) -> None:
    for _ in range(102):
        clock.advance(1)
        submit(provider, rows=1)
    since = clock.now() if hasattr(clock, "now") else clock()
    found = provider.created_since(since - 101)
    assert len(found) == 102
    assert len(provider.created_since(since - 9)) == 10
    assert provider.find("night-") == []


def test_a_batch_is_cancelled_and_returns_what_it_has_answered(
    provider: BatchProvider, sandbox: Sandbox, clock: ManualClock
) -> None:
    sandbox.batches.change(run_seconds=100)
    job = submit(provider, rows=10)
    clock.advance(40)
    provider.cancel(job.name)
    done = provider.get(job.name)
    assert (done.phase, done.answered, done.rows) == ("cancelled", 4, 10)


@pytest.mark.parametrize("fault", [Fault(kind="truncated"), Fault(kind="error", http_status=529)])
def test_a_batch_whose_creation_got_no_reply_is_not_sent_again(
    provider: BatchProvider, sandbox: Sandbox, fault: Fault
) -> None:
    sandbox.faults.queue("anthropic.batches.create", fault)
    with pytest.raises(UncertainSubmitError):
        submit(provider)
    assert sum(each.method == "anthropic.batches.create" for each in sandbox.requests) == 1


def test_a_batch_that_is_refused_was_not_created(provider: BatchProvider, sandbox: Sandbox) -> None:
    sandbox.faults.queue("anthropic.batches.create", Fault(kind="error", http_status=413, message="too large"))
    with pytest.raises(JobRefusedError, match="too large"):
        submit(provider)


@pytest.mark.parametrize(("model", "field"), [(MODEL, "params"), (ON_VERTEX_AI, "request")])
def test_a_line_has_the_name_and_the_request_without_a_stream(model: AnthropicModel, field: str) -> None:
    lines = batch_format(model, GENERATION.model_copy(update={"stream": True}), None)
    key, line = lines.encode(KEY, Prompt("Capital of France?"))
    found = json.loads(line)
    assert (key, found["custom_id"]) == (KEY, KEY)
    assert found[field]["max_tokens"] == 100
    assert "stream" not in found[field]
    assert ("model" in found[field], "anthropic_version" in found[field]) == (
        field == "params",
        field == "request",
    )


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (MODEL, {"result": {"type": "succeeded", "message": MESSAGE}}),
        (ON_VERTEX_AI, {"request": {}, "status": "", "response": MESSAGE}),
    ],
)
def test_an_answer_is_read(model: AnthropicModel, line: dict[str, Any]) -> None:
    found = batch_format(model, GENERATION, None).decode(json.dumps({"custom_id": KEY, **line}).encode())
    assert isinstance(found.result, Reply)
    assert (found.key, found.result.text, found.result.tokens.input) == (KEY, "Paris", 7)


@pytest.mark.parametrize(
    ("model", "line", "kind"),
    [
        (MODEL, {"result": {"type": "errored", "error": OVERLOAD}}, "server_error"),
        (MODEL, {"result": {"type": "errored", "error": WRONG}}, "bad_request"),
        (MODEL, {"result": {"type": "canceled"}}, "server_error"),
        (MODEL, {"result": {"type": "expired"}}, "server_error"),
        (MODEL, {"result": None}, "garbage"),
        (ON_VERTEX_AI, {"status": "", "response": OVERLOAD}, "server_error"),
        (ON_VERTEX_AI, {"status": {"code": 400, "message": "wrong"}, "response": {}}, "bad_request"),
        (ON_VERTEX_AI, {"status": "Internal error", "response": None}, "server_error"),
    ],
)
def test_a_request_that_was_not_answered_is_an_error_that_bills_nothing(
    model: AnthropicModel, line: dict[str, Any], kind: str
) -> None:
    found = batch_format(model, GENERATION, None).decode(json.dumps({"custom_id": KEY, **line}).encode())
    assert isinstance(found.result, RequestError)
    assert (found.result.kind, found.result.tokens.input, found.result.tokens.output) == (kind, 0, 0)


def test_a_line_without_a_name_is_none() -> None:
    with pytest.raises(ValueError, match="custom_id"):
        batch_format(MODEL, GENERATION, None).decode(b"{}")
