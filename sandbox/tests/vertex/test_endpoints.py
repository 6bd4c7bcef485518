from __future__ import annotations

import httpx
import pytest
from google.api_core.exceptions import (
    AlreadyExists,
    BadRequest,
    Cancelled,
    Conflict,
    FailedPrecondition,
    Forbidden,
    GoogleAPICallError,
    InternalServerError,
    NotFound,
    ResourceExhausted,
    ServiceUnavailable,
    TooManyRequests,
)
from google.cloud import aiplatform_v1 as v1
from google.cloud import run_v2
from llmbeam_sandbox import EndpointSettings, Fault, ManualClock, Proxy, Sandbox

from tests.clouds import for_one_test

PROJECT = "llmbeam-sandbox"
LOCATION = "europe-west4"
PARENT = f"projects/{PROJECT}/locations/{LOCATION}"
IMAGE = "vertex-ai/pytorch-vllm-serve:latest"
L4_USD = 0.64
GEMMA = "publishers/google/models/gemma3@gemma-3-4b-it"


def client_of(kind, location=LOCATION):
    return kind(transport="rest", client_options={"api_endpoint": f"{location}-aiplatform.googleapis.com"})


def garden_client(location=LOCATION):
    # 2 s of CPU time, in each worker that collects this module
    from google.cloud.aiplatform_v1beta1 import ModelGardenServiceClient

    return client_of(ModelGardenServiceClient, location)


def container(model="google/gemma-3-4b-it", token="hf_x"):
    env = [{"name": "HF_TOKEN", "value": token}] if token else []
    return {"image_uri": IMAGE, "args": [f"--model={model}"], "env": env}


def resources(machine="g2-standard-12", kind="NVIDIA_L4", count=1, replicas=1):
    spec = {"machine_type": machine}
    if kind:
        spec |= {"accelerator_type": kind, "accelerator_count": count}
    return {"machine_spec": spec, "min_replica_count": replicas, "max_replica_count": replicas}


class Cloud:
    """The clients and the calls that several tests need."""

    def __init__(self, clock):
        self.clock = clock
        self.endpoints = client_of(v1.EndpointServiceClient)
        self.models = client_of(v1.ModelServiceClient)
        self.garden = garden_client()

    def done(self, operation, seconds=600):
        self.clock.advance(seconds)
        return operation.result(timeout=60)

    def endpoint(self, own="llmbeam-x", **fields):
        endpoint = {"display_name": own, **fields}
        return self.done(self.endpoints.create_endpoint(parent=PARENT, endpoint=endpoint, endpoint_id=own))

    def model(self, own="gemma", **container_fields):
        model = {"display_name": own, "container_spec": container(**container_fields)}
        answer = self.done(self.models.upload_model(request={"parent": PARENT, "model": model, "model_id": own}))
        return answer.model

    def deploy(self, endpoint, model, **hardware):
        return self.endpoints.deploy_model(
            endpoint=endpoint,
            deployed_model={"model": model, "dedicated_resources": resources(**hardware)},
            traffic_split={"0": 100},
        )

    def garden_deploy(self, publisher=GEMMA, hub="", eula=True, token="", own="", **hardware):
        named = {"hugging_face_model_id": hub} if hub else {"publisher_model_name": publisher}
        config = {"accept_eula": eula, "hugging_face_access_token": token}
        return self.garden.deploy(
            request={
                "destination": PARENT,
                **named,
                "model_config": config | ({"model_user_id": own} if own else {}),
                "endpoint_config": {"endpoint_user_id": own} if own else {},
                "deploy_config": {"dedicated_resources": resources(**hardware)},
            }
        )


@pytest.fixture(scope="module")
def clock():
    return ManualClock()


@pytest.fixture(scope="module")
def served(clock):
    quota = {
        LOCATION: {"NVIDIA_L4": 4},
        "europe-west1": {"NVIDIA_H100_80GB": 8},
        "us-central1": {"NVIDIA_L4": 0},
    }
    with (
        Sandbox(clock=clock, endpoints=EndpointSettings(operation_seconds=600, gpu_quota=quota)) as sandbox,
        Proxy(sandbox) as proxy,
    ):
        yield sandbox, proxy


@pytest.fixture
def sandbox(served, monkeypatch):
    yield from for_one_test(served, monkeypatch)


@pytest.fixture
def cloud(sandbox, clock):
    return Cloud(clock)


