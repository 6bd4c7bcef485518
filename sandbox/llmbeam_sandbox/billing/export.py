"""The table that Cloud Billing exports to BigQuery: its schema, and the rows for a charge of tokens. No HTTP.

Source of the schema:
docs.cloud.google.com/billing/docs/how-to/export-data-bigquery-tables/standard-usage (2026-11).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from llmbeam_sandbox.billing.tokens import TokenCharge, TokenPrice

SERVICE = {"id": "C7E2-9256-1C43", "description": "Vertex AI"}
"""The service in Cloud Billing. Source: cloudbilling.googleapis.com/v1/services (2026-09)."""
_TIER_WORD = {"standard": "", "flex": " Flex", "priority": " Priority", "batch": " Batch"}


def _record(name: str, *texts: str, mode: str = "NULLABLE", **others: str) -> dict[str, Any]:
    kinds = dict.fromkeys(texts, "STRING") | others
    fields = [{"name": field, "type": kind} for field, kind in kinds.items()]
    return {"name": name, "type": "RECORD", "mode": mode, "fields": fields}


SCHEMA: list[dict[str, Any]] = [
    {"name": "billing_account_id", "type": "STRING"},
    _record("service", "id", "description"),
    _record("sku", "id", "description"),
    {"name": "usage_start_time", "type": "TIMESTAMP"},
    {"name": "usage_end_time", "type": "TIMESTAMP"},
    _record("project", "id", "number", "name"),
    _record("labels", "key", "value", mode="REPEATED"),
    _record("system_labels", "key", "value", mode="REPEATED"),
    _record("location", "location", "country", "region", "zone"),
    {"name": "export_time", "type": "TIMESTAMP"},
    {"name": "cost", "type": "FLOAT"},
    {"name": "currency", "type": "STRING"},
    {"name": "currency_conversion_rate", "type": "FLOAT"},
    _record("usage", "unit", "pricing_unit", amount="FLOAT", amount_in_pricing_units="FLOAT"),
    _record("credits", "name", "full_name", "id", "type", mode="REPEATED", amount="FLOAT"),
    _record("invoice", "month"),
    {"name": "cost_type", "type": "STRING"},
]
"""The columns of the standard usage cost export that are emulated."""


def export_rows(
    charge: TokenCharge,
    price: TokenPrice,
    *,
    project: str,
    hour: datetime,
    labels: Mapping[str, str] | None = None,
    currency: str = "USD",
    conversion_rate: float = 1.0,
) -> Iterator[dict[str, Any]]:
    """Yields the rows of one hour for a charge: one for each kind of its tokens, and none for what is prepaid.

    Args:
        charge: The charge, without audio.
        price: Price of its model.
        project: Project that is billed.
        hour: Begin of the hour in which the tokens were used.
        labels: Labels of the requests.
        currency: Currency of the account.
        conversion_rate: Units of it for a US dollar.
    """
    if charge.tier not in _TIER_WORD:
        return
    model = charge.model.replace("-", " ").title()
    word = _TIER_WORD[charge.tier]
    kinds = {
        f"{model} Text Input{word} - Predictions": TokenCharge(
            model=charge.model, tier=charge.tier, input_tokens=charge.input_tokens - charge.cached_tokens
        ),
        f"{model} Text Input Caching{word}": TokenCharge(
            model=charge.model,
            tier=charge.tier,
            input_tokens=charge.cached_tokens,
            cached_tokens=charge.cached_tokens,
        ),
        f"{model} Text Output{word} - Predictions": TokenCharge(
            model=charge.model, tier=charge.tier, output_tokens=charge.output_tokens
        ),
    }
    for description, part in kinds.items():
        if amount := part.input_tokens + part.output_tokens:
            yield {
                "service": SERVICE,
                "sku": {"description": description},
                "usage_start_time": hour.isoformat(),
                "usage_end_time": (hour + timedelta(hours=1)).isoformat(),
                "project": {"id": project},
                "labels": [{"key": key, "value": value} for key, value in (labels or {}).items()],
                "cost": part.nano_usd(price) / 1e9 * conversion_rate,
                "currency": currency,
                "currency_conversion_rate": conversion_rate,
                "usage": {
                    "amount": amount,
                    "unit": "requests",
                    "amount_in_pricing_units": amount,
                    "pricing_unit": "count",
                },
                "credits": [],
                "invoice": {"month": f"{hour:%Y%m}"},
                "cost_type": "regular",
            }
