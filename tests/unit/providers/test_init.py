from __future__ import annotations

import asyncio

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.backends import open_backend
from airflow_provider_llmbeam.providers.echo.client import EchoBackend
from airflow_provider_llmbeam.providers.gemini.client import GeminiBackend
from airflow_provider_llmbeam.providers.openai.client import OpenAIBackend
from airflow_provider_llmbeam.spec import EchoModel, GeminiModel, Generation, Model, OpenAIModel


@pytest.mark.parametrize(
    ("model", "backend"),
    [
        (EchoModel(type="echo"), EchoBackend),
        (OpenAIModel(type="openai", name="m"), OpenAIBackend),
        (GeminiModel(), GeminiBackend),
    ],
    ids=["echo", "openai", "gemini"],
)
def test_each_model_has_its_backend(monkeypatch: pytest.MonkeyPatch, model: Model, backend: type) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    monkeypatch.setenv("OPENAI_API_KEY", "k")

    async def main() -> None:
        opened = open_backend(model, Generation(), None)
        assert isinstance(opened, backend)
        await opened.aclose()

    asyncio.run(main())


def test_openai_itself_without_a_key_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(
        JobSpecError,
        match=r"OpenAI needs a key: .* `OPENAI_API_KEY` .*Nothing was sent",
    ):
        open_backend(OpenAIModel(type="openai", name="m"), Generation(), None)


def test_gemini_without_key_and_project_cannot_start() -> None:
    with pytest.raises(JobSpecError, match=r"`GOOGLE_API_KEY` .* `model\.project` .*Nothing was sent or billed\."):
        open_backend(GeminiModel(), Generation(), None)
