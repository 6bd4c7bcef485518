"""Readiness of an endpoint of the emulated Vertex AI while it is created and deployed step by step."""

from __future__ import annotations

import logging

import pytest
from google.cloud import aiplatform_v1 as v1
from llmbeam_sandbox import EndpointSettings, ManualClock, Sandbox

from airflow_provider_llmbeam.endpoints.readiness import ReadinessCondition
from airflow_provider_llmbeam.exceptions import EndpointRefusedError
from airflow_provider_llmbeam.polling.poller import Wait

LOCATION = "europe-west4"
PARENT = f"projects/llmbeam-sandbox/locations/{LOCATION}"
NAME = f"{PARENT}/endpoints/e"
WARM_SECONDS = 30
MACHINE = {"machine_type": "g2-standard-12", "accelerator_type": "NVIDIA_L4", "accelerator_count": 1}


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def sandbox(clock):
    with Sandbox(clock=clock, endpoints=EndpointSettings(warm_seconds=WARM_SECONDS)) as running:
        yield running


def client_of(kind):
    return kind(transport="rest", client_options={"api_endpoint": f"{LOCATION}-aiplatform.googleapis.com"})


def make_endpoint():
    endpoints = client_of(v1.EndpointServiceClient)
    endpoints.create_endpoint(parent=PARENT, endpoint={"display_name": "e"}, endpoint_id="e").result()


def deploy():
    container = {"image_uri": "vllm", "args": ["--model=Qwen/Qwen3-4B"]}
    models = client_of(v1.ModelServiceClient)
    model = {"display_name": "m", "container_spec": container}
    made = models.upload_model(parent=PARENT, model=model).result()
    deployed = {"model": made.model, "dedicated_resources": {"machine_spec": MACHINE, "min_replica_count": 1}}
    endpoints = client_of(v1.EndpointServiceClient)
    endpoints.deploy_model(endpoint=NAME, deployed_model=deployed, traffic_split={"0": 100}).result()


def test_an_endpoint_is_ready_when_its_model_answers_and_not_before(google, clock):
    model = {"type": "vertex_endpoint", "name": "Qwen/Qwen3-4B", "endpoint": NAME}
    condition, log = ReadinessCondition(model, max_latency_seconds=5.0), logging.getLogger()
    with pytest.raises(EndpointRefusedError, match=r"HTTP 404: Endpoint `.*` not found\."):
        condition.check(log)
    make_endpoint()
    empty = condition.check(log)
    assert isinstance(empty, Wait)
    assert "has no deployed model" in empty.message
    deploy()
    loading = condition.check(log)
    assert isinstance(loading, Wait)
    assert loading.message.startswith(
        f"Model 'Qwen/Qwen3-4B' at https://{LOCATION}-aiplatform.googleapis.com/v1/{NAME} does not answer yet: "
        "HTTP 503: The model server is not ready"
    )
    clock.advance(WARM_SECONDS + 1)
    assert condition.check(log)["latency_seconds"] <= 5.0
