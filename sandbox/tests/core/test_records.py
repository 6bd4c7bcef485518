from __future__ import annotations

import pytest
from llmbeam_sandbox.core.methods import Method
from llmbeam_sandbox.core.records import RequestLog, RequestRecord
from llmbeam_sandbox.services import METHODS


def record(method: Method, prompt: str, *, is_billed: bool = True) -> RequestRecord:
    return RequestRecord(
        method=method,
        prompt_sha256=prompt,
        http_status=200,
        received_at=0.0,
        answered_at=1.0,
        is_billed=is_billed,
    )


def test_billed_answers_are_counted_per_prompt() -> None:
    log = RequestLog(METHODS)
    for prompt, is_billed in (("a", True), ("a", True), ("b", True), ("c", False)):
        log.append(record("gemini.generateContent", prompt, is_billed=is_billed), log.epoch)
    log.append(record("openai.chatCompletions", "a"), log.epoch)
    assert log.paid() == {"a": 3, "b": 1}
    assert log.paid("gemini.generateContent") == {"a": 2, "b": 1}


def test_a_request_from_before_the_reset_is_not_logged_after_it() -> None:
    log = RequestLog(METHODS)
    epoch = log.epoch
    log.clear()
    log.append(record("gemini.generateContent", "late"), epoch)
    assert len(log) == 0


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of"):
        RequestLog(METHODS).paid("gemini.chat")
