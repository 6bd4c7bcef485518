"""The part of the report on the guard model, and the categories of failed rows."""

from __future__ import annotations

from collections import Counter

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.pipeline.elements import FailedRow
from airflow_provider_llmbeam.pipeline.reporting.moderation import moderation_of, unsent_prompts
from airflow_provider_llmbeam.pipeline.reporting.parts import categories_of
from airflow_provider_llmbeam.pipeline.transforms.account import TallyRows
from airflow_provider_llmbeam.spec import Moderation

GUARD = Moderation.parse({"model": {"type": "openai", "name": "guard", "base_url": "http://127.0.0.1:9/v1"}})
NUMBERS = Counter(
    {
        ("input", "requests", "sent"): 5,
        ("output", "requests", "sent"): 3,
        ("input", "requests", "texts"): 4,
        ("input", "tokens", "input"): 50,
        ("output", "cost", "nano_usd"): 2_500_000,
        ("input", "rows", "safe"): 2,
        ("input", "rows", "unsafe"): 1,
        ("input", "rows", "unjudged"): 1,
        ("input", "actions", "fail"): 1,
        ("input", "categories", "S1"): 1,
    }
)


def test_requests_and_cost_of_both_sides_are_summed_and_verdicts_are_by_side():
    found = moderation_of(GUARD, NUMBERS)
    assert (found.model, found.requests_sent, found.input_tokens, found.cost_usd) == (
        "openai:guard",
        8,
        50,
        0.0025,
    )
    assert (found.input.texts, found.input.safe, found.input.unsafe, found.input.unjudged) == (4, 2, 1, 1)
    assert (found.input.actions, found.input.categories) == ({"fail": 1}, {"S1": 1})
    assert (found.output.texts, found.output.categories) == (0, {})
    assert unsent_prompts(NUMBERS) == 2


def test_the_cost_of_a_guard_without_a_price_is_not_known():
    assert moderation_of(GUARD, NUMBERS + Counter({("input", "cost", "unpriced"): 1})).cost_usd is None


def test_a_job_without_a_guard_has_no_such_part():
    assert moderation_of(None, Counter()) is None


def test_a_row_of_several_categories_counts_in_each():
    step = TallyRows((128,))
    for kind, category in (("moderated", "S1,S2"), ("moderated", "S1"), ("blocked", "SAFETY"), ("timeout", None)):
        step.process(FailedRow({"id": 1}, Failure(kind=kind, message="no", category=category)))
    assert categories_of(step.tally.categories) == {"blocked": {"SAFETY": 1}, "moderated": {"S1": 2, "S2": 1}}
