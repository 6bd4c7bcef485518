from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.engine.prompt import Prompt, Turn
from tests.outcomes import completion

PROMPT = Prompt("Hi", "Be brief.", (("gs://b/a.png", None),), 258, "c", (Turn("a", "b"),))


@pytest.mark.parametrize("found", [PROMPT, completion(text="Yes"), Failure(kind="blocked", message="no")])
def test_a_value_is_the_same_after_pickling(found: Prompt | Completion | Failure) -> None:
    again = pickle.loads(pickle.dumps(found, pickle.HIGHEST_PROTOCOL))
    assert again == found
    assert hash(again) == hash(found)


def test_equal_values_are_one_key() -> None:
    assert {Prompt("Hi"): 1}[Prompt("Hi")] == 1
    assert Prompt("Hi") != replace(Prompt("Hi"), system="Be brief.")


def test_a_value_has_no_other_fields() -> None:
    with pytest.raises(AttributeError):
        PROMPT.txt = "Hi"  # type: ignore[attr-defined]
