from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import ModuleType, SimpleNamespace

import pytest

from airflow_provider_llmbeam.engine.backends import gemini, open_backend, openai
from airflow_provider_llmbeam.engine.backends.base import Reply
from airflow_provider_llmbeam.engine.backends.streaming import MAX_CHARACTERS, StreamedText
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.sandbox import Sandbox
from airflow_provider_llmbeam.spec import GeminiModel, Generation, OpenAIModel


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
