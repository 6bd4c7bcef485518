"""Endpoints with a private address, and the method that takes a chat."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time

import pytest
from airflow.sdk import DAG
from llmbeam_sandbox import EndpointSettings, Fault, Sandbox

from airflow_provider_llmbeam.endpoints import provisioning
from airflow_provider_llmbeam.endpoints.provisioning import ProvisioningHistory
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.inference_endpoint import inference_endpoint
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.polling.poller import poll_until_result
from airflow_provider_llmbeam.providers.vertex_endpoint.client import open_backend
from airflow_provider_llmbeam.spec import Generation, JobSpec, VertexEndpointModel, parse_endpoint
from airflow_provider_llmbeam.spec.endpoint.identity import endpoint_id, endpoint_labels
from airflow_provider_llmbeam.spec.identity import identity
from airflow_provider_llmbeam.triggers.endpoint import EndpointTrigger

pytestmark = pytest.mark.slow

NETWORK = "projects/123/global/networks/private"
KEY = identity("gpu-0123456789ab")
CONTAINER = {
    "type": "vertex",
    "model": "Qwen/Qwen3-4B",
    "container_image": "vllm/vllm-openai:v0.11.0",
    "machine_type": "g2-standard-12",
    "locations": ("us-central1",),
}
GARDEN = {**CONTAINER, "container_image": None}
CONNECT = {
    "network": NETWORK,
    "forwarding_address": "psc.us-central1.p.vertexai.goog",
    "forwarding_projects": ("acme-prod",),
}
log = logging.getLogger(__name__)


@pytest.fixture(params=["every_container", "model_garden"])
def sandbox(request):
    """A sandbox whose custom containers answer `chat/completions`, or do not."""
    with Sandbox(endpoints=EndpointSettings(chat_completions=request.param)) as running:
        yield running


@pytest.fixture
def provisioned(sandbox, google, monkeypatch):
    """Returns a function that provisions an endpoint and returns the result."""
    # aiohttp reads SSL_CERT_FILE when it is imported.
    context = ssl.create_default_context(cafile=str(google.directory / "ca.pem"))
    monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", context)
    monkeypatch.setattr(provisioning, "MAX_REFUSED_SECONDS", 0.0)

    def provision(**fields):
        spec, now = parse_endpoint({**CONTAINER, "project": google.project, **fields}), time.time()
        labels = endpoint_labels(KEY, deployment="prod", expires_at=now + 60, dag_id="d", run_id="r", attempt="1")
        trigger = EndpointTrigger(
            endpoint=spec.model_dump(mode="json"),
            key=KEY,
            labels=labels,
            history=ProvisioningHistory(now).to_dict(),
            poll_interval_seconds=0.02,
        )
        return poll_until_result(trigger.make_poller(log))

    return provision


def ask(model, *, generation=None):
    """Sends a prompt as a job does."""

    async def main():
        backend = open_backend(VertexEndpointModel.parse(model), generation or Generation(), None)
        try:
            return await backend.complete(Prompt("Name a river"))
        finally:
            await backend.aclose()

    return asyncio.run(main())


def methods(sandbox):
    """Number of requests by method of the endpoint."""
    counted = {name: one["calls"] for name, one in sandbox.stats()["methods"].items() if one["calls"]}
    return {name: counted[name] for name in ("vertex.chatCompletions", "vertex.rawPredict") if name in counted}


@pytest.mark.parametrize("reachable", [True, False])
def test_a_job_asks_an_endpoint_in_a_peered_network_at_its_private_address(sandbox, provisioned, reachable):
    ended = provisioned(network=NETWORK, reachable=reachable)
    assert ended.outcome == "ready", ended.message
    url = f"http://{endpoint_id(KEY)}.aiplatform.googleapis.com/v1/models/1:predict"
    assert (ended.model["predict_url"], ended.model.get("network")) == (url, None if reachable else NETWORK)
    assert methods(sandbox).get("vertex.rawPredict", 0) == reachable, "the worker asks only what it reaches"
    assert "river" in ask(ended.model).text
    (endpoint,) = sandbox.endpoints
    assert endpoint["network"] == NETWORK


def test_no_token_is_sent_over_plain_http(provisioned, monkeypatch):
    ended = provisioned(network=NETWORK)

    def refuse(*arguments):
        raise AssertionError("a token was requested")

    monkeypatch.setattr("airflow_provider_llmbeam.providers.access.default_credentials", refuse)
    assert ask(ended.model).text


@pytest.mark.parametrize("stream", [False, True])
def test_a_job_asks_an_endpoint_of_private_service_connect_at_its_forwarding_address(sandbox, provisioned, stream):
    ended = provisioned(**CONNECT, reachable=True)
    assert ended.outcome == "ready", ended.message
    assert (ended.model["base_url"], ended.model["chat_route"]) == (
        f"https://{CONNECT['forwarding_address']}",
        "raw_predict",
    )
    assert "river" in ask(ended.model, generation=Generation(stream=stream)).text
    (endpoint,) = sandbox.endpoints
    assert endpoint["privateServiceConnectConfig"]["projectAllowlist"] == ["acme-prod"]


@pytest.mark.parametrize("fields", [{}, {"chat_route": "raw_predict"}])
def test_a_container_is_asked_by_the_method_that_is_documented_for_it(sandbox, provisioned, fields):
    ended = provisioned(**fields)
    assert (ended.outcome, ended.model["chat_route"]) == ("ready", "raw_predict")
    assert "river" in ask(ended.model).text
    assert "river" in ask(ended.model, generation=Generation(stream=True)).text
    assert methods(sandbox) == {"vertex.rawPredict": 3}


def test_model_garden_is_asked_for_chat_completions(sandbox, provisioned):
    ended = provisioned(**GARDEN)
    assert (ended.outcome, ended.model["chat_route"]) == ("ready", "chat_completions")
    assert "river" in ask(ended.model).text
    assert "vertex.rawPredict" not in methods(sandbox)


@pytest.mark.parametrize("sandbox", ["every_container"], indirect=True)
def test_the_other_method_is_used_where_the_documented_one_is_refused(sandbox, provisioned):
    sandbox.faults.every("vertex.rawPredict", 1, Fault(kind="error", http_status=404))
    ended = provisioned()
    assert (ended.outcome, ended.model["chat_route"]) == ("ready", "chat_completions")


@pytest.mark.parametrize("sandbox", ["model_garden"], indirect=True)
def test_an_endpoint_whose_methods_all_refuse_is_removed_and_the_error_names_each(sandbox, provisioned):
    sandbox.faults.every("vertex.rawPredict", 1, Fault(kind="error", http_status=404))
    ended = provisioned()
    assert ended.outcome == "refused"
    assert ":rawPredict: HTTP 404" in ended.message
    assert "/chat/completions: HTTP 400" in ended.message
    assert "name it in `chat_route`." in ended.message
    assert not sandbox.bill.running


@pytest.mark.parametrize("sandbox", ["model_garden"], indirect=True)
def test_the_error_of_a_job_names_the_method_that_was_tried_and_the_other_one(sandbox, provisioned):
    model = {**provisioned().model, "chat_route": "chat_completions"}
    with pytest.raises(RequestError, match=r"/chat/completions \(`chat_route` .*the other one is 'raw_predict'"):
        ask(model)


# What is refused before a GPU is created


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({**CONNECT, "forwarding_projects": ()}, "needs both `forwarding_address` and"),
        ({**CONNECT, "network": None}, "has `forwarding_address`, which needs `network`"),
        ({"network": NETWORK, "chat_route": "chat_completions"}, "leave it out"),
        ({"reachable": True}, "has `reachable`, which needs `network`"),
        ({**GARDEN, **CONNECT}, "has `network`, which Model Garden does not take"),
        ({**CONNECT, "forwarding_address": "https://x"}, "`forwarding_address`"),
    ],
)
def test_an_endpoint_that_cannot_be_reached_is_refused(fields, words):
    with pytest.raises(JobSpecError, match=words):
        parse_endpoint({**CONTAINER, **fields})


DATAFLOW = {"type": "dataflow", "location": "us-central1", "temp_uri": "gs://b/t/"}
INSIDE = [{"network": "private"}, {"network": NETWORK}, {"subnetwork": "regions/us-central1/subnetworks/s"}]


def block(endpoint, **arguments):
    with DAG("private", schedule=None), inference_endpoint(endpoint={**CONTAINER, **endpoint}) as made:
        RunInferenceOperator(
            task_id="ask",
            source={"uri": "gs://b/in.jsonl", "key": "id"},
            prompt="Say {{ row.id }}",
            model=made.model,
            sink="gs://b/out",
            **arguments,
        )


@pytest.mark.parametrize("endpoint", [{"network": NETWORK}, CONNECT])
@pytest.mark.parametrize("runner", [None, {"type": "direct"}, DATAFLOW, {**DATAFLOW, "network": "default"}])
def test_a_job_outside_the_network_of_its_endpoint_is_refused_when_the_dag_is_parsed(endpoint, runner):
    with pytest.raises(JobSpecError, match=rf"is not in '{NETWORK}', which alone reaches.*Nothing was sent"):
        block(endpoint, **({"runner": runner} if runner else {}))
    block({**endpoint, "reachable": True}, **({"runner": runner} if runner else {}))


@pytest.mark.parametrize("inside", INSIDE)
def test_a_job_in_the_network_of_its_endpoint_is_accepted(inside):
    block({"network": NETWORK}, runner={**DATAFLOW, **inside})


JOB = {
    "name": "j",
    "source": {"type": "files", "uri": "gs://b/in.jsonl", "key": ["id"]},
    "prompt": {"template": "Say {{ row.id }}"},
    "sink": {"type": "files", "uri": "gs://b/out"},
    "state_uri": "gs://b/state",
}
PEERED = {
    "type": "vertex_endpoint",
    "name": "m",
    "endpoint": "projects/p/locations/us-central1/endpoints/e",
    "predict_url": "http://e.aiplatform.googleapis.com/v1/models/1:predict",
    "network": NETWORK,
}


def test_a_job_without_a_block_is_refused_before_it_starts():
    with pytest.raises(JobSpecError, match=r"`runner`.*must be of type 'dataflow' with `network`"):
        JobSpec.parse({**JOB, "model": PEERED, "runner": DATAFLOW})
    assert JobSpec.parse({**JOB, "model": PEERED, "runner": {**DATAFLOW, "network": "private"}})
    assert JobSpec.parse({**JOB, "model": {**PEERED, "network": None}, "runner": DATAFLOW})


def test_a_stream_from_a_peered_network_is_refused():
    with pytest.raises(JobSpecError, match="a private endpoint in a peered network cannot stream"):
        JobSpec.parse({**JOB, "model": {**PEERED, "network": None}, "generation": {"stream": True}})