def test_a_deployed_model_with_requests_is_not_undeployed_unless_it_is_the_last(cloud) -> None:
    endpoint, model = cloud.endpoint().name, cloud.model()
    first = cloud.done(cloud.deploy(endpoint, model)).deployed_model.id
    deployed = {"model": model, "dedicated_resources": resources()}
    shares = {"0": 10, first: 90}
    second = cloud.done(
        cloud.endpoints.deploy_model(endpoint=endpoint, deployed_model=deployed, traffic_split=shares)
    ).deployed_model.id

    def split(**percents):
        update = {"name": endpoint, "traffic_split": percents}
        return dict(
            cloud.endpoints.update_endpoint(
                endpoint=update, update_mask={"paths": ["traffic_split"]}
            ).traffic_split
        )

    assert dict(cloud.endpoints.get_endpoint(name=endpoint).traffic_split) == {first: 90, second: 10}
    with pytest.raises(BadRequest, match="add up to 100"):
        split(**{first: 50})
    with pytest.raises(BadRequest, match="no DeployedModel has the ID 7"):
        split(**{"7": 100})
    with pytest.raises(BadRequest, match="of the traffic"):
        cloud.endpoints.undeploy_model(endpoint=endpoint, deployed_model_id=second)
    cloud.done(
        cloud.endpoints.undeploy_model(endpoint=endpoint, deployed_model_id=second, traffic_split={first: 100})
    )
    assert split() == {}, "an endpoint may take no requests"
    cloud.done(cloud.endpoints.undeploy_model(endpoint=endpoint, deployed_model_id=first))


def test_an_endpoint_is_created_deployed_found_and_deleted(cloud, sandbox) -> None:
    made = cloud.endpoint(labels={"llmbeam-key": "x"}, dedicated_endpoint_enabled=True)
    number = made.name.split("/")[1]
    assert number.isdecimal()
    assert made.name.endswith("/endpoints/llmbeam-x")
    assert made.dedicated_endpoint_dns == f"llmbeam-x.{LOCATION}-{number}.prediction.vertexai.goog"
    by_id = cloud.endpoints.get_endpoint(name=f"{PARENT}/endpoints/llmbeam-x")
    assert by_id.name == made.name
    assert sandbox.bill.running == []
    operation = cloud.deploy(made.name, cloud.model())
    assert not operation.done(retry=None)
    deployed = cloud.done(operation).deployed_model
    there = cloud.endpoints.get_endpoint(name=made.name)
    assert [one.id for one in there.deployed_models] == [deployed.id]
    assert dict(there.traffic_split) == {deployed.id: 100}
    assert there.deployed_models[0].dedicated_resources.machine_spec.accelerator_type.name == "NVIDIA_L4"
    cloud.done(cloud.endpoints.undeploy_model(endpoint=made.name, deployed_model_id=deployed.id, traffic_split={}))
    cloud.done(cloud.endpoints.delete_endpoint(name=made.name))
    model = sandbox.models[0]["name"]
    assert cloud.models.get_model(name=f"{model}@1").version_id == "1"
    cloud.done(cloud.models.delete_model(name=model))
    assert (sandbox.endpoints, sandbox.models, sandbox.bill.running) == ([], [], [])
    with pytest.raises(NotFound, match="does not exist"):
        cloud.endpoints.get_endpoint(name=made.name)


def test_a_deployment_is_billed_from_its_request_until_it_is_undeployed(cloud, sandbox, clock) -> None:
    endpoint = cloud.endpoint(labels={"llmbeam-key": "k"}).name
    model, began = cloud.model(), clock()
    operation = cloud.deploy(endpoint, model, machine="g2-standard-24", count=2, replicas=2)
    [first, second] = sandbox.bill.running
    assert (first.kind, first.name, first.gpu, first.gpus) == ("vertex.deployedModel", endpoint, "NVIDIA_L4", 2)
    assert dict(second.labels) == {"llmbeam-key": "k"}
    assert first.since == began
    assert sandbox.bill.usd_per_hour == pytest.approx(4 * L4_USD)
    deployed = cloud.done(operation, seconds=600).deployed_model
    clock.advance(3000)
    ended = clock()
    undeployed = cloud.endpoints.undeploy_model(endpoint=endpoint, deployed_model_id=deployed.id)
    clock.advance(60)
    assert len(sandbox.bill.running) == 2, "it is billed until it is off"
    cloud.done(undeployed)
    assert sandbox.bill.running == []
    assert [line.seconds for line in sandbox.bill.lines] == [4200, 4200]
    assert sandbox.bill.usd == pytest.approx(4 * L4_USD * 4200 / 3600)
    assert sandbox.bill.gpu_minutes() == pytest.approx(4 * 70)
    assert sandbox.bill.gpu_minutes(after=ended) == pytest.approx(4 * 10)
    clock.advance(3600)
    assert sandbox.bill.gpu_minutes(after=ended + 600) == 0
    assert sandbox.stats()["bill"]["usd"] == pytest.approx(sandbox.bill.usd)


