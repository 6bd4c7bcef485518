from __future__ import annotations

import asyncio
import json
import pickle
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.output import MAX_ANSWER, OutputParser, VectorParser
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.token_counts import Tokens
from tests.hostile import examples

SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}


def reply(text: str, finish_reason: str = "stop") -> Reply:
    return Reply(text=text, finish_reason=finish_reason, tokens=Tokens(11, 22), model="m")


def refusal(schema: Any, text: str, finish_reason: str = "stop") -> RequestError:
    with pytest.raises(RequestError) as caught:
        OutputParser(schema).parse(reply(text, finish_reason))
    return caught.value


def test_free_text_has_no_value() -> None:
    assert OutputParser(None).parse(reply('{"score": 1}')) is None


@pytest.mark.parametrize("text", ["", " \n\t"])
@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_an_empty_answer_is_none(schema: Any, text: str) -> None:
    assert refusal(schema, text).message == "the answer is empty"


def test_a_structured_answer_is_its_value() -> None:
    assert OutputParser(SCHEMA).parse(reply(' {"score": 3, "more": "ü"}\n')) == {"score": 3, "more": "ü"}


@pytest.mark.parametrize("text", ["The score is 3.", "```json\n{}\n```", '{"score": 3'])
def test_an_answer_that_is_not_json_is_refused_and_quoted(text: str) -> None:
    message = refusal(SCHEMA, text).message
    assert message.startswith("the answer is not JSON (")
    assert text in message


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e400", "-1e400", '{"score": 1, "ratio": NaN}'])
def test_a_number_that_json_cannot_represent_is_not_json(text: str) -> None:
    """The parser of Python accepts such numbers, and the answer file would not be JSON."""
    assert refusal({}, text).message.startswith("the answer is not JSON (")


def test_a_long_answer_is_quoted_in_part() -> None:
    assert len(refusal(SCHEMA, "x" * 5000).message) < 700


@pytest.mark.parametrize(("value", "place"), [({"score": "high"}, "$.score"), ({}, "$"), ([1], "$"), (None, "$")])
def test_the_error_locates_the_violation_of_the_schema(value: Any, place: str) -> None:
    message = refusal(SCHEMA, json.dumps(value)).message
    assert message.startswith(f"the answer does not match `output_schema` at {place}: ")


@pytest.mark.parametrize("text", ["", '{"sco', "[1]"])
def test_the_error_of_a_truncated_answer_mentions_the_limit(text: str) -> None:
    assert refusal(SCHEMA, text, "max_tokens").message.endswith(" (truncated at `max_output_tokens`)")
    assert "cut" not in refusal(SCHEMA, text).message


@pytest.mark.parametrize(
    ("text", "kind"), [("", "garbage"), (" \n", "garbage"), ("no", "invalid_output"), ("[]", "invalid_output")]
)
def test_a_refused_answer_is_billed_and_an_empty_one_may_be_asked_again(text: str, kind: str) -> None:
    error = refusal(SCHEMA, text)
    assert (error.kind, error.http_status) == (kind, 200)
    assert (error.tokens.input, error.tokens.output) == (11, 22)


def test_an_answer_that_never_ends_its_brackets_is_not_json() -> None:
    """A model in a loop can produce it; the parser fails with `RecursionError`, not `ValueError`."""
    error = refusal({}, "[" * 100_000, "max_tokens")
    assert error.kind == "truncated"


