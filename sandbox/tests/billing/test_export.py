from __future__ import annotations

from datetime import UTC, datetime

import pytest
from llmbeam_sandbox import TokenPrice
from llmbeam_sandbox.billing.export import SCHEMA, export_rows
from llmbeam_sandbox.billing.tokens import TIERS, TokenCharge

HOUR = datetime(2026, 11, 27, 1, tzinfo=UTC)
RATE = 3.6


@pytest.mark.parametrize("tier", [tier for tier in TIERS if tier != "provisioned"])
def test_the_rows_of_a_charge_have_its_tokens_its_cost_and_the_columns_of_the_export(tier) -> None:
    charge = TokenCharge(
        model="gemini-3.5-flash-lite", tier=tier, input_tokens=1000, cached_tokens=400, output_tokens=50
    )
    price = TokenPrice()
    rows = [*export_rows(charge, price, project="p", hour=HOUR, labels={"team": "data"}, conversion_rate=RATE)]
    assert [row["usage"]["amount"] for row in rows] == [600, 400, 50]
    assert sum(row["cost"] for row in rows) / RATE == pytest.approx(charge.nano_usd(price) / 1e9)
    columns = {field["name"]: {inner["name"] for inner in field.get("fields", [])} for field in SCHEMA}
    for row in rows:
        assert row.keys() <= columns.keys()
        assert all(row[name].keys() <= columns[name] for name in ("service", "sku", "project", "usage", "invoice"))
        assert row["labels"] == [{"key": "team", "value": "data"}]


def test_what_is_prepaid_has_no_row() -> None:
    charge = TokenCharge(model="gemini-3.5-flash-lite", tier="provisioned", input_tokens=10)
    assert not [*export_rows(charge, TokenPrice(), project="p", hour=HOUR)]


def test_kinds_without_tokens_have_no_row() -> None:
    charge = TokenCharge(model="gemini-3.5-flash-lite", tier="standard", input_tokens=10)
    (row,) = export_rows(charge, TokenPrice(), project="p", hour=HOUR)
    assert row["sku"]["description"] == "Gemini 3.5 Flash Lite Text Input - Predictions"
