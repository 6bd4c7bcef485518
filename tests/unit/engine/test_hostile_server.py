"""A batch whose server answers some rows well and others with anything: each row has its own outcome."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator, Sequence
from typing import Any

from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.outcome import Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RetryPolicy
from airflow_provider_llmbeam.providers.openai.client import OpenAIBackend
from airflow_provider_llmbeam.spec import Generation, OpenAIModel
from tests.replying import Received, Replying, raw


def chat(text: str, usage: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage, "model": "m"}


def tokens(count: Any) -> dict[str, Any]:
    return {"prompt_tokens": count, "completion_tokens": count}


def endless() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    for _ in range(64):
        yield bytes(2**18)


BOMB = gzip.compress(bytes(2**24))
#: Responses without an answer, and words of the reason that the row then has.
MALFORMED: list[tuple[Any, str]] = [
    (raw("<html>"), "<html>"),
    (raw("[" * 100_000), "a 200 that is no chat completion: [[["),
    (raw('{"choices": [{"message": ' + '{"content": ' * 5000), "a 200 that is no chat completion"),
    (raw({"choices": {"0": 5}}), "a 200 that is no chat completion"),
    (raw({"choices": [{"message": {"content": [5]}}]}), "a 200 that is no chat completion"),
    (raw({"error": {"message": 5, "code": ["x"]}}, 400), '"message": 5'),
    (raw({"error": {"message": "cut \ud83d"}}, 422), "cut \ufffd"),
    (raw("moved", 308, Location="http://user:secret@other.invalid/?key=secret"), "http://other.invalid:80"),
    (raw(BOMB, Content_Encoding="gzip"), "of more than 8,388,608 bytes"),
    (endless, "of more than 8,388,608 bytes"),
    (raw(b"{}", Content_Encoding="gzip"), "damaged gzip"),
    (raw({"error": {"details": [{"violations": 5}]}}, 500, Retry_After="nan"), "violations"),
    (raw({}, 200, Content_Length="1000"), "ClientPayloadError"),
    (b"", "ServerDisconnectedError"),
]
#: Usages, of which the first is true.
USAGES: list[Any] = [tokens(count) for count in (7, 10**12, -1, 1.5, "7", True, 2**63, float("nan"), None)]
USAGES += [None, [7], "7", {"prompt_tokens": {"a": 7}}]


def answered(request: Received) -> Any:
    number = int(json.loads(request.body)["messages"][0]["content"])
    if number % 11 == 10:
        response, _ = MALFORMED[number // 11 % len(MALFORMED)]
        return response() if callable(response) else response
    return raw(chat(f"answer {number} \ud83d", USAGES[number % len(USAGES)]))


async def outcomes(url: str, count: int) -> Sequence[Outcome]:
    engine = Engine(
        OpenAIBackend(OpenAIModel(type="openai", name="m", base_url=f"{url}/v1"), Generation(), None),
        governor=Governor(requests_per_minute=1e7, tokens_per_minute=1e8),
        buckets=LengthBuckets((128,), 64),
        parser=OutputParser(None),
        policy=RetryPolicy(max_attempts=1, max_throttled_seconds=10),
        max_in_flight=16,
        request_timeout_seconds=60,
    )
    try:
        return await engine.answer([Prompt(str(number)) for number in range(count)])
    finally:
        await engine.aclose()


def test_of_a_server_that_answers_a_tenth_badly_all_other_rows_are_answered() -> None:
    with Replying(answered) as server:
        found = asyncio.run(outcomes(server.url, 1100))
    assert len(server.received) == 1100, "each row was asked once, and no job was stopped"
    for number, outcome in enumerate(found):
        if number % 11 != 10:
            assert isinstance(outcome, Completion), outcome
            assert outcome.text == f"answer {number} \ufffd"
            assert 0 <= outcome.tokens.input < 100
            assert 0 <= outcome.tokens.output < 100
            continue
        assert isinstance(outcome, Failure)
        assert outcome.kind != "internal"
        _, words = MALFORMED[number // 11 % len(MALFORMED)]
        assert words in outcome.message
        assert "secret" not in outcome.message
    assert sum(isinstance(outcome, Failure) for outcome in found) == 100
