from __future__ import annotations

import google.auth
import httpx
import openai
import pytest
from google.api_core.exceptions import (
    BadRequest,
    Conflict,
    FailedPrecondition,
    Forbidden,
    NotFound,
    ResourceExhausted,
)
from google.auth import impersonated_credentials
from google.auth.transport.requests import Request
from google.cloud import run_v2, secretmanager
from google.oauth2 import id_token
from llmbeam_sandbox import EndpointSettings, Fault, ManualClock, Proxy, Sandbox

from tests.clouds import for_one_test

LOCATION = "europe-west4"
PARENT = f"projects/llmbeam-sandbox/locations/{LOCATION}"
L4_USD = 0.67


def spec(least=1, most=1, gpu="nvidia-l4", model="google/gemma-3-4b-it", token="hf_x", cpu="8", **fields):
    container = {
        "image": "vllm/vllm-openai:latest",
        "args": [f"--model={model}"],
        "env": [{"name": "HF_TOKEN", "value": token}] if token else [],
        "resources": {"limits": {"cpu": cpu, "memory": "32Gi"} | ({"nvidia.com/gpu": "1"} if gpu else {})},
    }
    template = {
        "containers": [container],
        "scaling": {"min_instance_count": least, "max_instance_count": most},
        "gpu_zonal_redundancy_disabled": True,
    } | ({"node_selector": {"accelerator": gpu}} if gpu else {})
    return {"template": template, "labels": {"llmbeam-key": "x"}, **fields}


@pytest.fixture(scope="module")
def clock():
    return ManualClock()


@pytest.fixture(scope="module")
def served(clock):
    with (
        Sandbox(
            clock=clock,
            endpoints=EndpointSettings(
                operation_seconds=60,
                cold_start_seconds=90,
                gpu_quota={LOCATION: {"NVIDIA_L4": 3}, "us-central1": {"NVIDIA_L4": 1}},
            ),
        ) as sandbox,
        Proxy(sandbox) as proxy,
    ):
        yield sandbox, proxy


@pytest.fixture
def sandbox(served, monkeypatch):
    yield from for_one_test(served, monkeypatch)


@pytest.fixture
def client(sandbox):
    return run_v2.ServicesClient(transport="rest")


def done(clock, operation, seconds=60):
    clock.advance(seconds)
    return operation.result(timeout=60)


def begin(client, own="gemma", **fields):
    return client.create_service(parent=PARENT, service=spec(**fields), service_id=own)


def ask(uri, token, path="/health", **options):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.request("POST" if options else "GET", f"{uri}{path}", headers=headers, timeout=60, **options)


def token_for(audience):
    return id_token.fetch_id_token(Request(), audience)


def test_a_service_is_created_answers_and_is_deleted(client, sandbox, clock) -> None:
    operation = begin(client)
    assert (
        client.get_service(name=f"{PARENT}/services/gemma").terminal_condition.state.name
        == "CONDITION_RECONCILING"
    )
    service = done(clock, operation)
    assert service.terminal_condition.state == run_v2.Condition.State.CONDITION_SUCCEEDED
    assert service.uri.startswith("https://gemma-")
    assert service.uri.endswith("-ez.a.run.app")
    assert dict(service.labels) == {"llmbeam-key": "x"}
    assert service.template.node_selector.accelerator == "nvidia-l4"
    assert [one.name for one in client.list_services(parent=PARENT)] == [service.name]
    token = token_for(service.uri)
    assert ask(service.uri, token).status_code == 200
    models = ask(service.uri, token, "/v1/models").json()
    assert [one["id"] for one in models["data"]] == ["google/gemma-3-4b-it"]
    gone = done(clock, client.delete_service(name=service.name))
    assert gone.name == service.name
    assert (sandbox.services, sandbox.bill.running) == ([], [])
    with pytest.raises(NotFound, match="does not exist"):
        client.get_service(name=service.name)
    assert ask(service.uri, token).status_code == 404