def test_an_endpoint_with_a_deployed_or_deploying_model_is_not_deleted(cloud) -> None:
    endpoint, model = cloud.endpoint().name, cloud.model()
    operation = cloud.deploy(endpoint, model)
    for _ in range(2):
        with pytest.raises(BadRequest, match="has deployed or being-deployed"):
            cloud.endpoints.delete_endpoint(name=endpoint)
        with pytest.raises(BadRequest, match="is deployed or being deployed at the following"):
            cloud.models.delete_model(name=model)
        cloud.clock.advance(600)
    deployed = operation.result().deployed_model
    cloud.endpoints.undeploy_model(endpoint=endpoint, deployed_model_id=deployed.id)
    with pytest.raises(BadRequest, match="other operations running"):
        cloud.endpoints.undeploy_model(endpoint=endpoint, deployed_model_id=deployed.id)


def test_endpoints_are_listed_by_label_and_name_and_relabelled(cloud) -> None:
    for own, labels in (("a1", {"llmbeam-key": "one", "team": "x"}), ("b1", {"llmbeam-key": "two"}), ("c1", {})):
        cloud.endpoint(own, labels=labels)

    def listed(text):
        found = cloud.endpoints.list_endpoints(request={"parent": PARENT, "filter": text, "page_size": 1})
        return [one.display_name for one in found]

    assert listed("") == ["a1", "b1", "c1"]
    assert listed("labels.llmbeam-key:*") == ["a1", "b1"]
    assert listed("labels.llmbeam-key=two") == ["b1"]
    assert listed('labels.llmbeam-key="one" AND labels.team=x') == ["a1"]
    assert listed('display_name="c1"') == ["c1"]
    with pytest.raises(BadRequest, match="not supported"):
        listed("etag=x")
    name = f"{PARENT}/endpoints/c1"
    cloud.endpoints.update_endpoint(
        endpoint={"name": name, "labels": {"llmbeam-key": "two"}}, update_mask={"paths": ["labels"]}
    )
    assert listed("labels.llmbeam-key=two") == ["b1", "c1"]
    with pytest.raises(BadRequest, match="invalid"):
        cloud.endpoints.update_endpoint(
            endpoint={"name": name, "labels": {"llmbeam-key": "A/B"}}, update_mask={"paths": ["labels"]}
        )


def test_an_id_can_be_used_only_once(cloud) -> None:
    pending = cloud.endpoints.create_endpoint(parent=PARENT, endpoint={"display_name": "x"}, endpoint_id="one")
    for _ in range(2):
        with pytest.raises((AlreadyExists, Conflict), match="already exists"):
            cloud.endpoints.create_endpoint(parent=PARENT, endpoint={"display_name": "x"}, endpoint_id="one")
        cloud.done(pending)
    for wrong in ("One", "-a", "a" * 64):
        with pytest.raises(BadRequest, match="invalid"):
            cloud.endpoints.create_endpoint(parent=PARENT, endpoint={"display_name": "x"}, endpoint_id=wrong)


def test_operations_are_attached_to_again_listed_and_cancelled(cloud, sandbox) -> None:
    endpoint, model = cloud.endpoint().name, cloud.model()
    name = cloud.deploy(endpoint, model).operation.name
    assert name.startswith(f"{endpoint}/operations/")
    assert not cloud.endpoints.get_operation({"name": name}).done
    assert not cloud.endpoints.wait_operation({"name": name}).done
    listed = cloud.endpoints.list_operations({"name": endpoint}).operations
    assert listed[0].name == name
    cloud.endpoints.cancel_operation({"name": name})
    assert len(sandbox.bill.running) == 1, "it is cancelled some time later"
    cloud.clock.advance(600)
    ended = cloud.endpoints.get_operation({"name": name})
    assert (ended.done, ended.error.code) == (True, 1)
    assert sandbox.bill.running == []
    cloud.endpoints.delete_operation({"name": name})
    with pytest.raises(NotFound, match="Operation"):
        cloud.endpoints.get_operation({"name": name})


