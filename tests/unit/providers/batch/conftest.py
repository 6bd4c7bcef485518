"""The batch-inference APIs of the sandbox, and what a request file of each provider looks like."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import storage
from llmbeam_sandbox import ManualClock, Proxy, Sandbox

from airflow_provider_llmbeam.providers.batch import BatchJob, BatchProvider, open_provider
from airflow_provider_llmbeam.spec import GeminiModel, OpenAIModel
from tests.clouds import for_one_test

PROJECT = "llmbeam-sandbox"
OUTPUT = "gs://batch-work/out"


def gemini_request(text: str) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": text}]}]}


def embedding_line_of(kind: str, text: str) -> dict[str, Any]:
    if kind == "gemini":
        return {"key": text, "request": {"content": {"parts": [{"text": text}]}}}
    body = {"model": "text-embedding-3-small", "input": text}
    return {"custom_id": text, "method": "POST", "url": "/v1/embeddings", "body": body}


def line_of(kind: str, text: str) -> dict[str, Any]:
    if kind == "vertex":
        return {"request": gemini_request(text)}
    if kind == "gemini":
        return {"key": text, "request": gemini_request(text)}
    body = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": text}]}
    return {"custom_id": text, "method": "POST", "url": "/v1/chat/completions", "body": body}


class Cloud:
    """One provider of the sandbox."""

    def __init__(
        self, kind: str, sandbox: Sandbox, clock: ManualClock, provider: BatchProvider, *, embeds: bool = False
    ) -> None:
        self.kind, self.sandbox, self.clock, self.provider = kind, sandbox, clock, provider
        self.embeds = embeds
        service = {"vertex": "vertex.batchPredictionJobs", "gemini": "gemini.batches", "openai": "openai.batches"}
        self.service = service[kind]

    def submit(self, display_name: str = "night-1", rows: int = 3) -> BatchJob:
        line = embedding_line_of if self.embeds else line_of
        lines = [json.dumps(line(self.kind, f"prompt {number}")) for number in range(rows)]
        content = "\n".join(lines).encode()
        bucket = storage.Client(project=PROJECT).bucket("batch-work")
        bucket.blob("in.jsonl").upload_from_string(content)
        return self.provider.submit(
            display_name, "gs://batch-work/in.jsonl", lambda uri: io.BytesIO(content), len(content)
        )

    def after(self, job: BatchJob, seconds: float = 0) -> BatchJob:
        self.clock.advance(seconds)
        return self.provider.get(job.name)

    def rows(self, job: BatchJob) -> list[dict[str, Any]]:
        contents = [b"".join(chunks) for _, chunks in self.provider.results(job)]
        if self.kind == "vertex":
            assert contents == []
            (directory,) = job.results
            prefix = directory.removeprefix("gs://batch-work/")
            client = storage.Client(project=PROJECT)
            contents = [blob.download_as_bytes() for blob in client.list_blobs("batch-work", prefix=prefix)]
        return [json.loads(line) for content in contents for line in content.splitlines()]


@pytest.fixture(scope="package")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="package")
def served(clock: ManualClock) -> Iterator[tuple[Sandbox, Proxy]]:
    with Sandbox(clock=clock, buckets=["batch-work"]) as sandbox, Proxy(sandbox) as proxy:
        yield sandbox, proxy


@pytest.fixture
def sandbox(served: tuple[Sandbox, Proxy], monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    yield from for_one_test(served, monkeypatch)


@pytest.fixture
def open_cloud(sandbox: Sandbox, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cloud]:
    monkeypatch.setenv("OPENAI_API_KEY", "sandbox")

    def opened(kind: str, *, embeds: bool = False) -> Cloud:
        models = {
            "vertex": GeminiModel(project=PROJECT, location="europe-west4"),
            "gemini": GeminiModel(name="gemini-embedding-001") if embeds else GeminiModel(),
            "openai": OpenAIModel(type="openai", name="gpt-5-mini", base_url=sandbox.openai_url),
        }
        provider = open_provider(models[kind], output_uri=OUTPUT, embeds=embeds)
        return Cloud(kind, sandbox, clock, provider, embeds=embeds)

    return opened


@pytest.fixture(params=["vertex", "gemini", "openai"])
def cloud(request: pytest.FixtureRequest, open_cloud: Callable[..., Cloud]) -> Cloud:
    return open_cloud(request.param)
