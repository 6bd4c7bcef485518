"""The form of a review: nothing in a row leaves its block of code, and what a response becomes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from airflow.sdk import DAG, Param
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from airflow_provider_llmbeam.operators.review_answers import review_answers
from airflow_provider_llmbeam.operators.review_form import (
    MAX_SUBJECT,
    ReviewAnswerOperator,
    form_body,
    subject,
    verdict,
)

MARKUP = "`~>#-*_[]()!<&{}%|\\ \n\t\r\u2028\0ab1."
AT = datetime(2026, 11, 25, 10, tzinfo=UTC)
FORM = {
    "mood": {"value": "good", "schema": {"type": "string", "enum": ["good", "bad"]}, "is_json": False},
    "tags": {"value": '[\n  "a"\n]', "schema": {"type": "string"}, "is_json": True},
}
REVIEW = {"review_uri": "review.jsonl", "key": '{"id": 1}', "row": {"text": "{{ 7 * 7 }}"}, "form": FORM}


def responded(*options, **fields):
    response = {"chosen_options": [*options], "params_input": fields, "responded_at": AT}
    return verdict(REVIEW, response | {"responded_by_user": {"id": "1", "name": "ada"}})


@pytest.mark.fuzz
@given(st.dictionaries(st.text(MARKUP, max_size=12), st.text(MARKUP, max_size=60), max_size=4))
def test_a_row_is_one_block_of_code_whatever_is_in_it(row):
    tokens = MarkdownIt().parse(form_body(row))
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close", "fence"]
    assert tokens[3].content.rstrip("\n") in form_body(row), "and as it is written"


def test_a_short_column_takes_a_line_and_a_long_one_several():
    text = form_body({"id": "7", "text": "two\nlines"})
    assert text.endswith("```text\nid: 7\ntext:\ntwo\nlines\n```")


def test_airflow_renders_no_field_and_adds_no_params_of_the_dag():
    assert ReviewAnswerOperator.template_fields == ()
    with DAG("reviewed", schedule=None, params={"mine": Param(1)}):
        task = ReviewAnswerOperator(task_id="review", review=json.dumps(REVIEW))
        mapped = review_answers(task.output, task_id="mapped")
    assert {name: task.params.get_param(name).schema for name in task.params} == {
        name: field["schema"] for name, field in FORM.items()
    }
    assert "{{ 7 * 7 }}" in task.body
    assert mapped.template_fields == ()


def test_what_nobody_reviews_in_time_makes_no_golden_row():
    task = ReviewAnswerOperator(task_id="review", review=json.dumps(REVIEW), response_timeout=timedelta(hours=1))
    event = {"chosen_options": task.defaults, "params_input": {}, "responded_at": AT, "responded_by_user": None}
    found = json.loads(task.execute_complete({}, event))
    assert not found["is_accepted"], "although Airflow records the option that the form highlights"
    assert found["reviewed_by"] is None


def test_a_response_becomes_a_verdict_with_the_values_of_the_form():
    assert responded("Accept", mood="bad", tags='["b"]') == {
        "review_uri": "review.jsonl",
        "key": '{"id": 1}',
        "is_accepted": True,
        "values": {"mood": "bad", "tags": ["b"]},
        "reviewed_by": "ada",
        "reviewed_at": "2026-11-25T10:00:00+00:00",
    }
    assert responded("Accept")["values"] == {"mood": "good", "tags": ["a"]}, "an untouched form sends nothing"
    assert not responded("Leave out", mood="bad")["is_accepted"]


def test_the_verdict_is_text_in_which_airflow_and_postgresql_find_nothing_of_their_own():
    task = ReviewAnswerOperator(task_id="review", review=json.dumps(REVIEW))
    tags = {"__classname__": "builtins.list", "nul": "\0", "half": "\ud83d"}
    event = {"chosen_options": ["Accept"], "params_input": {"mood": "bad", "tags": json.dumps(tags)}}
    event |= {"responded_at": AT, "responded_by_user": {"id": "1", "name": "ada"}}
    found = task.execute_complete({}, event)
    assert found.isascii()
    assert "\0" not in found
    assert json.loads(found)["values"] == {"mood": "bad", "tags": tags}


@pytest.mark.parametrize("kwargs", [{}, {"response_timeout": timedelta(hours=1)}])
def test_accept_comes_first_and_is_the_one_option_that_the_form_highlights(kwargs):
    task = ReviewAnswerOperator(task_id="review", review=json.dumps(REVIEW), **kwargs)
    assert task.options == ["Accept", "Leave out"]
    assert task.defaults == ["Accept"]


def test_the_subject_and_the_map_index_name_the_row_and_its_answer():
    review = {**REVIEW, "key": '{"id": "T103-00109", "day": 7}'}
    task = ReviewAnswerOperator(task_id="review", review=json.dumps(review))
    assert task.subject == 'T103-00109, 7 · mood = good, tags = [ "a" ]'
    with DAG("named", schedule=None):
        mapped = review_answers(ReviewAnswerOperator(task_id="one", review=json.dumps(review)).output)
        own = review_answers(mapped.output, task_id="own", map_index_template="mine")
    assert mapped.partial_kwargs["map_index_template"] == "{{ task.subject }}"
    assert own.partial_kwargs["map_index_template"] == "mine"


@pytest.mark.fuzz
@given(st.text(MARKUP + "\u202e", max_size=300), st.text(MARKUP, max_size=300))
def test_a_subject_is_one_short_line_whatever_is_in_the_row_and_its_answer(key, value):
    form = {"mood": {**FORM["mood"], "value": value}}
    found = subject({"key": json.dumps({"id": key}), "form": form})
    assert len(found) <= MAX_SUBJECT
    assert found.isprintable()
    assert " · mood = " in found, "a long key leaves room for the answer"


def test_a_field_that_must_hold_json_and_does_not_is_named_and_asked_for_again():
    with pytest.raises(
        ValueError, match=r"The field 'tags' must hold JSON; got 'a, b' .* answer the review again"
    ):
        responded("Accept", tags="a, b")