def test_a_model_garden_deployment_creates_its_endpoint(cloud, sandbox) -> None:
    operation = cloud.garden_deploy(own="llmbeam-g")
    assert operation.operation.name.startswith(f"projects/{sandbox.endpoints[0]['name'].split('/')[1]}/locations/")
    assert len(sandbox.bill.running) == 1
    answer = cloud.done(operation)
    assert answer.publisher_model == GEMMA
    assert answer.endpoint.endswith("/endpoints/llmbeam-g")
    there = cloud.endpoints.get_endpoint(name=answer.endpoint)
    assert there.dedicated_endpoint_dns.startswith("llmbeam-g.")
    assert there.deployed_models[0].model == answer.model
    with pytest.raises((AlreadyExists, Conflict), match="already exists"):
        cloud.garden_deploy(own="llmbeam-g")


def test_model_garden_lists_the_deployment_options_of_a_model(cloud) -> None:
    publisher_model = cloud.garden.get_publisher_model(name=GEMMA)
    [option] = publisher_model.supported_actions.multi_deploy_vertex.multi_deploy_vertex
    assert option.dedicated_resources.machine_spec.machine_type == "g2-standard-12"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"publisher": "publishers/google/models/gemma9@x"}, NotFound, "gemma9@x` is not found"),
        ({"publisher": "publishers/google/models/gemma3@gemma-3-5b-it"}, NotFound, "5b"),
        ({"hub": "nobody/nothing"}, NotFound, "Hugging Face model 'nobody/nothing'"),
        ({"eula": False}, BadRequest, "License Agreement"),
        ({"machine": "g2-standard-13"}, BadRequest, "not supported"),
        ({"count": 2}, BadRequest, "has 1 NVIDIA_L4; 2 NVIDIA_L4 were requested"),
        ({"machine": "n1-standard-8"}, BadRequest, "cannot be attached"),
        (
            {"machine": "a3-ultragpu-8g", "kind": "NVIDIA_H200_141GB", "count": 8},
            BadRequest,
            "in region europe-west4",
        ),
        ({"replicas": 5}, TooManyRequests, "custom_model_serving_nvidia_l4_gpus"),
    ],
    ids=["id", "version", "hub", "eula", "machine", "count", "attached", "region", "quota"],
)
def test_an_undeployable_model_is_refused_before_anything_is_billed(
    cloud, sandbox, arguments, error, words
) -> None:
    with pytest.raises(error, match=words):
        cloud.garden_deploy(**arguments)
    assert (sandbox.bill.running, sandbox.bill.lines, sandbox.endpoints) == ([], [], [])


def test_the_quota_counts_deployed_replicas_and_the_error_has_the_limit(cloud) -> None:
    cloud.garden_deploy(replicas=3)
    with pytest.raises(TooManyRequests) as refused:
        cloud.garden_deploy(replicas=2)
    [violation] = refused.value.details[0]["violations"]
    assert (violation["quotaMetric"], violation["quotaValue"]) == (
        "aiplatform.googleapis.com/custom_model_serving_nvidia_l4_gpus",
        "4",
    )
    cloud.garden_deploy(replicas=1)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault(kind="stock-out"), ServiceUnavailable, 'Machine type temporarily unavailable.*"g2-standard-12"'),
        (Fault(kind="stock-out", http_status=429), ResourceExhausted, "does not have enough resources available"),
        (Fault(kind="operation-error", after_seconds=60), InternalServerError, "Internal error"),
        (
            Fault(kind="operation-error", http_status=400, message="Model server exited"),
            FailedPrecondition,
            "exited",
        ),
    ],
    ids=["stock-out", "resource-exhausted", "internal", "container"],
)
def test_a_deployment_that_fails_is_billed_until_then_and_leaves_the_endpoint(
    cloud, sandbox, clock, fault, error, words
) -> None:
    sandbox.faults.queue("vertex.modelGarden.deploy", fault)
    operation = cloud.garden_deploy()
    assert len(sandbox.bill.running) == 1
    with pytest.raises(error, match=words):
        cloud.done(operation)
    [line] = sandbox.bill.lines
    assert line.seconds == (600 if fault.after_seconds is None else 60)
    [left] = sandbox.endpoints
    assert "deployedModels" not in left
    cloud.done(cloud.endpoints.delete_endpoint(name=left["name"]))