def test_the_openai_client_talks_to_a_service_with_an_identity_token(client, sandbox, clock) -> None:
    uri = done(clock, begin(client)).uri
    with openai.OpenAI(base_url=f"{uri}/v1", api_key=token_for(uri), max_retries=0) as chat:
        messages = [{"role": "user", "content": "Say hello to Ada"}]
        answer = chat.chat.completions.create(model="google/gemma-3-4b-it", messages=messages)
        assert "hello" in answer.choices[0].message.content
        stream = chat.chat.completions.create(model="google/gemma-3-4b-it", messages=messages, stream=True)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert streamed == answer.choices[0].message.content
        plain = chat.completions.create(model="google/gemma-3-4b-it", prompt=["one", "two words"], max_tokens=5)
        assert [choice.text for choice in plain.choices] == [choice.text for choice in plain.choices]
        assert len(plain.choices) == 2
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            chat.chat.completions.create(model="gemma", messages=messages)
        sandbox.faults.queue("run.chatCompletions", Fault(kind="error", http_status=503))
        with pytest.raises(openai.InternalServerError, match="overloaded"):
            chat.chat.completions.create(model="google/gemma-3-4b-it", messages=messages)
    paid = [record for record in sandbox.requests if record.is_billed]
    assert [record.method for record in paid] == ["run.chatCompletions"] * 2 + ["run.completions"]
    assert len(sandbox.requests.paid("run.completions")) == 2


def test_only_a_token_for_the_service_is_accepted_unless_everyone_may_invoke_it(client, clock) -> None:
    service = done(clock, begin(client))
    assert ask(service.uri, "").status_code == 403
    assert ask(service.uri, "sandbox-access-token").status_code == 401
    assert ask(service.uri, token_for("https://another.run.app")).status_code == 401
    assert ask(service.uri, token_for(service.urls[0])).status_code == 200
    policy = {"bindings": [{"role": "roles/run.invoker", "members": ["allUsers"]}]}
    client.set_iam_policy(request={"resource": service.name, "policy": policy})
    assert client.get_iam_policy(request={"resource": service.name}).bindings[0].members == ["allUsers"]
    assert ask(service.uri, "").status_code == 200


def test_with_a_minimum_of_zero_an_instance_starts_with_a_request_and_ends_when_idle(
    client, sandbox, clock
) -> None:
    uri = done(clock, begin(client, least=0)).uri
    assert sandbox.bill.running == []
    [started] = sandbox.bill.lines
    assert started.seconds == 60, "one is started to see whether it does"
    token = token_for(uri)
    assert ask(uri, token).status_code == 503
    assert len(sandbox.bill.running) == 1
    clock.advance(89)
    assert ask(uri, token).status_code == 503
    clock.advance(1)
    assert ask(uri, token).status_code == 200
    clock.advance(800)
    assert ask(uri, token).status_code == 200
    clock.advance(899)
    assert len(sandbox.bill.running) == 1
    clock.advance(1000)
    assert sandbox.bill.running == []
    assert sandbox.bill.lines[-1].seconds == 90 + 800 + 900
    assert ask(uri, token).status_code == 503


def test_minimum_instances_are_billed_until_the_service_is_deleted(client, sandbox, clock) -> None:
    service = done(clock, begin(client, least=2, most=2), seconds=60)
    assert [(one.kind, one.gpu, one.gpus) for one in sandbox.bill.running] == [
        ("run.instance", "NVIDIA_L4", 1)
    ] * 2
    clock.advance(3600)
    ended = clock()
    done(clock, client.delete_service(name=service.name))
    assert sandbox.bill.gpu_minutes() == pytest.approx(2 * 62)
    assert sandbox.bill.gpu_minutes(after=ended + 60) == 0
    assert sandbox.bill.usd == pytest.approx(2 * L4_USD * 3720 / 3600)
    [line, *_] = sandbox.bill.lines
    assert (line.name, line.location, dict(line.labels)) == (service.name, LOCATION, {"llmbeam-key": "x"})


def test_a_patch_scales_to_zero_and_leaves_the_rest(client, sandbox, clock) -> None:
    service = done(clock, begin(client))
    service.template.scaling.min_instance_count = 0
    operation = client.update_service(service=service, update_mask={"paths": ["template.scaling"]})
    with pytest.raises(Conflict, match="under way"):
        client.delete_service(name=service.name)
    changed = done(clock, operation)
    assert (changed.generation, changed.template.scaling.max_instance_count) == (2, 1)
    assert changed.template.containers[0].args == ["--model=google/gemma-3-4b-it"]
    assert sandbox.bill.running == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpu": "nvidia-tesla-t4"}, "'nvidia-tesla-t4' is not supported"),
        ({"cpu": "2"}, "at least 4 CPU and 16Gi"),
        ({"gpu": "nvidia-rtx-pro-6000"}, "at least 20 CPU and 80Gi"),
        ({"least": 2, "most": 1}, "below min_instance_count"),
        ({"most": 4}, "do not have quota for using GPUs without zonal redundancy"),
        ({"labels": {"A": "x"}}, "invalid"),
    ],
    ids=["gpu", "cpu", "rtx", "scaling", "quota", "labels"],
)
def test_an_invalid_service_is_refused_before_anything_is_billed(client, sandbox, fields, words) -> None:
    with pytest.raises(BadRequest, match=words):
        begin(client, **fields)
    assert (sandbox.services, sandbox.bill.running, sandbox.bill.lines) == ([], [], [])


