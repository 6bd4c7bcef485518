"""One number from the log-probabilities of tokens."""

from __future__ import annotations

import pytest

from airflow_provider_llmbeam.engine.logprobs import score_logprob

SCHEMA = {"type": "object", "properties": {"reason": {"type": "string"}, "label": {"enum": ["good", "bad"]}}}
TOKENS = (
    ('{"', -0.1),
    ("reason", -0.2),
    ('": "it is "', -4.0),
    (', "label', -0.3),
    ('": "', -0.01),
    ("go", -0.5),
    ("od", -0.25),
    ('"}', -0.02),
)


def test_the_minimum_is_that_of_the_least_probable_token():
    assert score_logprob(TOKENS, "minimum", SCHEMA) == -4.0


def test_the_label_is_the_sum_over_its_own_tokens():
    assert score_logprob(TOKENS, "label", SCHEMA) == -0.75


def test_a_token_that_has_a_part_of_the_label_counts():
    assert score_logprob((('{"label": "go', -0.5), ('od"}', -0.25)), "label", SCHEMA) == -0.75


def test_a_label_without_quotation_marks_is_found():
    schema = {"properties": {"is_late": {"type": "boolean"}}}
    assert score_logprob((('{"is_late":', -0.1), (" true", -0.5), ("}", -0.2)), "label", schema) == -0.5


def test_an_answer_without_fields_is_the_label():
    assert score_logprob((("go", -0.5), ("od", -0.25)), "label", None) == -0.75


@pytest.mark.parametrize("tokens", [(), (("good", -0.1),)])
def test_no_number_is_invented(tokens):
    assert score_logprob(tokens, "label", SCHEMA) is None