def test_a_gated_model_without_a_token_fails_as_its_container_does(cloud, sandbox) -> None:
    endpoint = cloud.endpoint().name
    with pytest.raises(FailedPrecondition, match=r"(?s)Model server exited unexpectedly.*gated repo"):
        cloud.done(cloud.deploy(endpoint, cloud.model("a", token="")))
    with pytest.raises(FailedPrecondition, match=r"Model server exited.*not a valid model identifier"):
        cloud.done(cloud.deploy(endpoint, cloud.model("b", model="nobody/x")))
    with pytest.raises(FailedPrecondition, match="gated repo"):
        cloud.done(cloud.garden_deploy(hub="google/gemma-3-4b-it"))
    assert cloud.done(cloud.garden_deploy(hub="google/gemma-3-4b-it", token="hf_x")).endpoint
    assert cloud.done(
        cloud.deploy(endpoint, cloud.model("c", model="gs://rows/weights", token=""))
    ).deployed_model.id
    assert len(sandbox.bill.running) == 2


def test_faults_of_the_first_call_are_returned_at_once(cloud, sandbox) -> None:
    sandbox.faults.queue("vertex.endpoints.create", Fault(kind="error", http_status=403))
    with pytest.raises(Forbidden, match="Permission"):
        cloud.endpoint()
    endpoint = cloud.endpoint().name
    sandbox.faults.queue("vertex.endpoints.delete", *[Fault(kind="error", http_status=409, message="busy")] * 2)
    for _ in range(2):
        with pytest.raises(Conflict, match="busy"):
            cloud.endpoints.delete_endpoint(name=endpoint)
    sandbox.faults.queue("vertex.endpoints.delete", Fault(kind="slow", after_seconds=5000))
    operation = cloud.endpoints.delete_endpoint(name=endpoint)
    cloud.clock.advance(4000)
    assert not operation.done(retry=None)
    cloud.done(operation, seconds=1000)
    sandbox.faults.queue("vertex.modelGarden.deploy", Fault(kind="quota"))
    with pytest.raises(TooManyRequests, match="nvidia_l4_gpus"):
        cloud.garden_deploy()


def test_one_location_may_be_out_of_stock_and_another_not(cloud, sandbox) -> None:
    sandbox.faults.when("vertex.modelGarden.deploy", f"/{LOCATION}", Fault(kind="stock-out", after_seconds=30))
    with pytest.raises(ServiceUnavailable, match="temporarily unavailable"):
        cloud.done(cloud.garden_deploy(), seconds=30)
    where = "europe-west1"
    elsewhere = garden_client(where).deploy(
        request={
            "destination": f"projects/{PROJECT}/locations/{where}",
            "hugging_face_model_id": "Qwen/Qwen3-0.6B",
            "deploy_config": {"dedicated_resources": resources("a3-highgpu-1g", "NVIDIA_H100_80GB")},
        }
    )
    assert cloud.done(elsewhere).endpoint


def test_a_model_that_is_not_deployed_yet_cannot_be_undeployed(cloud) -> None:
    endpoint, model = cloud.endpoint().name, cloud.model()
    deployed = {"id": "7", "model": model, "dedicated_resources": resources()}
    operation = cloud.endpoints.deploy_model(endpoint=endpoint, deployed_model=deployed, traffic_split={"0": 100})
    with pytest.raises(NotFound, match="not yet"):
        cloud.endpoints.undeploy_model(endpoint=endpoint, deployed_model_id="7")
    with pytest.raises((AlreadyExists, Conflict), match="DeployedModel with ID 7"):
        cloud.endpoints.deploy_model(endpoint=endpoint, deployed_model=deployed, traffic_split={"0": 100})
    assert cloud.done(operation).deployed_model.id == "7"


@pytest.mark.parametrize(
    ("deployed", "error", "words"),
    [
        ({"model": "gemma"}, BadRequest, "Invalid Model resource name"),
        ({"model": f"{PARENT}/models/none", "dedicated_resources": resources()}, NotFound, "models/none"),
        ({}, BadRequest, "'automatic_resources' is not supported"),
        ({"dedicated_resources": resources(replicas=0)}, BadRequest, "replica counts"),
    ],
    ids=["name", "unknown", "resources", "replicas"],
)
def test_an_invalid_deployment_is_refused(cloud, sandbox, deployed, error, words) -> None:
    endpoint, model = cloud.endpoint().name, cloud.model()
    with pytest.raises(error, match=words):
        cloud.endpoints.deploy_model(
            endpoint=endpoint, deployed_model={"model": model} | deployed, traffic_split={"0": 100}
        )
    assert sandbox.bill.running == []


