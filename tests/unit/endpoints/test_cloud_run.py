"""The state of a service on Cloud Run as the types of its client describe it."""

from __future__ import annotations

import pytest
from google.cloud import run_v2

from airflow_provider_llmbeam.endpoints.platform import EndpointPlan
from airflow_provider_llmbeam.endpoints.platforms.cloud_run import CloudRunPlatform
from airflow_provider_llmbeam.spec.endpoint import parse_endpoint
from airflow_provider_llmbeam.spec.endpoint.identity import endpoint_labels

FAILED = run_v2.Condition.State.CONDITION_FAILED
REASONS = run_v2.Condition.CommonReason
NOT_READY = "Revision 'gemma-00001-abc' is not ready and cannot serve traffic."
#: Source: github.com/sourcegraph/sourcegraph-public-snapshot/pull/59045
SECRET = f"{NOT_READY} Permission denied on secret: projects/p/secrets/hf/versions/1 for service account x."
#: Kind of the fault by the reason; a reason that is not named is `failed`, which is tried again.
KINDS = {
    "CONTAINER_PERMISSION_DENIED": "denied",
    "CONTAINER_IMAGE_UNAUTHORIZED": "denied",
    "ENCRYPTION_KEY_PERMISSION_DENIED": "denied",
    "SECRETS_ACCESS_CHECK_FAILED": "denied",
    "CONTAINER_MISSING": "refused",
    "VPC_NETWORK_NOT_FOUND": "refused",
}


class Hook:
    """A hook that has one service."""

    def __init__(self, service):
        self._service = service

    def get_service(self, service_id):
        return self._service


def fault(*conditions):
    labels = endpoint_labels("k", deployment="d", expires_at=1e9, dag_id="a", run_id="r", attempt="1")
    spec = parse_endpoint({"type": "cloud_run", "model": "Qwen/Qwen3-4B", "locations": ["us-central1"]})
    found = run_v2.Service(name="projects/p/locations/us-central1/services/k", terminal_condition=conditions[0])
    found.conditions.extend(conditions[1:])
    return CloudRunPlatform(Hook(found)).poll(EndpointPlan(spec, "k", labels), None).fault


def condition(reason=0, message=NOT_READY, **fields):
    return run_v2.Condition(type_="Ready", state=FAILED, message=message, reason=reason, **fields)


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.name)
def test_the_reason_of_a_failed_service_decides_whether_a_retry_may_help(reason):
    assert fault(condition(reason)).kind == KINDS.get(reason.name, "failed")


def test_the_reason_may_be_that_of_a_part_of_the_service():
    part = condition(REASONS.CONTAINER_PERMISSION_DENIED)
    assert fault(condition(REASONS.REVISION_FAILED), part).kind == "denied"


def test_a_denied_secret_is_known_from_the_message_alone():
    assert fault(condition(REASONS.UNKNOWN, SECRET)).kind == "denied"


def test_the_words_of_a_stock_out_count_more_than_a_reason_without_a_meaning():
    message = "The region us-central1 does not have enough resources available to fulfill the request."
    assert fault(condition(REASONS.INTERNAL, message)).kind == "stock_out"
