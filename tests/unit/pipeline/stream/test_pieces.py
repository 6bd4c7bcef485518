from __future__ import annotations

import asyncio
import json

import pytest
from llmbeam_sandbox import Latency, ModelSettings, Sandbox

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.stream.pieces import INTERVAL_SECONDS, Pieces, listening
from airflow_provider_llmbeam.pipeline.stream.run import check_stream
from airflow_provider_llmbeam.providers.backends import open_backend
from airflow_provider_llmbeam.spec import AnthropicModel, GeminiModel, Generation, JobSpec, OpenAIModel

ROW = {"kafka_topic": "q", "kafka_partition": 2, "kafka_offset": 7, "text": "Hello."}
MESSAGE = {"kafka_topic": "q", "kafka_partition": 2, "kafka_offset": 7}


class Topic:
    def __init__(self):
        self.now, self.records = 100.0, []

    def pieces(self, key=b"user"):
        return Pieces(ROW, key, lambda key, value: self.records.append((key, json.loads(value))), lambda: self.now)

    @property
    def written(self):
        return [(value["sequence"], value["text"], value["last"]) for _, value in self.records]


def test_the_first_piece_is_written_at_once_and_the_others_in_intervals():
    topic = Topic()
    pieces = topic.pieces()
    pieces.begin()
    for text in ("a", "b", "c"):
        pieces.add(text)
        topic.now += INTERVAL_SECONDS * 0.6
    pieces.end()
    assert topic.written == [(0, "a", False), (1, "bc", False), (2, "", True)]
    assert all(key == b"user" and MESSAGE.items() <= value.items() for key, value in topic.records)


def test_each_attempt_begins_again():
    topic = Topic()
    pieces = topic.pieces()
    for text in ("broken", "whole"):
        pieces.begin()
        pieces.add(text)
    pieces.end()
    assert topic.written == [(0, "broken", False), (0, "whole", False), (1, "", True)]


def test_the_pieces_of_a_message_without_a_key_are_in_one_partition():
    topic = Topic()
    pieces = topic.pieces(None)
    pieces.begin()
    pieces.add("a")
    pieces.end()
    assert {key for key, _ in topic.records} == {b"q:2:7"}


@pytest.mark.parametrize("provider", ["gemini", "openai", "anthropic"])
def test_the_pieces_of_a_streamed_answer_are_its_text(provider, monkeypatch):
    topic = Topic()
    with Sandbox(models=ModelSettings(latency=Latency(per_output_token_seconds=0.001))) as sandbox:
        model = {
            "gemini": GeminiModel(base_url=sandbox.url),
            "openai": OpenAIModel(type="openai", name="m", base_url=sandbox.openai_url),
            "anthropic": AnthropicModel(type="anthropic", name="claude-haiku-4-5", base_url=sandbox.url),
        }[provider]
        for name in ("GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
            monkeypatch.setenv(name, "k")

        async def ask():
            backend, pieces = (
                open_backend(model, Generation(stream=True, max_output_tokens=500), None),
                topic.pieces(),
            )
            pieces.begin()
            try:
                with listening(pieces):
                    reply = await asyncio.create_task(backend.complete(Prompt("Say something long. " * 5)))
                await backend.complete(Prompt("Nobody listens."))
            finally:
                await backend.aclose()
            pieces.end()
            return reply

        reply = asyncio.run(ask())
    assert "".join(text for _, text, _ in topic.written) == reply.text != ""
    assert len(topic.written) > 1


@pytest.mark.parametrize(
    "safety",
    [
        {"privacy": {"columns": ["text"]}},
        {"moderation": {"model": {"type": "openai", "name": "guard", "base_url": "http://127.0.0.1:1/v1"}}},
    ],
)
def test_pieces_are_refused_where_the_answer_is_restored_or_judged_later(safety):
    queue = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1"}
    spec = JobSpec.parse(
        {
            "name": "pieces",
            "source": {**queue, "topic": "questions"},
            "prompt": {"template": "{{ row.text }}"},
            "model": {"type": "openai", "name": "m", "base_url": "http://127.0.0.1:1/v1"},
            "sink": {**queue, "topic": "answers"},
            "state_uri": "/tmp/state",
            "safety": safety,
            "stream": {"stream_output": True},
        }
    )
    with pytest.raises(JobSpecError, match=r"`stream\.stream_output`: must be left out with"):
        check_stream(spec)
