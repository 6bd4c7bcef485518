"""Whether a cached head pays."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from airflow_provider_llmbeam.engine.prefix.saving import min_tokens, pays, saved_usd, storage_usd
from airflow_provider_llmbeam.spec.model.list_price import list_price

AT = datetime(2026, 11, 24, tzinfo=UTC)
FLASH = "gemini-2.5-flash"
PRICE = list_price("google", FLASH, AT)


def test_two_thousand_requests_with_a_head_of_6000_tokens_save_most_of_its_cost():
    saved = saved_usd(FLASH, PRICE, tokens=6_000, requests=2_000, seconds=3600, at=AT)
    # 12 million tokens at $0.30 - $0.03, less the head once ($0.0018) and its storage ($0.006).
    assert saved == pytest.approx(12 * 0.27 - 0.0018 - 0.006)


@pytest.mark.parametrize(("requests", "expected"), [(4, False), (5, True)])
def test_a_cache_pays_from_five_requests_in_3600_seconds(requests, expected):
    assert pays(FLASH, PRICE, tokens=6_000, requests=requests, seconds=3600, at=AT) is expected


def test_a_head_below_the_minimum_of_the_model_is_not_cached():
    assert not pays(FLASH, PRICE, tokens=2_047, requests=10_000, seconds=60, at=AT)
    assert pays(FLASH, PRICE, tokens=2_048, requests=10_000, seconds=60, at=AT)


@pytest.mark.parametrize(
    ("model", "tokens"),
    [("gemini-2.5-pro", 2_048), ("models/gemini-2.5-flash", 2_048), ("gemini-3.8-flash", 4_096)],
)
def test_the_minimum_depends_on_the_generation_of_the_model(model, tokens):
    assert min_tokens(model) == tokens


@pytest.mark.parametrize(
    ("model", "at", "usd"),
    [
        (FLASH, AT, 1.0),
        ("gemini-2.5-pro", AT, 4.5),
        ("gemini-3.8-flash", AT, 0.5),
        ("gemini-3.8-flash", datetime(2027, 1, 1, tzinfo=UTC), 1.0),
        ("projects/p/locations/l/endpoints/1", AT, None),
        ("gemini-next", AT, None),
    ],
)
def test_storage_is_billed_by_tokens_and_time(model, at, usd):
    assert storage_usd(model, 1_000_000, 3600, at) == usd


def test_without_a_price_no_cache_is_said_to_pay():
    assert not pays(FLASH, None, tokens=6_000, requests=2_000, seconds=60, at=AT)
