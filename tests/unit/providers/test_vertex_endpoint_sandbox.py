from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import aiplatform_v1 as v1
from llmbeam_sandbox import EndpointSettings, ManualClock, Proxy, Sandbox

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.providers.vertex_endpoint.client import open_backend
from airflow_provider_llmbeam.spec import Generation, VertexEndpointModel
from tests.clouds import use_environment

LOCATION = "europe-west4"
PARENT = f"projects/llmbeam-sandbox/locations/{LOCATION}"


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def served(clock: ManualClock) -> Iterator[tuple[Sandbox, Proxy]]:
    with Sandbox(clock=clock, endpoints=EndpointSettings(warm_seconds=30)) as sandbox, Proxy(sandbox) as proxy:
        yield sandbox, proxy


@pytest.fixture(autouse=True)
def _on_google_cloud(served: tuple[Sandbox, Proxy], monkeypatch: pytest.MonkeyPatch) -> None:
    running, proxy = served
    running.reset()
    use_environment(monkeypatch, proxy.environment())
    # aiohttp reads SSL_CERT_FILE when it is imported.
    context = ssl.create_default_context(cafile=str(proxy.directory / "ca.pem"))
    monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", context)


def bring_up(*, is_dedicated: bool = False, is_deployed: bool = True) -> Any:
    options = {"api_endpoint": f"{LOCATION}-aiplatform.googleapis.com"}
    endpoints = v1.EndpointServiceClient(transport="rest", client_options=options)
    models = v1.ModelServiceClient(transport="rest", client_options=options)
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
    return made


def ask(
    made: Any,
    request_format: str,
    *prompts: str,
    is_dedicated: bool = False,
    fields: dict[str, Any] | None = None,
    **generation: Any,
) -> list[Any]:
    base_url = f"https://{made.dedicated_endpoint_dns}" if is_dedicated else None
    given = {"type": "vertex_endpoint", "name": "gemma", "endpoint": made.name, "base_url": base_url}
    model = VertexEndpointModel.parse(given | (fields or {}) | {"request_format": request_format})

    async def main() -> list[Any]:
        backend = open_backend(model, Generation(**generation), None)
        found: list[Any] = []
        try:
            if request_format == "instances":
                found = await backend.complete_batch([Prompt(text) for text in prompts])  # type: ignore[attr-defined]
            else:
                found = [await backend.complete(Prompt(text)) for text in prompts]
        except RequestError as error:
            found = [error]
        await backend.aclose()
        return found

    return asyncio.run(main())


@pytest.mark.parametrize("is_dedicated", [False, True], ids=["shared", "dedicated"])
@pytest.mark.parametrize("request_format", ["chat", "instances", "raw"])
def test_each_format_is_answered_on_both_kinds_of_address(
    clock: ManualClock, request_format: str, is_dedicated: bool
) -> None:
    made = bring_up(is_dedicated=is_dedicated)
    clock.advance(30)
    rivers = [f"Name river number {number}" for number in range(3)]
    replies = ask(made, request_format, *rivers, is_dedicated=is_dedicated)
    assert [isinstance(reply, Reply) for reply in replies] == [True] * 3, replies
    assert len({reply.text for reply in replies}) == 3
    assert all(f"{number}" in reply.text and reply.tokens.input > 0 for number, reply in enumerate(replies))


@pytest.mark.parametrize("request_format", ["chat", "instances", "raw"])
def test_the_answers_of_two_deployed_models_have_the_name_of_the_one_that_answered(
    clock: ManualClock, request_format: str
) -> None:
    made = bring_up()
    endpoints = v1.EndpointServiceClient(
        transport="rest", client_options={"api_endpoint": f"{LOCATION}-aiplatform.googleapis.com"}
    )
    (first,) = endpoints.get_endpoint(name=made.name).deployed_models
    second = {"id": "2", "model": first.model, "dedicated_resources": first.dedicated_resources}
    split = {first.id: 50, "0": 50}
    endpoints.deploy_model(endpoint=made.name, deployed_model=second, traffic_split=split).result()
    clock.advance(30)
    fields = {"deployed_models": {first.id: "moods@3", "2": "moods@4"}, "chat_route": "raw_predict"}
    found = {
        reply.model for number in range(20) for reply in ask(made, request_format, f"Say {number}", fields=fields)
    }
    assert found == {"moods@3", "moods@4"}


def test_a_chat_is_streamed(clock: ManualClock) -> None:
    made = bring_up()
    clock.advance(30)
    (reply,) = ask(made, "chat", "Name a river", stream=True)
    assert reply.first_token_seconds is not None


@pytest.mark.parametrize("request_format", ["chat", "instances", "raw"])
def test_a_model_that_is_warming_up_gives_a_server_error(request_format: str) -> None:
    (error,) = ask(bring_up(), request_format, "a")
    assert (error.kind, error.http_status) == ("server_error", 503)


@pytest.mark.parametrize("request_format", ["chat", "instances", "raw"])
def test_an_endpoint_without_a_deployed_model_is_an_error(request_format: str) -> None:
    (error,) = ask(bring_up(is_deployed=False), request_format, "a")
    assert error.kind == "not_found"
    assert "does not exist, or has no deployed model" in error.message


def test_a_dedicated_endpoint_is_not_found_at_the_shared_address(clock: ManualClock) -> None:
    made = bring_up(is_dedicated=True)
    clock.advance(30)
    (error,) = ask(made, "chat", "a")
    assert error.kind == "not_found"
    assert "Set `base_url`" in error.message
