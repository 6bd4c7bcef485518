from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from llmbeam_sandbox import Fault, Sandbox

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.bill import Bill
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.prefix import CachedHead, PromptHead
from airflow_provider_llmbeam.engine.prompt import Prompt, Turn
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.anthropic.client import (
    AnthropicBackend,
    error_of,
    messages,
    parameters,
    read_reply,
)
from airflow_provider_llmbeam.providers.reported import UsageReader
from airflow_provider_llmbeam.spec import AnthropicModel, Generation, Price
from airflow_provider_llmbeam.spec.model import price_of
from tests.asking import ask_each

METHOD = "anthropic.messages"
SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"enum": ["good", "bad"]},
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["label", "stars"],
}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def model(sandbox: Sandbox | None = None, **fields: Any) -> AnthropicModel:
    address = {} if sandbox is None else {"base_url": sandbox.url}
    return AnthropicModel(**{"type": "anthropic", "name": "claude-haiku-5-5", **address, **fields})


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")


def ask(
    sandbox: Sandbox,
    *prompts: Prompt,
    project: str | None = None,
    generation: Generation | None = None,
    schema: Any = None,
    cached: CachedHead | None = None,
) -> list[Any]:
    """Sends each prompt once, through one client."""

    async def main() -> list[Reply | RequestError]:
        return await ask_each(
            AnthropicBackend(model(sandbox, project=project), generation or Generation(), schema, cached), *prompts
        )

    return asyncio.run(main())


def read(**changes: Any) -> Reply:
    body = {
        "type": "message",
        "model": "claude-haiku-5-5",
        "content": [{"type": "text", "text": "Hi."}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 5, "output_tokens": 6},
        **changes,
    }
    return read_reply(body, b"", Prompt("hello"), "claude", UsageReader("claude", "standard"))


def refused(**error: Any) -> str:
    return json.dumps({"type": "error", "error": {"message": "No.", **error}, "request_id": "req_1"})


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_and_its_tokens_are_read(sandbox: Sandbox, stream: bool) -> None:
    (reply,) = ask(sandbox, Prompt("hello", "Be brief."), generation=Generation(stream=stream))
    (record,) = sandbox.requests
    assert reply.text.startswith("hello [claude-haiku-5-5 ")
    assert (reply.finish_reason, reply.service_tier) == ("stop", "standard")
    assert (reply.tokens.input, reply.tokens.output) == (record.input_tokens, record.output_tokens)
    assert (reply.first_token_seconds is not None) == stream


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_says_so(sandbox: Sandbox, stream: bool) -> None:
    (reply,) = ask(sandbox, Prompt("hello"), generation=Generation(max_output_tokens=2, stream=stream))
    assert (reply.finish_reason, reply.tokens.output) == ("max_tokens", 2)


def test_nothing_is_sent_that_was_not_asked_for() -> None:
    assert parameters(Generation(), None) == {"max_tokens": 1024}


def test_what_was_asked_for_is_sent_by_the_names_of_the_api() -> None:
    asked = Generation(
        max_output_tokens=4096,
        thinking_budget_tokens=2048,
        reasoning_effort="low",
        keep_reasoning=True,
        stop_sequences=("END",),
    )
    assert parameters(asked, None) == {
        "max_tokens": 4096,
        "thinking": {"type": "enabled", "budget_tokens": 2048, "display": "summarized"},
        "output_config": {"effort": "low"},
        "stop_sequences": ["END"],
    }
    assert parameters(Generation(thinking_budget_tokens=0), None)["thinking"] == {"type": "disabled"}
    assert parameters(Generation(thinking_budget_tokens=-1), None)["thinking"] == {"type": "adaptive"}


def test_an_answer_has_the_schema_that_the_api_cannot_enforce_in_full(sandbox: Sandbox) -> None:
    (reply,) = ask(sandbox, Prompt("rate this"), schema=SCHEMA)
    answer = json.loads(reply.text)
    assert answer.keys() == {"label", "stars"}
    with pytest.raises(RequestError) as caught:
        OutputParser(SCHEMA).parse(replace(reply, text='{"label": "good", "stars": 9}'))
    assert caught.value.kind == "invalid_output"


