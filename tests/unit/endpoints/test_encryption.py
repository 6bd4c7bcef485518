"""The key of Cloud KMS of an endpoint, on every resource that is created for it."""

from __future__ import annotations

import json
import logging
import time

import pytest

from airflow_provider_llmbeam.endpoints.provisioning import ProvisioningHistory
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.endpoint import with_connection
from airflow_provider_llmbeam.polling.poller import poll_until_result
from airflow_provider_llmbeam.spec import parse_endpoint
from airflow_provider_llmbeam.spec.endpoint.identity import endpoint_labels
from airflow_provider_llmbeam.spec.identity import identity
from airflow_provider_llmbeam.triggers.endpoint import EndpointTrigger

KEY = "projects/keys/locations/us-central1/keyRings/llmbeam/cryptoKeys/gpu"
LABELED = identity("gpu-0123456789ab")
QWEN = {"model": "Qwen/Qwen3-4B", "locations": ("us-central1",)}
CONTAINER = {**QWEN, "type": "vertex", "container_image": "vllm/vllm-openai", "machine_type": "g2-standard-12"}
CLOUD_RUN = {**QWEN, "type": "cloud_run"}
log = logging.getLogger(__name__)


def provision(endpoint):
    labels = endpoint_labels(
        LABELED, deployment="prod", expires_at=time.time() + 60, dag_id="d", run_id="r", attempt="1"
    )
    trigger = EndpointTrigger(
        endpoint=endpoint.model_dump(mode="json"),
        key=LABELED,
        labels=labels,
        history=ProvisioningHistory(time.time()).to_dict(),
        poll_interval_seconds=0.02,
        ready_within_seconds=60.0,
    )
    ended = poll_until_result(trigger.make_poller(log))
    assert ended.outcome == "ready", ended.message


def keys(sandbox):
    found = [one.get("encryptionSpec", {}).get("kmsKeyName") for one in (*sandbox.endpoints, *sandbox.models)]
    return [*found, *(one["template"].get("encryptionKey") for one in sandbox.services)]


@pytest.mark.parametrize(("fields", "count"), [(CONTAINER, 2), (CLOUD_RUN, 1)], ids=["vertex", "cloud_run"])
@pytest.mark.parametrize("key", [KEY, None])
def test_each_resource_of_an_endpoint_has_its_key_and_none_without_one(sandbox, google, fields, count, key):
    provision(parse_endpoint({**fields, "project": google.project, "kms_key_name": key}))
    assert keys(sandbox) == [key] * count


@pytest.fixture
def connection(monkeypatch):
    extra = {"project": "acme-gpu", "kms_key_name": KEY}
    found = {"conn_type": "google_cloud_platform", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_KEYED", json.dumps(found))
    return "keyed"


@pytest.mark.usefixtures("credentials")
def test_an_endpoint_without_a_key_gets_that_of_the_connection(connection):
    own = KEY.replace("gpu", "own")
    assert with_connection(parse_endpoint(CLOUD_RUN), connection, None).kms_key_name == KEY
    assert (
        with_connection(parse_endpoint({**CLOUD_RUN, "kms_key_name": own}), connection, None).kms_key_name == own
    )
    assert (
        with_connection(parse_endpoint({**CLOUD_RUN, "project": "acme-own"}), "google_cloud_default", None).project
        == "acme-own"
    )


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        pytest.param(
            {**CLOUD_RUN, "locations": ("us-central1", "europe-west4")},
            "`kms_key_name`: must be a key in 'europe-west4' for `locations.1` 'europe-west4'",
            id="a second region",
        ),
        pytest.param(
            {**QWEN, "type": "vertex", "machine_type": "g2-standard-12"},
            "has `kms_key_name`, which Model Garden does not take: it needs `container_image`",
            id="Model Garden",
        ),
    ],
)
def test_an_endpoint_that_the_key_cannot_encrypt_is_refused(connection, fields, sentence):
    with pytest.raises(JobSpecError, match=sentence):
        parse_endpoint({**fields, "kms_key_name": KEY})
    with pytest.raises(JobSpecError, match=sentence):
        with_connection(parse_endpoint(fields), connection, None)