def test_a_model_needs_a_container_and_a_name(cloud) -> None:
    for model in ({"display_name": "m"}, {"container_spec": {"image_uri": "x"}}):
        with pytest.raises(BadRequest, match="required"):
            cloud.models.upload_model(parent=PARENT, model=model)
    with pytest.raises(BadRequest, match="display_name"):
        cloud.endpoints.create_endpoint(parent=PARENT, endpoint={})
    name = cloud.model("again")
    with pytest.raises((AlreadyExists, Conflict), match="already exists"):
        cloud.model("again")
    with pytest.raises(NotFound, match="@2"):
        cloud.models.get_model(name=f"{name}@2")
    assert [one.name for one in cloud.models.list_models(parent=PARENT)] == [name]


def test_a_model_can_be_labelled_after_its_creation(cloud) -> None:
    name = cloud.garden_deploy(own="llmbeam-m").operation.name.partition("/operations/")[0] + "/models/llmbeam-m"
    labelled = cloud.models.update_model(
        model={"name": name, "labels": {"llmbeam-key": "k"}}, update_mask={"paths": ["labels"]}
    )
    assert dict(labelled.labels) == {"llmbeam-key": "k"}
    listed = cloud.models.list_models(request={"parent": PARENT, "filter": "labels.llmbeam-key=k"})
    assert [one.name for one in listed] == [name]
    with pytest.raises(BadRequest, match="cannot be updated"):
        cloud.models.update_model(model={"name": name}, update_mask={"paths": ["artifact_uri"]})


def test_the_wildcard_location_is_refused(cloud) -> None:
    with pytest.raises(BadRequest, match="wildcard"):
        list(client_of(v1.EndpointServiceClient).list_endpoints(parent=f"projects/{PROJECT}/locations/-"))
    with pytest.raises(BadRequest, match="wildcard"):
        list(run_v2.ServicesClient(transport="rest").list_services(parent=f"projects/{PROJECT}/locations/-"))


def test_a_caller_without_a_token_is_refused(sandbox) -> None:
    for path in ("v1/" + PARENT + "/endpoints", "v2/" + PARENT + "/services"):
        refused = httpx.get(f"{sandbox.url}/{path}")
        assert (refused.status_code, refused.json()["error"]["status"]) == (401, "UNAUTHENTICATED")


def test_a_regional_host_serves_its_own_location_only(cloud, sandbox) -> None:
    elsewhere = client_of(v1.EndpointServiceClient, "us-central1")
    with pytest.raises(BadRequest, match="does not match that of the host"):
        elsewhere.get_endpoint(name=f"{PARENT}/endpoints/x")
    with pytest.raises(TooManyRequests, match="l4"):
        garden_client("us-central1").deploy(
            request={
                "destination": f"projects/{PROJECT}/locations/us-central1",
                "publisher_model_name": GEMMA,
                "model_config": {"accept_eula": True},
            }
        )


def test_a_request_whose_reply_is_lost_has_taken_effect(cloud, sandbox) -> None:
    sandbox.faults.queue("vertex.modelGarden.deploy", Fault(kind="disconnect"))
    with pytest.raises((GoogleAPICallError, OSError)):
        cloud.garden_deploy(own="llmbeam-lost")
    cloud.clock.advance(600)
    assert cloud.endpoints.get_endpoint(name=f"{PARENT}/endpoints/llmbeam-lost").deployed_models


def test_a_reset_deletes_everything(cloud, sandbox, clock) -> None:
    operation = cloud.garden_deploy()
    sandbox.reset()
    clock.advance(600)
    assert (sandbox.endpoints, sandbox.models, sandbox.bill.running, sandbox.bill.lines) == ([], [], [], [])
    with pytest.raises((NotFound, Cancelled)):
        operation.result(timeout=60)


@pytest.mark.parametrize("wrong", [{"operation_seconds": -1}, {"idle_seconds": -1}, {"cold_start_seconds": -1}])
def test_times_below_zero_are_refused(wrong) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EndpointSettings(**wrong)


@pytest.mark.parametrize("quota", [{"us-central1": {"NVIDIA_X": 1}}, {"us-central1": {"NVIDIA_L4": -1}}])
def test_an_invalid_gpu_quota_is_refused(quota) -> None:
    with pytest.raises(ValueError, match="gpu_quota"):
        Sandbox(endpoints=EndpointSettings(gpu_quota=quota))
