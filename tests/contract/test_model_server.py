"""A model server with the OpenAI API that nobody here wrote, where `LLMBEAM_MODEL_SERVER` has its address.

CONTRIBUTING.md says how to start one. The same tests run against the sandbox, so that they are known to work.
"""

from __future__ import annotations

import asyncio
import json
import os
import time

import httpx
import jsonschema
import pytest

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.providers.backends import open_backend
from airflow_provider_llmbeam.spec.model import Generation, OpenAIModel

ADDRESS = os.environ.get("LLMBEAM_MODEL_SERVER", "")
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "large": {"type": "boolean"}},
    "required": ["colour", "large"],
    "additionalProperties": False,
}
PROMPT = Prompt(text="Which colour has the apple, and is it large?")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["sandbox", "real"])
def model(request):
    """The first model that the server lists."""
    if request.param == "sandbox":
        address = request.getfixturevalue("sandbox").openai_url
    elif not ADDRESS:
        pytest.skip("`LLMBEAM_MODEL_SERVER` names no server, e.g. http://127.0.0.1:8080/v1: see CONTRIBUTING.md.")
    else:
        address = ADDRESS.rstrip("/")
    listed = httpx.get(f"{address}/models", timeout=60).json()["data"]
    return OpenAIModel(type="openai", name=listed[0]["id"], base_url=address)


def complete(model, number=1, *, schema=None, cancel_after_seconds=None, **generation):
    """Sends equal requests at the same time; returns the replies, or the errors."""

    async def send():
        backend = open_backend(model, Generation(**generation), schema)
        try:
            tasks = [asyncio.create_task(backend.complete(PROMPT)) for _ in range(number)]
            if cancel_after_seconds is not None:
                await asyncio.sleep(cancel_after_seconds)
                for task in tasks:
                    task.cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await backend.aclose()

    return asyncio.run(send())


def test_a_chat_is_answered(model):
    (reply,) = complete(model, max_output_tokens=16)
    assert reply.text
    assert reply.finish_reason in ("stop", "max_tokens")
    assert 0 < reply.tokens.output <= 16
    assert reply.tokens.input > 0


def test_requests_at_the_same_time_are_answered(model):
    replies = complete(model, 8, max_output_tokens=8)
    assert [reply.finish_reason in ("stop", "max_tokens") for reply in replies] == [True] * 8


def test_an_answer_satisfies_the_schema(model):
    (reply,) = complete(model, schema=SCHEMA, max_output_tokens=64)
    assert reply.finish_reason == "stop"
    jsonschema.validate(json.loads(reply.text), SCHEMA)


def test_a_stream_joins_to_an_answer_with_its_tokens(model):
    (reply,) = complete(model, stream=True, max_output_tokens=16, temperature=0, seed=1)
    assert reply.text
    assert reply.finish_reason in ("stop", "max_tokens")
    assert 0 < reply.tokens.output <= 16
    assert reply.first_token_seconds is not None


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_server_answers_after_requests_that_were_cancelled(model, stream):
    cancelled = complete(model, 8, stream=stream, max_output_tokens=2048, cancel_after_seconds=0.2)
    started = time.monotonic()
    (reply,) = complete(model, max_output_tokens=4)
    assert reply.text
    # What was cancelled is given up: eight answers of 2,048 tokens would take longer than this.
    assert time.monotonic() - started < 60
    assert all(isinstance(one, asyncio.CancelledError) or one.text for one in cancelled)
