"""Labels of requests, by which Cloud Billing breaks down the cost of Vertex AI."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.providers.backends import open_backend
from airflow_provider_llmbeam.spec import GeminiModel, Generation


def send(model, *, stream=False, asked_tier="standard"):
    async def main():
        backend = open_backend(model, Generation(stream=stream), None, asked_tier=asked_tier)
        try:
            await backend.complete(Prompt("How tall?", "Be short."))
        finally:
            await backend.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("options", [{}, {"stream": True}, {"asked_tier": "flex"}])
def test_every_request_to_vertex_ai_has_the_labels(sandbox, google, options):
    labels = {"llmbeam-dag": "nightly", "team": "data"}
    send(GeminiModel(base_url=sandbox.gemini_url, project=google.project, labels=labels), **options)
    (request,) = [each for each in sandbox.requests if each.method.startswith("gemini.")]
    assert dict(request.labels) == labels
    assert sandbox.token_bill.by_label("team") == {"data": sandbox.token_bill.nano_usd}


def test_a_model_without_labels_sends_none(sandbox, google):
    send(GeminiModel(base_url=sandbox.gemini_url, project=google.project))
    assert sandbox.requests[-1].labels == ()
    assert sandbox.token_bill.by_label("team") == {}


def test_the_developer_api_which_has_no_labels_gets_none(sandbox, monkeypatch):
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    send(GeminiModel(base_url=sandbox.gemini_url))
    assert sandbox.requests[-1].http_status == 200