def nested(levels: int) -> str:
    return '{"a":[' * (levels // 2) + "1" + "]}" * (levels // 2)


@pytest.mark.parametrize("levels", [102, 700])
def test_an_answer_that_is_nested_too_deep_to_be_pickled_is_refused_and_billed(levels: int) -> None:
    """Beam could not pickle it, and the journal had recorded it by then: each retry failed, too."""
    error = refusal({}, nested(levels))
    assert (error.kind, error.tokens.output) == ("invalid_output", 22)
    assert error.message == "the answer is nested more than 100 levels deep"


def test_an_answer_with_as_many_levels_as_allowed_can_be_pickled_and_written() -> None:
    value = OutputParser({}).parse(reply(nested(100)))
    assert json.loads(json.dumps(pickle.loads(pickle.dumps(value)))) == value


def test_an_answer_that_is_too_long_is_refused_before_it_is_parsed() -> None:
    assert refusal({}, "1" * (MAX_ANSWER + 1)).message == "the answer has 4,194,305 characters; at most 4,194,304"


def test_a_pattern_that_backtracks_costs_one_row() -> None:
    """`re` would hold the interpreter lock until it has tried each division of the text, here for 10 s."""
    message = refusal({"pattern": "(a|aa)+$"}, json.dumps("a" * 40 + "!")).message
    assert message == "the answer does not match `output_schema` pattern '(a|aa)+$' takes longer than 0.5 s"


def test_nested_repetitions_are_decided_in_time() -> None:
    """`re` takes 2**40 steps for this one."""
    assert (
        "does not match '^([a-z]+)+$'" in refusal({"pattern": "^([a-z]+)+$"}, json.dumps("a" * 40 + "!")).message
    )


def test_the_message_about_a_long_value_is_short_and_ends_with_the_reason() -> None:
    """A repair sends it to the model."""
    message = refusal(SCHEMA, json.dumps(["x" * 100_000])).message
    assert len(message) < 600
    assert message.endswith(" is not of type 'object'")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@pytest.mark.fuzz
@examples(0.5)
@given(
    st.sampled_from([None, {}, SCHEMA, {"pattern": "a"}, {"multipleOf": 0.1}, {"items": {"uniqueItems": True}}]),
    st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape")) | json_values.map(json.dumps),
)
def test_any_answer_is_a_value_or_refused(schema: Any, text: str) -> None:
    with suppress(RequestError):
        OutputParser(schema).parse(reply(text))


def test_a_false_answer_is_an_answer() -> None:
    assert OutputParser({"type": "boolean"}).parse(reply("false")) is False


def vector_reply(*vector: Any) -> Reply:
    return Reply(text="", finish_reason="stop", tokens=Tokens(11), model="m", vector=list(vector))


@pytest.mark.parametrize("vector", [[0.5, -1.0], [0, 1], [1e-45, 3.4e38]])
def test_a_vector_of_finite_numbers_is_an_answer(vector: list[float]) -> None:
    assert VectorParser(None).parse(vector_reply(*vector)) == vector


@pytest.mark.parametrize(
    "vector",
    [
        [float("nan")],
        [1.0, float("inf")],
        [1e39],
        [10**400],
        ["1.0"],
        [None],
        [True],
        [[1.0]],
    ],
)
def test_a_vector_without_finite_numbers_is_refused_and_billed(vector: list[Any]) -> None:
    with pytest.raises(RequestError, match="values that are not finite 32-bit numbers") as caught:
        VectorParser(None).parse(vector_reply(*vector))
    assert (caught.value.kind, caught.value.tokens.input) == ("invalid_output", 11)


def test_an_answer_without_a_vector_is_none() -> None:
    for found in (reply("a text"), vector_reply()):
        with pytest.raises(RequestError, match="the answer has no vector") as caught:
            VectorParser(None).parse(found)
        assert caught.value.kind == "invalid_output"


@pytest.mark.parametrize("dimensions", [None, 2])
def test_every_vector_must_have_the_requested_dimensions_or_those_of_the_first(dimensions: int | None) -> None:
    parser = VectorParser(dimensions)
    parser.parse(vector_reply(1.0, 2.0))
    with pytest.raises(RequestError, match="the vector has 3 dimensions, not 2") as caught:
        parser.parse(vector_reply(1.0, 2.0, 3.0))
    assert caught.value.kind == "invalid_output"
    parser.parse(vector_reply(3.0, 4.0))


@pytest.mark.parametrize("is_valid", [True, False])
def test_the_event_loop_goes_on_while_an_answer_of_many_steps_is_checked(is_valid):
    """Other requests would time out, and be paid for again."""
    turns, text = 0, json.dumps([[1, 2]] * 20_000 + [[1, 2 if is_valid else "2"]])
    parser = OutputParser({"items": {"items": {"type": "integer"}}})

    async def go_on():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def parse():
        others = asyncio.create_task(go_on())
        try:
            return await parser.parse_on_loop(reply(text))
        finally:
            others.cancel()

    if is_valid:
        assert len(asyncio.run(parse())) == 20_001
    else:
        with pytest.raises(RequestError, match="does not match `output_schema` at"):
            asyncio.run(parse())
    assert turns > 2


def test_an_answer_of_few_steps_is_checked_without_a_thread(monkeypatch):
    monkeypatch.setattr(asyncio, "to_thread", None)
    parser = OutputParser({"items": {"type": "integer"}})
    assert asyncio.run(parser.parse_on_loop(reply("[1]"))) == [1]
    with pytest.raises(RequestError, match="does not match"):
        asyncio.run(parser.parse_on_loop(reply("[null]")))
    assert asyncio.run(OutputParser(None).parse_on_loop(reply("x"))) is None
    assert asyncio.run(VectorParser(None).parse_on_loop(vector_reply(1.0))) == [1.0]
