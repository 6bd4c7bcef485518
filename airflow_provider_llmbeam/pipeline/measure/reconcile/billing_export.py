"""The rows of a Cloud Billing export for the calls of models, read by one query.

Schema of the table:
docs.cloud.google.com/billing/docs/how-to/export-data-bigquery-tables/standard-usage (2026-11).
The detailed export, `gcp_billing_export_resource_v1_…`, has the same columns, and more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal

from google.cloud import bigquery

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.bigquery_jobs import before_the_model, connect
from airflow_provider_llmbeam.spec.model.price import Price
from airflow_provider_llmbeam.spec.model.tier import ServiceTier

#: Labels of a request, sorted.
Labels = tuple[tuple[str, str], ...]
#: What an account pays for tokens of a kind is a SKU.
Kind = Literal["input", "cached", "output"]

#: Id of the service Vertex AI in Cloud Billing, now Gemini Enterprise Agent Platform.
#: Source: cloudbilling.googleapis.com/v1/services (2026-09)
_SERVICE = "C7E2-9256-1C43"
#: `cost` is before credits, in the currency of the account; a conversion rate is units of it for a US dollar.
#: Taxes, adjustments and rounding are rows of other types. Groups are named by position, as `sku` and `labels` are
#: columns of the table, too, of types that BigQuery does not group by.
_QUERY = """
SELECT
  DATE(usage_start_time) AS day,
  sku.description AS description,
  TO_JSON_STRING(labels) AS label_list,
  SUM(usage.amount) AS amount,
  SUM(cost / currency_conversion_rate) AS cost_usd,
  SUM((SELECT SUM(credit.amount) FROM UNNEST(credits) AS credit) / currency_conversion_rate) AS credits_usd
FROM `{table}`
WHERE usage_start_time >= @since AND usage_start_time < @until
  AND service.id = @service AND project.id IN UNNEST(@projects) AND cost_type = 'regular'
GROUP BY 1, 2, 3
"""
_TABLE = re.compile(r"[\w-]+(\.[\w-]+){2}")

#: Words that follow the name of the model in a description of tokens, e.g. "Gemini 2.5 Flash GA Text Input -
#: Predictions". Source: cloud.google.com/skus/sku-groups/gen-ai-v2, …/vertex-api-gemini-2-x-skus (2026-09)
_AFTER_MODEL = frozenset(
    {"ga", "global", "regional", "text", "image", "audio", "video", "thinking", "input", "output"}
)
#: Those of tokens whose price is not that of text: of audio, of long prompts, and of tiers without a known price.
_OTHER_PRICE = frozenset({"audio", "long", "offpeak"})
_TIERS: tuple[ServiceTier, ...] = ("batch", "flex", "priority")


@dataclass(frozen=True, slots=True)
class Sku:
    """What a row of the export is for.

    Attributes:
        model: Name of the model, as far as the description has it.
        kind: Kind of the tokens.
        tier: Tier at which they were served; `None` if the price list has no price for them.
    """

    model: str
    kind: Kind
    tier: ServiceTier | None

    def usd_per_token(self, price: Price | None) -> float | None:
        """Returns what a token costs by a price of the model; `None` if it is not known."""
        ratio = None if price is None or self.tier is None else price.ratio_at(self.tier)
        if price is None or ratio is None:
            return None
        tokens = {"input": (1, 0, 0), "cached": (1, 0, 1), "output": (0, 1, 0)}[self.kind]
        return price.cost_usd(*tokens, tier_ratio=ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledUsage:
    """What one SKU has cost on one day, for the calls with the same labels.

    Attributes:
        day: Day of the usage, in UTC.
        sku: Description of the SKU.
        labels: Labels of the calls.
        amount: Amount of the usage: a number of tokens, if the SKU is for tokens. Exports that users quote say so
            (2026-08), with the unit `requests`; Google documents it nowhere.
        cost_usd: Cost before credits, in US dollars.
        credits_usd: Credits, in US dollars, at most 0.
    """

    day: date
    sku: str
    labels: Labels
    amount: float
    cost_usd: float
    credits_usd: float = 0.0


def read_sku(description: str) -> Sku | None:
    """Reads what a SKU is for; `None` if it is for something else than tokens, e.g. the storage of a cache."""
    words = re.findall(r"[a-z0-9.]+", description.lower())
    length = next((index for index, word in enumerate(words) if word in _AFTER_MODEL), 0)
    model, rest = "-".join(words[:length]), set(words[length:])
    kind: Kind | None = None
    if "caching" in rest:
        kind = "cached"
    elif len(directions := rest & {"input", "output"}) == 1:
        kind = "input" if "input" in directions else "output"
    if not model or kind is None or "storage" in rest:
        return None
    tier: ServiceTier = next((tier for tier in _TIERS if tier in rest), "standard")
    return Sku(model, kind, None if rest & _OTHER_PRICE else tier)


def read_export(table: str, projects: Collection[str], since: datetime, until: datetime) -> list[BilledUsage]:
    """Reads what calls of models have cost, by day, SKU and labels.

    Args:
        table: The export, as `project.dataset.table`; its project runs the query.
        projects: Projects that the calls were billed to.
        since: Begin of the usage.
        until: Its end.

    Raises:
        JobSpecError: There is no such table, it is no export, or it may not be read.
        JobFailedError: BigQuery failed, perhaps temporarily.
    """
    if not _TABLE.fullmatch(table):
        raise JobSpecError(f"`--export` must be a table, `project.dataset.table`; got {table!r}.")
    parameters = [
        bigquery.ScalarQueryParameter("since", "TIMESTAMP", since),
        bigquery.ScalarQueryParameter("until", "TIMESTAMP", until),
        bigquery.ScalarQueryParameter("service", "STRING", _SERVICE),
        bigquery.ArrayQueryParameter("projects", "STRING", sorted(projects)),
    ]
    config = bigquery.QueryJobConfig(query_parameters=parameters)
    with before_the_model(f"`--export` {table!r}"), connect(table.partition(".")[0]) as client:
        rows = client.query_and_wait(_QUERY.format(table=table), job_config=config)
        return [
            BilledUsage(
                day=row["day"],
                sku=row["description"],
                labels=tuple(sorted((label["key"], label["value"]) for label in json.loads(row["label_list"]))),
                amount=row["amount"] or 0.0,
                cost_usd=row["cost_usd"] or 0.0,
                credits_usd=row["credits_usd"] or 0.0,
            )
            for row in rows
        ]