def test_a_prompt_has_its_history_and_files_before_its_text(sandbox: Sandbox) -> None:
    prompt = Prompt("and now?", "Be brief.", media=((PIXEL, "image/png"),), history=(Turn("one", "two"),))
    assert messages(prompt) == {
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
            {
                "role": "user",
                "content": [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
                    },
                    {"type": "text", "text": "and now?"},
                ],
            },
        ],
    }
    (reply,) = ask(sandbox, prompt)
    assert reply.finish_reason == "stop"


def test_cached_tokens_are_part_of_the_input_and_writing_them_has_its_own_price() -> None:
    usage = {
        "input_tokens": 100,
        "cache_read_input_tokens": 1000,
        "cache_creation_input_tokens": 2000,
        "output_tokens": 10,
        "output_tokens_details": {"thinking_tokens": 4},
    }
    reply = read(usage=usage)
    assert (reply.tokens.input, reply.tokens.cached, reply.tokens.cache_write) == (3100, 1000, 2000)
    assert (reply.tokens.output, reply.tokens.reasoning) == (10, 4)
    price = Price(
        input_usd_per_million_tokens=4.0,
        output_usd_per_million_tokens=20.0,
        cached_input_usd_per_million_tokens=0.2,
        cache_write_usd_per_million_tokens=5.0,
    )
    bill = Bill.of(Tokens(3100, 10, 1000, cache_write=2000), price)
    assert bill.cost_nano_usd == 100 * 4000 + 1000 * 200 + 2000 * 5000 + 10 * 20_000


@pytest.mark.parametrize("project", [None, "acme"])
def test_the_list_of_prices_has_the_price_of_writing_a_cache(project: str | None) -> None:
    price = price_of(model(name="claude-sonnet-5-5", project=project))
    assert price is not None
    assert price.cache_write_usd_per_million_tokens == 2.5


def test_a_common_head_is_written_once_and_then_read(sandbox: Sandbox) -> None:
    head = "You classify reviews. " * 300
    prompts = [Prompt(f"{head}Review {number}") for number in range(3)]
    first, *others = ask(sandbox, *prompts, cached=CachedHead("", PromptHead(head)))
    assert first.tokens.cached == 0 < first.tokens.cache_write
    for reply in others:
        assert (reply.tokens.cached, reply.tokens.cache_write) == (first.tokens.cache_write, 0)
        assert reply.tokens.input == first.tokens.input
    (charge,) = sandbox.token_bill.charges
    assert charge.cached_tokens == 2 * charge.cache_write_tokens


@pytest.mark.parametrize(
    ("status", "headers", "error", "kind", "wait"),
    [
        (429, {"retry-after": "7"}, {"type": "rate_limit_error"}, "throttled", 7.0),
        (
            429,
            {"retry-after": "60"},
            {"type": "rate_limit_error", "details": {"error_code": "ramp_limit_exceeded"}},
            "throttled",
            60.0,
        ),
        (
            429,
            {},
            {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}},
            "quota_exhausted",
            None,
        ),
        (429, {"x-should-retry": "false"}, {"type": "rate_limit_error"}, "quota_exhausted", None),
        (400, {}, {"type": "billing_error"}, "quota_exhausted", None),
        (400, {"x-should-retry": "true"}, {"type": "invalid_request_error"}, "server_error", None),
        (400, {}, {"type": "invalid_request_error"}, "bad_request", None),
        (401, {}, {"type": "authentication_error"}, "unauthorized", None),
        (404, {}, {"type": "not_found_error"}, "not_found", None),
        (500, {}, {"type": "api_error"}, "server_error", None),
        (529, {"retry-after": "3"}, {"type": "overloaded_error"}, "server_error", 3.0),
    ],
)
def test_an_error_is_what_its_type_and_code_mean(
    status: int, headers: dict[str, str], error: dict[str, Any], kind: str, wait: float | None
) -> None:
    found = error_of(status, headers, refused(**error))
    assert (found.kind, found.retry_after_seconds) == (kind, wait)


