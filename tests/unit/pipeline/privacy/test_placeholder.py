"""What a model makes of placeholders: exact counts, and never a wrong restoration."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.privacy import placeholder as module
from airflow_provider_llmbeam.pipeline.privacy.placeholder import (
    Returned,
    is_ambiguous,
    restore_values,
    returned_in,
)
from tests.fates import FATES

SENT = ("<EMAIL_7f3a>", "<PHONE_00c1>")


def counts(found: Returned) -> tuple[int, int, int, int]:
    return found.returned, found.altered, found.lost, found.invented


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Write to <EMAIL_7f3a> or call <PHONE_00c1>.", (2, 0, 0, 0)),
        ("<EMAIL_7f3a>s and <EMAIL_7f3a>", (1, 0, 1, 0)),
        ("<email_7F3A> <PHONE_00c1>", (1, 1, 0, 0)),
        ("EMAIL_7f3a, <PHONE_00c1>", (1, 1, 0, 0)),
        ("<EMAIL_7f3a <PHONE_00c1>", (1, 1, 0, 0)),
        ("<EMAIL 7f3a> <PHONE_00c1>", (1, 1, 0, 0)),
        ("<EMAIL_7f 3a> <PHONE_00c1>", (1, 1, 0, 0)),
        ("<EMAIL_\n7f3a> <PHONE_00c1>", (1, 1, 0, 0)),
        ("<EMAIL_7f3b> <PHONE_00c1>", (1, 1, 0, 0)),
        ("<EMAIL_7f3as> <PHONE_00c1>", (1, 1, 0, 0)),
        ("&lt;EMAIL_7f3a&gt; <PHONE_00c1>", (1, 1, 0, 0)),
        ("<EMAIL_beef> <IBAN_1234>", (0, 0, 2, 2)),
        ("My email 2020 is lost, and so is my phone.", (0, 0, 2, 0)),
        ("", (0, 0, 2, 0)),
    ],
)
def test_placeholders_of_an_answer_are_counted(answer, expected):
    assert counts(returned_in(answer, SENT)) == expected


def test_the_first_altered_one_is_named():
    assert returned_in("<email_7f3a>, EMAIL_7f3a", SENT).first_altered == "<email_7f3a>"


def test_a_placeholder_without_any_in_the_prompt_is_invented():
    assert counts(returned_in("<EMAIL_7f3a>", ())) == (0, 0, 0, 1)
    assert returned_in("1 < 2", ()) == Returned()


def test_tags_that_differ_in_one_digit_are_ambiguous():
    assert is_ambiguous("EMAIL", "7f3b", SENT)
    assert not is_ambiguous("EMAIL", "7fbb", SENT)
    assert not is_ambiguous("IBAN", "7f3a", SENT)
    assert is_ambiguous("IBAN", "7f3a", ("<IBAN_7f3a>",))


tags = st.text("0123456789abcdef", min_size=4, max_size=4)


@st.composite
def answers(draw):
    """Draws placeholders of a prompt, and an answer that copies, inflects, splits, loses and invents some."""
    sent: list[tuple[str, str]] = []
    for tag in draw(st.lists(tags, min_size=1, max_size=5)):
        kind = draw(st.sampled_from(["EMAIL", "US_SSN"]))
        # Three digits of a tag are in no other one, or an altered one might be that of both.
        if all((Counter(tag) - Counter(other)).total() > 2 for _, other in sent):
            sent.append((kind, tag))
    parts, expected = [], [0, 0, 0, 0]
    for kind, tag in sent:
        write, counted = FATES[draw(st.sampled_from(sorted(FATES)))]
        parts.append(write(kind, tag))
        expected = [a + b for a, b in zip(expected, counted, strict=True)]
    for tag in draw(st.lists(tags, max_size=3)):
        parts.append(f"<IBAN_{tag}>")
        expected[3] += 1
    separator = draw(st.sampled_from([" and ", ", ", "\n", '", "', " | "]))
    return [f"<{kind}_{tag}>" for kind, tag in sent], separator.join(draw(st.permutations(parts))), tuple(expected)


@pytest.mark.fuzz
@given(answers())
def test_counts_are_exact_whatever_a_model_does(drawn):
    sent, answer, expected = drawn
    assert counts(returned_in(answer, sent)) == expected


def differs_in_one_place(tag: str, own: str) -> bool:
    """Whether at most one character was changed, added or left out."""
    if len(tag) == len(own):
        return sum(a != b for a, b in zip(tag, own, strict=True)) < 2
    short, long = sorted((tag, own), key=len)
    return any(long[:place] + long[place + 1 :] == short for place in range(len(long)))


near_tags = st.text("0a", min_size=3, max_size=6)


@pytest.mark.fuzz
@given(st.lists(near_tags, min_size=1, max_size=6, unique=True), near_tags)
def test_the_first_placeholder_that_differs_in_one_place_is_the_altered_one(own, tag):
    found = returned_in(f"EMAIL_{tag}", [f"<EMAIL_{each}>" for each in own])
    expected = tag if tag in own else next((each for each in own if differs_in_one_place(tag, each)), None)
    assert found.originals == (() if expected is None else (f"<EMAIL_{expected}>",))


def test_an_answer_of_many_placeholders_is_not_compared_with_each_of_the_prompt(monkeypatch):
    """Each with each took 27 s for 108 kB."""
    forms, calls = module._forms, []
    monkeypatch.setattr(module, "_forms", lambda tag: calls.append(tag) or forms(tag))
    sent = [f"<EMAIL_{number:08x}>" for number in range(0, 2**32, 2**22)]
    answer = " ".join(f"<EMAIL_{number:08x}>" for number in range(3, 2**32, 2**20))
    assert returned_in(answer, sent).invented > 3000
    assert len(calls) == len(sent) + 2**12


@pytest.mark.fuzz
@given(st.lists(tags, max_size=5, unique=True), st.text("<>EMAIL_ 0123abcf", max_size=60))
def test_nothing_but_an_exact_placeholder_is_replaced(issued, answer):
    values = {f"<EMAIL_{tag}>": f"«{number}»" for number, tag in enumerate(issued)}
    found = restore_values(answer, values)
    for placeholder, value in values.items():
        assert found.count(value) == answer.count(placeholder)
        found = found.replace(value, placeholder)
    assert found == answer
