"""Where reported cost and bill differ: each cause is planted, found and named."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_llmbeam.pipeline.measure.reconcile.billing_export import BilledUsage, Sku, read_sku
from airflow_provider_llmbeam.pipeline.measure.reconcile.differences import ReportedRun, reconcile
from airflow_provider_llmbeam.spec.model.price import Price

SINCE = datetime(2026, 11, 26, 12, tzinfo=UTC)
UNTIL = SINCE + timedelta(days=1)
MIDNIGHT = datetime(2026, 11, 27, tzinfo=UTC)
LABELS = (("llmbeam-dag", "shop"), ("llmbeam-task", "moods"))
PRICE = Price(
    input_usd_per_million_tokens=0.3,
    output_usd_per_million_tokens=2.5,
    cached_input_usd_per_million_tokens=0.03,
)
PRICES = {"gemini-3.5-flash-lite": PRICE, "gemini-9-preview": PRICE}
INPUT, CACHED, OUTPUT = (
    "Gemini 3.5 Flash Lite Global Text Input - Predictions",
    "Gemini 3.5 Flash Lite Global Text Input Caching",
    "Gemini 3.5 Flash Lite Global Text Output - Predictions",
)
RUN = ReportedRun(
    name="shop-moods",
    labels=LABELS,
    project="shop",
    model="gemini-3.5-flash-lite",
    began_at=MIDNIGHT,
    finished_at=MIDNIGHT + timedelta(hours=4),
    cost_usd=PRICE.cost_usd(10_000_000, 1_000_000, 4_000_000),
    tokens={"input": 6_000_000, "cached": 4_000_000, "output": 1_000_000},
)
BILL = (
    BilledUsage(day=MIDNIGHT.date(), sku=INPUT, labels=LABELS, amount=6_000_000, cost_usd=1.8),
    BilledUsage(day=MIDNIGHT.date(), sku=CACHED, labels=LABELS, amount=4_000_000, cost_usd=0.12),
    BilledUsage(day=MIDNIGHT.date(), sku=OUTPUT, labels=LABELS, amount=1_000_000, cost_usd=2.5),
)


def compare(billed, runs=(RUN,), now=UNTIL, **options):
    return reconcile(runs, billed, since=SINCE, until=UNTIL, now=now, price_at=lambda model, at: PRICE, **options)


def causes(found):
    return {each.cause: pytest.approx(each.usd) for line in found.lines for each in line.differences}


def because(found):
    return "; ".join(each.because for line in found.lines for each in line.differences)


def test_a_bill_that_agrees_has_no_difference():
    found = compare(BILL)
    assert (causes(found), found.difference_ratio, found.agrees) == ({}, 0.0, True)
    assert "llmbeam-dag=shop llmbeam-task=moods\n  reported $4.42, billed $4.42: +$0" in str(found)


@pytest.mark.parametrize("labels", [(), (("team", "search"),)], ids=["none", "of another team"])
def test_calls_of_another_job_are_found_by_their_labels(labels):
    found = compare((*BILL, replace(BILL[0], labels=labels, cost_usd=3.0)))
    assert causes(found) == {"other-calls": 3.0}
    assert not found.agrees
    assert compare((*BILL, replace(BILL[0], labels=labels)), ignored=["other-calls"]).agrees


def test_cached_tokens_that_are_billed_in_full_are_named_with_their_number():
    found = compare((replace(BILL[0], amount=10_000_000, cost_usd=3.0), BILL[2]))
    assert causes(found) == {"cached-tokens": 4 * (0.3 - 0.03)}
    assert because(found) == "0 cached tokens are billed, 4,000,000 were counted"


def test_prepaid_tokens_are_on_no_bill_and_explain_no_difference():
    """Of ten million input tokens eight are prepaid, four of them cached; the bill has the others."""
    run = RUN.model_copy(update={"prepaid_rows": 900, "cost_usd": 0.6 + 2.5})
    bill = (replace(BILL[0], amount=2_000_000, cost_usd=0.6), BILL[2])
    assert (causes(compare(bill, [run])), compare(bill, [run]).difference_ratio) == ({}, 0.0)
    more = replace(BILL[1], amount=5_000_000, cost_usd=0.15)
    found = compare((*bill, more), [run])
    assert causes(found) == {"unexplained": 0.15}
    assert because(found) == "tokens cannot be compared: 900 rows were prepaid, and have no row in the export"
    entirely = run.model_copy(update={"cost_usd": 0.0})
    assert compare((), [entirely]).agrees


def test_tokens_that_the_bill_calls_cached_and_the_report_did_not_are_named():
    more = replace(BILL[1], amount=9_000_000, cost_usd=0.27)
    found = compare((replace(BILL[0], amount=1_000_000, cost_usd=0.3), more, BILL[2]))
    assert causes(found) == {"cached-tokens": -5 * (0.3 - 0.03)}


def test_another_price_of_the_same_tokens_is_a_price_change():
    found = compare((BILL[0], BILL[1], replace(BILL[2], cost_usd=3.0)))
    assert causes(found) == {"price-change": 0.5}
    assert because(found) == (
        "$3.00 a million output tokens of gemini-3.5-flash-lite, standard; counted $2.50 (+20.0%)"
    )


def test_the_price_that_the_user_gave_is_the_one_that_was_counted():
    given = PRICE.model_copy(update={"output_usd_per_million_tokens": 2.0})
    run = RUN.model_copy(update={"price": given, "cost_usd": given.cost_usd(10_000_000, 1_000_000, 4_000_000)})
    assert causes(compare(BILL, [run])) == {"price-change": 0.5}


@pytest.mark.parametrize(
    ("days", "advice"), [(0, "its rows may still arrive: try again in a day"), (3, "is the export complete?")]
)
def test_a_day_without_rows_is_missing_and_late_at_first(days, advice):
    both = RUN.model_copy(update={"began_at": MIDNIGHT - timedelta(hours=4)})
    half = [replace(each, amount=each.amount / 2, cost_usd=each.cost_usd / 2) for each in BILL]
    found = compare(half, [both], now=UNTIL + timedelta(days=days))
    assert causes(found) == {"missing-day": -2.21}
    assert because(found) == f"2026-11-26 has no row with these labels; {advice}"


def test_tokens_that_no_report_has_are_unexplained_and_counted():
    found = compare((BILL[0], BILL[1], replace(BILL[2], amount=2_000_000, cost_usd=5.0)))
    assert causes(found) == {"unexplained": 2.5}
    assert because(found) == "billed 2,000,000 output tokens where 1,000,000 were reported"


def test_a_sku_without_the_end_of_a_models_name_has_the_price_of_the_model():
    preview = RUN.model_copy(update={"model": "gemini-9-preview"})
    bill = [replace(each, sku=each.sku.replace("Gemini 3.5 Flash Lite", "Gemini 9")) for each in BILL]
    assert causes(compare([*bill[:2], replace(bill[2], cost_usd=3.0)], [preview])) == {"price-change": 0.5}


def test_tokens_of_another_model_have_its_price_and_one_without_a_price_is_unexplained():
    other = replace(BILL[2], sku="Gemini 9 Flash Text Output - Predictions")
    assert causes(compare([*BILL, other])) == {"unexplained": 2.5}


def test_the_cost_of_a_run_without_a_price_is_unexplained():
    found = compare(BILL, [RUN.model_copy(update={"cost_usd": None})])
    assert causes(found) == {"unexplained": 4.42}
    assert because(found) == "the price of a run was not known"


def test_each_of_several_causes_has_its_amount_and_their_sum_is_the_difference():
    planted = (
        replace(BILL[0], amount=10_000_000, cost_usd=3.6),
        BILL[2],
        replace(BILL[2], labels=(), cost_usd=1.0),
        replace(BILL[0], sku="Gemini 3.5 Flash Lite Text Input Caching Storage", amount=1, cost_usd=0.25),
    )
    found = compare(planted)
    assert causes(found) == {
        "other-calls": 1.0,
        "price-change": 0.6,
        "cached-tokens": 1.08,
        "unexplained": 0.25,
    }
    assert sum(each.usd for line in found.lines for each in line.differences) == pytest.approx(
        sum(each.cost_usd for each in planted) - RUN.cost_usd
    )


def test_differences_of_opposite_signs_do_not_cancel():
    found = compare((BILL[0], BILL[1], replace(BILL[2], cost_usd=1.5), replace(BILL[0], labels=(), cost_usd=1.0)))
    assert sum(line.billed_usd for line in found.lines) == pytest.approx(RUN.cost_usd)
    assert found.difference_ratio == pytest.approx(2.0 / RUN.cost_usd)


def test_a_run_counts_by_the_part_of_it_that_lies_in_the_time():
    later = RUN.model_copy(
        update={"began_at": UNTIL - timedelta(hours=1), "finished_at": UNTIL + timedelta(hours=3)}
    )
    quarter = [replace(each, amount=each.amount / 4, cost_usd=each.cost_usd / 4) for each in BILL]
    assert causes(compare(quarter, [later])) == {}


def test_a_row_with_more_labels_than_the_report_belongs_to_it_and_credits_are_not_compared():
    more = (*LABELS, ("zone", "a"))
    found = compare([replace(each, labels=more, credits_usd=-1.0) for each in BILL])
    assert causes(found) == {}
    assert "credits        -$3.00, not compared" in str(found)


def test_a_run_whose_requests_carry_no_labels_is_named_and_not_compared():
    found = compare(BILL, [RUN, RUN.model_copy(update={"name": "by-key", "labels": (), "project": None})])
    assert found.not_compared == ["Not compared: by-key, $4.42. Its requests carry no labels."]
    assert found.agrees


@pytest.mark.parametrize(
    ("description", "sku"),
    [
        ("Gemini 2.5 Flash GA Text Input - Predictions", Sku("gemini-2.5-flash", "input", "standard")),
        ("Gemini 2.5 Flash GA Thinking Text Output - Predictions", Sku("gemini-2.5-flash", "output", "standard")),
        (
            "Gemini 2.5 Flash GA Text Output (Thinking On) - Predictions",
            Sku("gemini-2.5-flash", "output", "standard"),
        ),
        (
            "Gemini 2.5 Flash Text Output (Thinking On) - Batch Predictions",
            Sku("gemini-2.5-flash", "output", "batch"),
        ),
        ("Gemini 2.5 Flash GA Input Text Caching", Sku("gemini-2.5-flash", "cached", "standard")),
        ("Gemini 2.5 Pro Input Text Caching (Long)", Sku("gemini-2.5-pro", "cached", None)),
        ("Gemini 3 Flash Text Input Flex - Predictions", Sku("gemini-3-flash", "input", "flex")),
        ("Gemini 3 Flash Image Input Caching Priority", Sku("gemini-3-flash", "cached", "priority")),
        ("Gemini 3.1 Flash Lite Global Audio Input - Predictions", Sku("gemini-3.1-flash-lite", "input", None)),
        ("Gemini 3.8 Flash Text Input Caching Storage", None),
        ("LLM Grounding with Google Search tool - Predictions", None),
        ("Vertex AI: Provisioned Throughput 1 month", None),
    ],
)
def test_a_description_that_google_uses_is_read(description, sku):
    assert read_sku(description) == sku
