"""Link to the quotas of a service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from airflow_provider_llmbeam.links.job import CONSOLE
from airflow_provider_llmbeam.links.stored import XComLink


class QuotaLink(XComLink):
    """Link to the quotas of a service in the Google Cloud console."""

    name = "Quotas"
    xcom_key = "llmbeam_quota_link"


def quota_url(question: Mapping[str, Any]) -> str | None:
    """Returns the page of the quotas that a sensor polls; `None` if no Google Cloud project is named.

    Args:
        question: A `spec.QuotaQuestion` as plain data.
    """
    target = question.get("endpoint") or question.get("model")
    if not isinstance(target, Mapping) or not target.get("project"):
        return None
    service = "run" if target.get("type") == "cloud_run" else "aiplatform"
    query = urlencode({"project": target["project"], "service": f"{service}.googleapis.com"})
    return f"{CONSOLE}/iam-admin/quotas?{query}"
