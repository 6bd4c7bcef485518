from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from llmbeam_sandbox import Sandbox

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.providers.backends import open_backend
from airflow_provider_llmbeam.providers.gemini import client as gemini
from airflow_provider_llmbeam.providers.http import MAX_CHARACTERS, StreamedText
from airflow_provider_llmbeam.providers.openai import client as openai
from airflow_provider_llmbeam.spec import GeminiModel, Generation, OpenAIModel
from tests.replying import Replying, raw


def test_pieces_of_a_streamed_answer_are_joined() -> None:
    text = StreamedText()
    text.add("")
    assert not text
    text.add("a")
    text.add("b")
    assert text
    assert text.whole() == "ab"


def test_a_streamed_answer_without_end_is_given_up() -> None:
    text = StreamedText()
    text.add("x" * MAX_CHARACTERS)
    with pytest.raises(RequestError, match="of more than 8,388,608 characters") as caught:
        text.add("x")
    assert (caught.value.kind, caught.value.http_status) == ("garbage", 200)


ENDED = {"candidates": [{"content": {"parts": [{"text": "Hi."}]}, "finishReason": "STOP"}]}
USAGE = {"usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 2}}


def streamed(monkeypatch: pytest.MonkeyPatch, *chunks: Any) -> Reply:
    monkeypatch.setenv("GOOGLE_API_KEY", "k")

    async def main(url: str) -> Reply:
        backend = open_backend(GeminiModel(base_url=url), Generation(stream=True), None)
        try:
            return await backend.complete(Prompt("Hello."))
        finally:
            await backend.aclose()

    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    with Replying(lambda _: raw(body, Content_Type="text/event-stream")) as server:
        return asyncio.run(main(server.url))


def test_an_answer_of_gemini_may_end_with_a_chunk_of_usage_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reply = streamed(monkeypatch, ENDED, USAGE)
    assert (reply.text, reply.finish_reason) == ("Hi.", "stop")
    assert (reply.tokens.input, reply.tokens.output) == (7, 2)


def test_a_stream_of_gemini_without_a_reason_for_its_end_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="broke off"):
        streamed(monkeypatch, {"candidates": [{"content": {"parts": [{"text": "Hi."}]}}]}, USAGE)


def test_a_streamed_refusal_is_blocked_as_an_unstreamed_one() -> None:
    async def main(url: str) -> Reply:
        model = OpenAIModel(type="openai", name="m", base_url=url)
        backend = open_backend(model, Generation(stream=True), None)
        try:
            return await backend.complete(Prompt("Hello."))
        finally:
            await backend.aclose()

    deltas = [{"content": None, "refusal": "I cannot "}, {"refusal": "help."}]
    chunks: list[Any] = [{"choices": [{"delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 5}})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    with (
        Replying(lambda _: raw(body, Content_Type="text/event-stream")) as server,
        pytest.raises(RequestError, match="withheld: I cannot help") as caught,
    ):
        asyncio.run(main(server.url))
    assert (caught.value.kind, caught.value.category, caught.value.tokens.input) == ("blocked", "refusal", 5)


@pytest.mark.parametrize("module", [gemini, openai])
def test_the_time_to_the_first_token_ends_with_the_first_piece_of_text(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> None:
    lines: list[bytes] = []

    async def counted(chunks: AsyncIterator[bytes], idle_seconds: float) -> AsyncIterator[bytes]:
        async for line in chunks:
            lines.append(line)
            yield line

    async def main() -> Reply:
        backend = open_backend(model, Generation(stream=True), None)
        try:
            return await backend.complete(Prompt("Some words that the answer repeats."))
        finally:
            await backend.aclose()

    model = {
        gemini: GeminiModel(base_url=sandbox.gemini_url),
        openai: OpenAIModel(type="openai", name="m", base_url=sandbox.openai_url),
    }[module]
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    monkeypatch.setattr(module, "with_idle_timeout", counted)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: float(len(lines))))
    reply = asyncio.run(main())
    first = next(number for number, line in enumerate(lines, 1) if b"Some" in line)
    assert reply.first_token_seconds == first
    assert sum(line.startswith(b"data:") for line in lines) > first
