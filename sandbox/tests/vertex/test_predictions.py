from __future__ import annotations

import httpx
import pytest
from google.cloud import aiplatform_v1 as v1
from google.protobuf.struct_pb2 import Value
from llmbeam_sandbox import (
    EndpointSettings,
    Fault,
    ManualClock,
    ModelSettings,
    Proxy,
    Quota,
    Sandbox,
    prompt_sha256,
)

from tests.clouds import authorized, for_one_test

LOCATION = "europe-west4"
PARENT = f"projects/llmbeam-sandbox/locations/{LOCATION}"
SHARED = f"https://{LOCATION}-aiplatform.googleapis.com"
TOKEN = {"Authorization": "Bearer sandbox-access-token"}
CHAT = {"model": "", "messages": [{"role": "user", "content": "Name a river"}]}


@pytest.fixture(scope="module")
def clock():
    return ManualClock()


@pytest.fixture(scope="module")
def served(clock):
    with Sandbox(clock=clock, endpoints=EndpointSettings(warm_seconds=30)) as sandbox, Proxy(sandbox) as proxy:
        yield sandbox, proxy


@pytest.fixture
def sandbox(served, monkeypatch):
    yield from for_one_test(served, monkeypatch)


@pytest.fixture
def http(sandbox):
    with httpx.Client(headers=TOKEN, timeout=60) as client:
        yield client


def client_of(kind):
    return kind(transport="rest", client_options={"api_endpoint": f"{LOCATION}-aiplatform.googleapis.com"})


def bring_up(clock, *, is_dedicated=False, is_deployed=True):
    endpoints, models = client_of(v1.EndpointServiceClient), client_of(v1.ModelServiceClient)
    endpoint = {"display_name": "e", "dedicated_endpoint_enabled": is_dedicated}
    made = endpoints.create_endpoint(parent=PARENT, endpoint=endpoint, endpoint_id="e").result()
    if is_deployed:
        container = {
            "image_uri": "vllm",
            "args": ["--model=google/gemma-3-1b-it"],
            "env": [{"name": "HF_TOKEN", "value": "x"}],
        }
        model = models.upload_model(
            parent=PARENT, model={"display_name": "m", "container_spec": container}
        ).result()
        spec = {"machine_type": "g2-standard-12", "accelerator_type": "NVIDIA_L4", "accelerator_count": 1}
        deployed = {"model": model.model, "dedicated_resources": {"machine_spec": spec, "min_replica_count": 1}}
        endpoints.deploy_model(endpoint=made.name, deployed_model=deployed, traffic_split={"0": 100}).result()
        clock.advance(30)
    return made


