"""Cloud Quotas: the limits of a service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.hooks.google.base import GoogleHook
from airflow_provider_llmbeam.hooks.google.errors import CloudRequest
from airflow_provider_llmbeam.hooks.google.rest import GoogleRest

HOST = "https://cloudquotas.googleapis.com"
#: Value of a quota without a limit.
UNLIMITED = -1.0
_PAGE_SIZE = 1_000


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """One limit and its scope.

    Attributes:
        metric: Metric that is limited.
        value: Limit; `UNLIMITED` for none.
        dimensions: Scope, e.g. `{"region": "us-central1", "base_model": "gemma-3"}`; empty for everything.
        locations: Locations to which the limit applies.
        interval: `minute` or `day` for a rate; empty for an allocation, such as accelerators.
    """

    metric: str
    value: float
    dimensions: Mapping[str, str]
    locations: tuple[str, ...] = ()
    interval: str = ""

    def holds(self, location: str, base_model: str | None = None) -> bool:
        """Whether the limit applies to a location, and to a model if one is given."""
        region = self.dimensions.get("region") or self.dimensions.get("location")
        is_there = region == location if region else not self.locations or location in self.locations
        return is_there and (base_model is None or self.dimensions.get("base_model") == base_model)

    @property
    def narrowness(self) -> int:
        """Number of dimensions; a limit with more dimensions overrides one with fewer."""
        return len(self.dimensions)


def read_limits(hook: GoogleHook, service: str, rest: GoogleRest | None = None) -> list[QuotaLimit]:
    """Reads all limits of a service.

    Args:
        hook: Hook with the credentials and the project.
        service: API, e.g. `aiplatform.googleapis.com`.
        rest: Client; made from `hook` if omitted.

    Raises:
        CloudError: See `google_cloud.errors`.
    """
    asking, project = rest or GoogleRest(hook), hook.project
    url = f"{HOST}/v1/projects/{project}/locations/global/services/{service}/quotaInfos"
    request = CloudRequest(
        action=f"show the quotas of {service!r}",
        project=project,
        service="cloudquotas.googleapis.com",
        role="roles/cloudquotas.viewer",
        missing=f"service {service!r}",
    )
    return [
        _limit(info, each)
        for reply in asking.pages(url, {"pageSize": _PAGE_SIZE}, request)
        for info in reply.get("quotaInfos", ())
        for each in info.get("dimensionsInfos", ())
    ]


def _limit(info: Mapping[str, Any], data: Mapping[str, Any]) -> QuotaLimit:
    return QuotaLimit(
        metric=info["metric"],
        # JSON of Google's APIs omits a number that is 0.
        value=float(data.get("details", {}).get("value", 0)),
        dimensions=data.get("dimensions", {}),
        locations=tuple(data.get("applicableLocations", ())),
        interval=info.get("refreshInterval", ""),
    )
