"""What a guard says, and what follows from it."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.pipeline.moderation.verdict import (
    VERDICT_SCHEMA,
    Decision,
    Verdict,
    decide,
    read_verdict,
)
from airflow_provider_llmbeam.spec import Moderation
from tests.outcomes import completion

GUARD = {"type": "openai", "name": "guard", "base_url": "http://127.0.0.1:9/v1"}


def moderation(**changes: object) -> Moderation:
    return Moderation.parse({"model": GUARD, **changes})


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("safe", Verdict(is_unsafe=False)),
        ("\n\nSafe\n", Verdict(is_unsafe=False)),
        ("unsafe\nS1", Verdict(is_unsafe=True, categories=("S1",))),
        ("\n\nunsafe\n\nS1, S10,S1", Verdict(is_unsafe=True, categories=("S1", "S10"))),
        ("unsafe\nViolent Crimes\nmore", Verdict(is_unsafe=True, categories=("Violent Crimes", "more"))),
        ("safe\nunsafe\nS1", Verdict(is_unsafe=True, categories=("unsafe", "S1"))),
        ("safe\nS1", Verdict(is_unsafe=True, categories=("S1",))),
        ("safe\n\x1b", Verdict(is_unsafe=False)),
        ("unsafe", Verdict(is_unsafe=True)),
        ("unsafe\n,;\x1b", Verdict(is_unsafe=True)),
        ("I cannot say whether this is safe", None),
        ("safe.", None),
        ("", None),
    ],
)
def test_a_verdict_of_llama_guard_is_its_first_line_and_the_categories_of_the_others(answer, verdict):
    assert read_verdict(completion(answer), moderation()) == verdict


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("Yes", Verdict(is_unsafe=True)),
        ("\n**No**, it asks for a recipe. Yes.", Verdict(is_unsafe=False)),
        ("yes. The text insults a person.", Verdict(is_unsafe=True)),
        ("Nothing is wrong", None),
        ("", None),
    ],
)
def test_a_verdict_of_shieldgemma_is_its_first_word(answer, verdict):
    guard = moderation(verdict="shield_gemma", system='"No Hate Speech": …')
    assert read_verdict(completion(answer), guard) == verdict


@pytest.mark.parametrize(
    ("answer", "probability", "is_unsafe"),
    [("Yes", 0.6, False), ("Yes", 0.7, True), ("No", 0.9, False), ("No", 0.2, True)],
)
def test_with_a_bound_the_probability_of_yes_decides_and_not_the_word(answer, probability, is_unsafe):
    one_token = {"logprobs": True, "max_output_tokens": 1}
    guard = moderation(verdict="shield_gemma", system="p", min_probability=0.7, generation=one_token)
    judged = completion(answer, mean_logprob=math.log(probability + 1e-9))
    assert read_verdict(judged, guard) == Verdict(is_unsafe=is_unsafe)
    assert read_verdict(completion(answer), guard) is None  # a server without probabilities


def test_a_verdict_in_json_is_the_object_of_the_schema():
    answer = completion("{}", parsed={"unsafe": True, "categories": ["hate", "", "a,b"]})
    guard = moderation(verdict="json", system="Say whether it is unsafe.")
    assert read_verdict(answer, guard) == Verdict(is_unsafe=True, categories=("hate", "a b"))


@given(st.text())
def test_no_other_first_line_than_safe_lets_a_text_pass(answer):
    lines = [line.strip() for line in answer.strip().splitlines() if line.strip()]
    if decide(completion(answer), moderation()).action == "allow":
        assert lines[0].lower() == "safe"
        assert not re.search(r"\w", "".join(lines[1:]))


GUARDS = {
    "llama_guard": lambda names: completion("unsafe\n" + ",".join(names)),
    "json": lambda names: completion("{}", parsed={"unsafe": True, "categories": names}),
}


@pytest.mark.parametrize("verdict", GUARDS)
def test_the_strictest_category_counts_wherever_it_is_in_a_long_list(verdict):
    harmless = [f"S{number}" for number in range(100, 200)]
    guard = moderation(verdict=verdict, system="Judge.", categories=dict.fromkeys(harmless, "allow"))
    assert decide(GUARDS[verdict](harmless), guard).action == "allow"
    found = decide(GUARDS[verdict]([*harmless, "S1"]), guard)
    assert found.action == "fail"
    assert found.category.count(",") == 19, "a column does not hold what a guard likes to write"


@pytest.mark.parametrize("first", ["unsafe", r"\u0075nsafe"])
def test_a_verdict_in_json_that_is_there_twice_is_none(first):
    text = f'{{"{first}": true, "categories": ["S1"], "unsafe": false, "categories": []}}'
    guard = moderation(verdict="json", system="Judge.")
    answers = [*map(completed(), (text, f"```json\n{text}\n```", json.dumps(text), f"{text} Yes."))]
    assert {decide(answer, guard) for answer in answers} == {Decision("fail", "unreadable")}


def completed():
    """Returns a function that reads an answer of a guard as its job does."""
    parser = OutputParser(VERDICT_SCHEMA)

    def outcome(text):
        try:
            reply = parser.mended(Reply(text=text, finish_reason="stop", tokens=Tokens(1, 1), model="m"))
            return completion(reply.text, parsed=parser.parse(reply))
        except RequestError as error:
            return Failure(kind=error.kind, message=str(error))

    return outcome


@pytest.mark.parametrize(
    "answer",
    [
        completion("safe\nunsafe\nS3"),
        completion("unsafe\nS3\nunsafe\nS1"),
        completion("unsafe\nS3\nsafe"),
        completion("{}", parsed={"unsafe": False, "categories": ["S1"]}),
        completion("{}", parsed={"unsafe": False, "categories": ["S3", "S1"]}),
    ],
)
def test_a_verdict_that_contradicts_itself_lets_no_text_pass(answer):
    verdict = "llama_guard" if answer.parsed is None else "json"
    guard = moderation(verdict=verdict, system="Judge.", categories={"S3": "allow"})
    assert decide(answer, guard).action == "fail"


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        ("safe", Decision("allow")),
        ("unsafe\nS1", Decision("fail", "S1")),
        ("unsafe\nS2", Decision("flag", "S2")),
        ("unsafe\nS3", Decision("allow", "S3")),
        ("unsafe\nS3,S2", Decision("flag", "S3,S2")),
        ("unsafe\nS2,S1,S3", Decision("fail", "S2,S1,S3")),
        ("unsafe", Decision("fail", "unsafe")),
        ("?", Decision("fail", "unreadable")),
    ],
)
def test_of_several_categories_the_strictest_action_counts(answer, decision):
    assert decide(completion(answer), moderation(categories={"S2": "flag", "S3": "allow"})) == decision


@pytest.mark.parametrize("category", ["self-harm", "sexual/minors"])
def test_a_category_with_signs_in_its_name_has_the_action_that_the_spec_gives_it(category):
    guard = moderation(
        verdict="json", system="Say whether it is unsafe.", action="flag", categories={category: "fail"}
    )
    answer = completion("{}", parsed={"unsafe": True, "categories": ["insult", category]})
    assert decide(answer, guard).action == "fail"
    assert decide(completion("{}", parsed={"unsafe": True, "categories": ["insult"]}), guard).action == "flag"


def test_of_two_categories_in_the_spec_that_differ_in_signs_the_strictest_action_counts():
    guard = moderation(action="flag", categories={"self-harm": "fail", "self harm": "allow"})
    assert decide(completion("unsafe\nself-harm"), guard) == Decision("fail", "self harm")


def test_a_failed_request_is_no_verdict_and_fails_the_row_for_the_same_reason():
    failure = Failure(kind="throttled", message="429")
    assert decide(failure, moderation(on_unreadable="flag")) == Decision("fail", failure=failure)


@pytest.mark.parametrize("kind", ["blocked", "truncated", "invalid_output"])
def test_a_text_that_the_provider_of_the_guard_has_blocked_has_no_readable_verdict(kind):
    refused = Failure(kind=kind, message="no")
    assert decide(refused, moderation()) == Decision("fail", "unreadable")
    assert decide(refused, moderation(on_unreadable="flag")) == Decision("flag", "unreadable")