def test_a_region_without_the_gpu_and_a_wrong_id_are_refused(client) -> None:
    with pytest.raises(BadRequest, match="not available in region us-west1"):
        client.create_service(parent="projects/p/locations/us-west1", service=spec(), service_id="x")
    for own in ("1a", "a" * 50, "A"):
        with pytest.raises(BadRequest, match="service_id"):
            begin(client, own)


def test_a_name_can_be_used_only_once(client) -> None:
    begin(client)
    with pytest.raises(Conflict, match="already exists"):
        begin(client)


@pytest.mark.parametrize(
    ("fields", "fault", "error", "words"),
    [
        ({"token": ""}, None, FailedPrecondition, "container failed to start.*gated repo"),
        ({"model": "nobody/x"}, None, FailedPrecondition, "not a valid model identifier"),
        ({}, Fault(kind="stock-out"), ResourceExhausted, "does not have enough resources available"),
        ({}, Fault(kind="operation-error", http_status=403, message="no image"), Forbidden, "no image"),
    ],
    ids=["gated", "unknown", "stock-out", "error"],
)
def test_a_service_that_fails_to_start_remains_and_is_billed_until_the_failure(
    client, sandbox, clock, fields, fault, error, words
) -> None:
    if fault is not None:
        sandbox.faults.queue("run.services.create", fault)
    with pytest.raises(error, match=f"(?s){words}"):
        done(clock, begin(client, **fields))
    left = client.get_service(name=f"{PARENT}/services/gemma")
    assert left.terminal_condition.state == run_v2.Condition.State.CONDITION_FAILED
    assert left.uri == ""
    assert sandbox.bill.running == []
    assert [line.seconds for line in sandbox.bill.lines] == [60]


def test_operations_are_attached_to_again(client, clock) -> None:
    name = begin(client).operation.name
    assert not client.get_operation({"name": name}).done
    clock.advance(60)
    assert client.wait_operation({"name": name}).done
    assert [one.name for one in client.list_operations({"name": PARENT}).operations] == [name]
    client.delete_operation({"name": name})
    with pytest.raises(NotFound, match="Operation"):
        client.get_operation({"name": name})


def test_a_held_operation_runs_until_the_release_regardless_of_the_clock(client, sandbox, clock) -> None:
    hold = sandbox.faults.hold("run.services.create")
    operation = begin(client)
    clock.advance(3600)
    assert not operation.done(retry=None)
    assert hold.waiting == 1
    hold.release()
    assert done(clock, operation, seconds=0).terminal_condition.state == run_v2.Condition.State.CONDITION_SUCCEEDED
    assert hold.waiting == 0


def test_a_delete_may_be_refused_and_a_create_be_slow(client, sandbox, clock) -> None:
    sandbox.faults.queue("run.services.create", Fault(kind="slow", after_seconds=300))
    operation = begin(client)
    clock.advance(299)
    assert not operation.done(retry=None)
    service = done(clock, operation, seconds=1)
    sandbox.faults.queue("run.services.delete", Fault(kind="error", http_status=403))
    with pytest.raises(Forbidden):
        client.delete_service(name=service.name)
    sandbox.faults.queue("run.services.create", Fault(kind="quota"))
    with pytest.raises(BadRequest, match="quota"):
        begin(client, "second")


def test_a_cpu_service_costs_nothing_here_but_is_on_the_bill(client, sandbox, clock) -> None:
    done(clock, begin(client, gpu="", cpu="8", token="", model="Qwen/Qwen3-0.6B"))
    [running] = sandbox.bill.running
    assert (running.gpu, running.gpus, running.usd_per_hour) == ("", 0, 0)


