"""Streamed answers: complete or not at all."""

from __future__ import annotations

import pytest
from llmbeam_sandbox import Fault

STREAMS = {"gemini": "gemini.streamGenerateContent", "openai": "openai.chatCompletions"}
STREAMED = {"stream": True, "stream_idle_timeout_seconds": 0.5}


def rows(count: int) -> list[dict]:
    return [{"id": number, "text": f"row number {number} with some words to stream"} for number in range(count)]


@pytest.fixture(params=["gemini", pytest.param("openai", marks=pytest.mark.full)])
def api(request):
    return request.param


def streamed_job(job):
    """A second job beside the first, with a sink of its own."""
    return {"generation": STREAMED, "name": "streamed", "sink": {"uri": str(job.directory / "streamed")}}


@pytest.fixture
def either(api, job, openai_job):
    """A job against each of the two APIs."""
    return job if api == "gemini" else openai_job


def test_a_streamed_answer_is_the_same_text_and_has_a_time_to_its_first_token(either, api, sandbox):
    whole = {answer["id"]: answer["answer"] for answer in either.run(rows(20)).answers}
    assert either.run().manifest["origins"]["resumed"] == 20
    streamed = either.run(**streamed_job(either))
    assert {answer["id"]: answer["answer"] for answer in streamed.answers} == whole
    assert streamed.report["first_token_seconds"]["p50"] > 0
    assert min(streamed.manifest["tokens"][kind] for kind in ("input", "output")) > 0
    assert {request.method for request in sandbox.requests} == {"gemini.generateContent", STREAMS[api]} - (
        {"gemini.generateContent"} if api == "openai" else set()
    )


@pytest.mark.full
def test_streaming_does_not_change_which_answers_are_resumed(either, sandbox):
    either.run(rows(5))
    assert either.run(generation=STREAMED).manifest["origins"]["resumed"] == 5
    assert len(sandbox.requests) == 5


def test_the_text_of_a_broken_stream_is_never_an_answer(either, api, sandbox):
    whole = {answer["id"]: answer["answer"] for answer in either.run(rows(10)).answers}
    sandbox.faults.queue(STREAMS[api], *[Fault(kind=kind) for kind in ("drop", "stream-error", "disconnect")])
    ended = either.run(**streamed_job(either))
    assert {answer["id"]: answer["answer"] for answer in ended.answers} == whole
    assert ended.manifest["requests"]["retried"] == 3


@pytest.mark.full
def test_a_stalled_stream_fails_after_its_idle_timeout(either, api, sandbox):
    sandbox.faults.when(STREAMS[api], "row number 3", Fault(kind="hang"))
    ended = either.run(rows(5), generation=STREAMED, limits={"max_attempts": 1, "request_timeout_seconds": 2})
    (failed,) = ended.dead_letter
    assert failed["llmbeam_error"]["kind"] == "timeout"
