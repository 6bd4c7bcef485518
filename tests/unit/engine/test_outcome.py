from __future__ import annotations

import pickle

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.spec.fields.failure_kind import FAILURE_KINDS
from tests.outcomes import completion


def test_the_kinds_are_different_and_all_listed() -> None:
    assert len(set(FAILURE_KINDS)) == len(FAILURE_KINDS) == 25


def test_an_outcome_can_be_pickled() -> None:
    for outcome in (completion(parsed={"a": [1]}), Failure(kind="timeout", message="slow")):
        assert pickle.loads(pickle.dumps(outcome)) == outcome


def test_a_failure_has_no_cost_by_default() -> None:
    failure = Failure(kind="bad_request", message="no")
    assert (failure.attempts, failure.rejections, failure.tokens.input, failure.tokens.output) == (0, 0, 0, 0)