def test_a_secret_that_a_container_references_must_exist(client, sandbox, clock) -> None:
    service = spec(token="")
    reference = {"secret": "projects/llmbeam-sandbox/secrets/hf", "version": "latest"}
    service["template"]["containers"][0]["env"] = [
        {"name": "HF_TOKEN", "value_source": {"secret_key_ref": reference}}
    ]
    with pytest.raises(FailedPrecondition, match="secrets/hf/versions/latest was not found"):
        done(clock, client.create_service(parent=PARENT, service=service, service_id="without"))
    with secretmanager.SecretManagerServiceClient(transport="rest") as secrets:
        made = secrets.create_secret(
            parent="projects/llmbeam-sandbox", secret_id="hf", secret={"replication": {"automatic": {}}}
        )
        secrets.add_secret_version(parent=made.name, payload={"data": b"hf_x"})
    assert done(clock, client.create_service(parent=PARENT, service=service, service_id="with")).uri


def test_a_failed_update_keeps_the_previous_revision_serving(client, sandbox, clock) -> None:
    service = done(clock, begin(client))
    service.template.containers[0].args = ["--model=nobody/x"]
    with pytest.raises(FailedPrecondition, match="not a valid model identifier"):
        done(clock, client.update_service(service=service))
    token = token_for(service.uri)
    assert ask(service.uri, token, "/v1/models").json()["data"][0]["id"] == "google/gemma-3-4b-it"
    assert len(sandbox.bill.running) == 1


def test_an_impersonated_account_gets_identity_tokens_too(client, clock) -> None:
    uri = done(clock, begin(client)).uri
    source, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    target = impersonated_credentials.Credentials(
        source_credentials=source, target_principal="invoker@p.iam.gserviceaccount.com", target_scopes=["x"]
    )
    token = impersonated_credentials.IDTokenCredentials(target, target_audience=uri, include_email=True)
    token.refresh(Request())
    assert ask(uri, token.token).status_code == 200
    assert ask(uri, token.token, "/docs").status_code == 404


@pytest.mark.parametrize(
    "container",
    [
        {"resources": {}},
        {"image": "x", "resources": {"limits": {"cpu": "many", "nvidia.com/gpu": "1"}}},
        {"image": "x", "resources": {"limits": {"cpu": "4", "memory": "16Xi", "nvidia.com/gpu": "1"}}},
        {"image": "x", "resources": {"limits": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2"}}},
        {
            "image": "x",
            "resources": {"limits": {"cpu": "4000m", "memory": "16Gi", "nvidia.com/gpu": "1"}, "cpu_idle": True},
        },
        {"image": "x"},
    ],
    ids=["image", "cpu", "memory", "gpus", "idle", "selector"],
)
def test_a_container_that_contradicts_itself_is_refused(client, container) -> None:
    service = spec()
    service["template"]["containers"] = [container]
    with pytest.raises(BadRequest, match="Violation"):
        client.create_service(parent=PARENT, service=service, service_id="x")


@pytest.mark.parametrize(
    ("limits", "concurrency", "words"),
    [
        ({"cpu": "5", "memory": "16Gi"}, 64, "5 CPU is none of 1, 2, 4, 6, 8"),
        ({"cpu": "4", "memory": "32Gi"}, 64, "with 4 CPU, memory must be at most 16Gi"),
        ({"cpu": "8", "memory": "32Gi"}, 1001, "the concurrency must be 1 to 1000"),
    ],
    ids=["cpu", "memory", "concurrency"],
)
def test_values_that_are_not_documented_are_refused(client, limits, concurrency, words) -> None:
    service = spec()
    service["template"]["containers"][0]["resources"]["limits"] |= limits
    service["template"]["max_instance_request_concurrency"] = concurrency
    with pytest.raises(BadRequest, match=words):
        client.create_service(parent=PARENT, service=service, service_id="x")


def test_a_failed_service_has_a_documented_reason(client, sandbox, clock) -> None:
    service = spec(token="")
    reference = {"secret": "projects/llmbeam-sandbox/secrets/none", "version": "latest"}
    service["template"]["containers"][0]["env"] = [
        {"name": "HF_TOKEN", "value_source": {"secret_key_ref": reference}}
    ]
    client.create_service(parent=PARENT, service=service, service_id="secret")
    for name, status in (("denied", 403), ("failed", 500)):
        sandbox.faults.queue("run.services.create", Fault(kind="operation-error", http_status=status))
        begin(client, name, model="Qwen/Qwen3-0.6B", token="")
    clock.advance(60)
    found = {
        name: client.get_service(name=f"{PARENT}/services/{name}").terminal_condition.reason.name
        for name in ("secret", "denied", "failed")
    }
    assert found == {
        "secret": "SECRETS_ACCESS_CHECK_FAILED",
        "denied": "CONTAINER_PERMISSION_DENIED",
        "failed": "REVISION_FAILED",
    }
