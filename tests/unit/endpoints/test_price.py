"""The price of an endpoint in messages about what is still billing."""

from __future__ import annotations

import pytest
from google.cloud.run_v2 import ListServicesResponse, Service

from airflow_provider_llmbeam.endpoints.platform import EndpointPlan
from airflow_provider_llmbeam.endpoints.platforms.cloud_run import CloudRunPlatform, service
from airflow_provider_llmbeam.endpoints.resource import still_billing
from airflow_provider_llmbeam.spec.endpoint import parse_endpoint
from airflow_provider_llmbeam.spec.endpoint.identity import KEY_LABEL


class Hook:
    """A hook that lists one service."""

    def __init__(self, found):
        self.found = found

    def list_services(self):
        return ListServicesResponse(services=[self.found]).services


@pytest.mark.parametrize(("min_instances", "price"), [(0, "$1.42"), (1, "$1.42"), (4, "$5.68")])
def test_the_price_of_a_cloud_run_service_is_that_of_the_instances_that_always_run_and_at_least_of_one(
    min_instances, price
):
    spec = parse_endpoint(
        {
            "type": "cloud_run",
            "model": "Qwen/Qwen3-4B",
            "locations": ["us-central1"],
            "min_instances": min_instances,
            "max_instances": 4,
        }
    )
    made = Service(service(EndpointPlan(spec, "k", {KEY_LABEL: "k"}), spec))
    made.name = "projects/p/locations/us-central1/services/llmbeam-k"
    resources, _ = CloudRunPlatform(Hook(made)).find("k")
    assert f"is still billing, about {price} an hour" in still_billing(resources)