def test_a_server_error_that_must_not_be_repeated_is_given_up() -> None:
    assert error_of(500, {"x-should-retry": "false"}, refused(type="api_error")).is_given_up
    assert not error_of(500, {}, refused(type="api_error")).is_given_up


def test_an_overload_is_one_before_the_answer_and_within_it(sandbox: Sandbox) -> None:
    sandbox.faults.queue(METHOD, Fault(kind="error", http_status=529))
    sandbox.faults.queue(METHOD, Fault(kind="stream-error", http_status=529))
    errors = ask(sandbox, Prompt("one"), Prompt("two"), generation=Generation(stream=True))
    assert [(error.kind, error.http_status, error.is_overload) for error in errors] == [
        ("server_error", 529, True),
        ("server_error", 529, True),
    ]


def test_a_rate_limit_within_a_stream_is_one() -> None:
    assert error_of(500, {}, refused(type="rate_limit_error")).kind == "throttled"


def test_a_stream_that_breaks_off_is_no_answer(sandbox: Sandbox) -> None:
    sandbox.faults.queue(METHOD, Fault(kind="truncated"))
    (error,) = ask(sandbox, Prompt("one"), generation=Generation(stream=True))
    assert error.kind in ("connection", "garbage")


def test_an_answer_that_is_withheld_names_why_and_is_billed() -> None:
    with pytest.raises(RequestError) as caught:
        read(stop_reason="refusal", stop_details={"type": "refusal", "category": "bio", "explanation": "No."})
    error = caught.value
    assert (error.kind, error.category, error.tokens.input, error.tokens.output) == ("blocked", "bio", 5, 6)


def test_an_answer_that_is_not_whole_is_requested_again() -> None:
    with pytest.raises(RequestError) as caught:
        read(stop_reason="pause_turn")
    assert caught.value.kind == "garbage"


def test_thoughts_are_no_part_of_the_answer() -> None:
    blocks = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "text", "text": "Yes."}]
    reply = read(content=blocks)
    assert (reply.text, reply.reasoning) == ("Yes.", "Hm.")


def test_a_refused_key_is_named_without_it(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "invalid-secret")
    (error,) = ask(sandbox, Prompt("hello"))
    assert (error.kind, error.message) == ("unauthorized", "invalid x-api-key")
    assert error.request_id == "req_sandbox"


def test_a_missing_key_is_an_error_before_a_request(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(JobSpecError, match="Anthropic needs a key"):
        ask(sandbox, Prompt("hello"))


@pytest.mark.parametrize("stream", [False, True])
def test_claude_on_vertex_ai_gets_the_version_in_the_body_and_a_token(
    sandbox: Sandbox, google: Any, stream: bool
) -> None:
    reply, error = (
        ask(sandbox, Prompt("hello"), project=google.project, generation=Generation(stream=stream))[0],
        error_of(429, {}, json.dumps({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "No."}})),
    )
    (record,) = sandbox.requests
    assert reply.text.startswith("hello [claude-haiku-5-5 ")
    assert record.resource == f"projects/{google.project}/locations/global"
    assert error.kind == "throttled"


def test_the_published_client_gets_an_answer_of_the_sandbox(sandbox: Sandbox) -> None:
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=sandbox.url, api_key="k", max_retries=0) as client:
        asked = {"model": "claude-haiku-5-5", "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]}
        message = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
        assert streamed.content[0].text == message.content[0].text
        assert streamed.usage.output_tokens == message.usage.output_tokens
        assert [each.id for each in client.models.list()]
        sandbox.faults.queue(METHOD, Fault(kind="error", http_status=529))
        with pytest.raises(anthropic.OverloadedError):
            client.messages.create(**asked)


@pytest.mark.parametrize("rest", ["", " \n"])
def test_no_text_is_blank_as_the_api_refuses_it(rest: str) -> None:
    cached = CachedHead("", PromptHead("Good or bad? "))
    (head,) = messages(Prompt(f"Good or bad? {rest}"), cached)["messages"][0]["content"]
    assert head["text"].startswith("Good or bad?")
    picture = (("https://images.example/a.png", "image/png"),)
    (image,) = messages(Prompt(rest, media=picture))["messages"][0]["content"]
    assert image["type"] == "image"
