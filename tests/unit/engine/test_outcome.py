from __future__ import annotations

import pickle

from airflow_provider_llmbeam.engine.outcome import FAILURE_KINDS, Completion, Failure


def test_the_kinds_are_different_and_all_listed() -> None:
    assert len(set(FAILURE_KINDS)) == len(FAILURE_KINDS) == 19


def test_an_outcome_can_be_pickled() -> None:
    completion = Completion(
        text="hi",
        parsed={"a": [1]},
        model="m",
        finish_reason="stop",
        input_tokens=1,
        output_tokens=2,
        attempts=1,
        latency_seconds=0.5,
        sent_at=1.0,
        answered_at=2.0,
    )
    for outcome in (completion, Failure(kind="timeout", message="slow")):
        assert pickle.loads(pickle.dumps(outcome)) == outcome


def test_a_failure_has_no_cost_by_default() -> None:
    failure = Failure(kind="bad_request", message="no")
    assert (failure.attempts, failure.rejections, failure.input_tokens, failure.output_tokens) == (0, 0, 0, 0)