def test_chat_completions_are_answered_whole_and_streamed(http, sandbox, clock) -> None:
    name = bring_up(clock).name
    answer = http.post(f"{SHARED}/v1/{name}/chat/completions", json=CHAT).json()
    assert answer["model"] == "google/gemma-3-1b-it"
    text = answer["choices"][0]["message"]["content"]
    assert "river" in text
    streamed = http.post(f"{SHARED}/v1beta1/{name}/chat/completions", json=CHAT | {"stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.rstrip().endswith("data: [DONE]")
    assert sandbox.requests.paid("vertex.chatCompletions") == {prompt_sha256("Name a river"): 2}
    assert sandbox.stats()["methods"]["vertex.chatCompletions"]["calls"] == 2


def test_a_raw_prediction_names_the_deployed_model_that_answered_and_a_chat_completion_does_not(
    http, clock
) -> None:
    made = bring_up(clock)
    deployed = client_of(v1.EndpointServiceClient).get_endpoint(name=made.name).deployed_models[0].id
    raw = http.post(f"{SHARED}/v1/{made.name}:rawPredict", json=CHAT)
    assert raw.headers["X-Vertex-AI-Deployed-Model-Id"] == deployed
    assert raw.headers["X-Vertex-AI-Endpoint-Id"] == "e"
    chat = http.post(f"{SHARED}/v1/{made.name}/chat/completions", json=CHAT)
    assert "X-Vertex-AI-Deployed-Model-Id" not in chat.headers


def test_instances_are_answered_separately(http, sandbox, clock) -> None:
    name = bring_up(clock).name
    prompts = ["one river", "two rivers"]
    instances = [
        {"prompt": prompts[0], "max_tokens": 50},
        {"prompt": prompts[1], "max_tokens": 50, "raw_response": True},
    ]
    answer = http.post(f"{SHARED}/v1/{name}:predict", json={"instances": instances}).json()
    first, second = answer["predictions"]
    assert first.startswith("Prompt:\none river\nOutput:\n")
    assert second.startswith("two rivers [")
    assert answer["modelVersionId"] == "1"
    assert sandbox.requests.paid("vertex.predict") == {prompt_sha256(prompt): 1 for prompt in prompts}
    short = http.post(
        f"{SHARED}/v1/{name}:predict", json={"instances": [{"prompt": "x" * 500, "raw_response": True}]}
    )
    assert len(short.json()["predictions"][0]) == 16 * 4, "without a limit there are 16 tokens"


def test_a_chat_in_a_prediction_is_a_list_of_one_on_the_shared_host(sandbox, clock) -> None:
    name = bring_up(clock).name
    instance = Value()
    instance.struct_value.update(
        {"@requestFormat": "chatCompletions", "messages": CHAT["messages"], "max_tokens": 9}
    )
    answer = client_of(v1.PredictionServiceClient).predict(endpoint=name, instances=[instance])
    assert "river" in answer.predictions[0]["choices"][0]["message"]["content"]
    assert answer.deployed_model_id


def test_a_chat_in_a_prediction_is_one_object_on_a_dedicated_host(http, clock) -> None:
    made = bring_up(clock, is_dedicated=True)
    chat = {"@requestFormat": "chatCompletions", "messages": CHAT["messages"]}
    answer = http.post(f"https://{made.dedicated_endpoint_dns}/v1/{made.name}:predict", json={"instances": [chat]})
    assert "river" in answer.json()["predictions"]["choices"][0]["message"]["content"]


def test_several_chats_in_one_prediction_are_refused(http, clock) -> None:
    name = bring_up(clock).name
    chat = {"@requestFormat": "chatCompletions", "messages": CHAT["messages"]}
    refused = http.post(f"{SHARED}/v1/{name}:predict", json={"instances": [chat, chat]})
    assert (refused.status_code, refused.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    "body", [{}, {"instances": []}, {"instances": [{"text": "x"}]}, {"instances": [{"prompt": 1}]}]
)
def test_invalid_instances_are_refused(http, clock, body) -> None:
    name = bring_up(clock).name
    assert http.post(f"{SHARED}/v1/{name}:predict", json=body).status_code == 400


def test_raw_bodies_reach_the_container(http, clock) -> None:
    name = bring_up(clock).name
    raw = http.post(
        f"{SHARED}/v1/{name}:rawPredict", json={"instances": [{"prompt": "a b", "raw_response": True}]}
    )
    assert raw.json() == {"predictions": [raw.json()["predictions"][0]]}
    chat = http.post(f"{SHARED}/v1/{name}:rawPredict", json=CHAT).json()
    assert chat["object"] == "chat.completion"
    stream = http.post(f"{SHARED}/v1/{name}:streamRawPredict", json=CHAT | {"stream": True})
    assert "[DONE]" in stream.text


def test_a_dedicated_endpoint_answers_on_its_own_host_only(http, clock) -> None:
    made = bring_up(clock, is_dedicated=True)
    refused = http.post(f"{SHARED}/v1/{made.name}/chat/completions", json=CHAT)
    assert refused.status_code == 400
    assert made.dedicated_endpoint_dns in refused.json()["error"]["message"]
    own = http.post(f"https://{made.dedicated_endpoint_dns}/v1/{made.name}/chat/completions", json=CHAT)
    assert own.status_code == 200
    other = made.dedicated_endpoint_dns.replace("e.", "f.", 1)
    assert http.post(f"https://{other}/v1/{made.name}:predict", json=CHAT).status_code == 404


def test_nothing_answers_without_endpoint_model_or_token(http, sandbox, clock) -> None:
    assert http.post(f"{SHARED}/v1/{PARENT}/endpoints/none/chat/completions", json=CHAT).status_code == 404
    name = bring_up(clock, is_deployed=False).name
    empty = http.post(f"{SHARED}/v1/{name}/chat/completions", json=CHAT)
    assert (empty.status_code, "no deployed model" in empty.text) == (404, True)
    assert httpx.post(f"{SHARED}/v1/{name}:predict", json=CHAT).status_code == 401
    assert [record.http_status for record in sandbox.requests if record.method.endswith("Completions")] == [
        404,
        404,
    ]


def test_another_regions_host_does_not_answer(http, clock) -> None:
    name = bring_up(clock).name
    refused = http.post(f"https://us-central1-aiplatform.googleapis.com/v1/{name}/chat/completions", json=CHAT)
    assert (refused.status_code, "does not match" in refused.text) == (400, True)


def test_a_deployed_model_has_the_quota_of_any_other() -> None:
    where = "/v1/projects/p/locations/us-central1"
    with (
        Sandbox(models=ModelSettings(quota=Quota(requests_per_minute=1))) as sandbox,
        httpx.Client(base_url=sandbox.url, headers=authorized(sandbox)) as local,
    ):
        spec = {"machineType": "g2-standard-12", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1}
        request = {
            "publisherModelName": "publishers/google/models/gemma3@gemma-3-1b-it",
            "modelConfig": {"acceptEula": True},
            "endpointConfig": {"endpointUserId": "e"},
            "deployConfig": {"dedicatedResources": {"machineSpec": spec, "minReplicaCount": 1}},
        }
        assert local.post(f"{where.replace('v1', 'v1beta1')}:deploy", json=request).status_code == 200
        answers = [local.post(f"{where}/endpoints/e/chat/completions", json=CHAT) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].json()["error"]["status"] == "RESOURCE_EXHAUSTED"


def test_a_model_that_warms_up_answers_503(http, clock) -> None:
    name = bring_up(clock).name
    endpoints = client_of(v1.EndpointServiceClient)
    there = endpoints.get_endpoint(name=name).deployed_models[0]
    endpoints.undeploy_model(endpoint=name, deployed_model_id=there.id).result()
    again = {"model": there.model, "dedicated_resources": there.dedicated_resources}
    endpoints.deploy_model(endpoint=name, deployed_model=again, traffic_split={"0": 100}).result()
    warming = http.post(f"{SHARED}/v1/{name}/chat/completions", json=CHAT)
    assert (warming.status_code, warming.json()["error"]["status"]) == (503, "UNAVAILABLE")
    clock.advance(30)
    assert http.post(f"{SHARED}/v1/{name}/chat/completions", json=CHAT).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("vertex.chatCompletions", "/chat/completions", CHAT),
        ("vertex.predict", ":predict", {"instances": [{"prompt": "a"}]}),
        ("vertex.rawPredict", ":rawPredict", CHAT),
    ],
)
def test_faults_have_the_error_format_of_google(http, sandbox, clock, method, path, body) -> None:
    name = bring_up(clock).name
    sandbox.faults.queue(
        method,
        Fault(kind="error", http_status=503),
        Fault(kind="rate-limit", retry_delay_seconds=None),
        Fault(kind="truncated"),
    )
    answers = [http.post(f"{SHARED}/v1/{name}{path}", json=body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [503, 429, 200]
    assert answers[1].json()["error"]["status"] == "RESOURCE_EXHAUSTED"
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        answers[2].json()


def test_the_bill_is_served_over_http(sandbox, clock) -> None:
    bring_up(clock)
    with httpx.Client(base_url=sandbox.url) as local:
        bill = local.get("/sandbox/bill", params={"after": clock()}).json()
        assert [one["gpu"] for one in bill["running"]] == ["NVIDIA_L4"]
        assert (bill["gpu_minutes"], bill["usd_per_hour"]) == (0, 0.64)
        assert local.get("/sandbox/stats").json()["bill"]["gpu_minutes"] == 0.5
        assert local.get("/sandbox/bill", params={"after": "noon"}).status_code == 400
