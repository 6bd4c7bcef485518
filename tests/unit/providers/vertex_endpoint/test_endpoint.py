from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from airflow_provider_llmbeam.engine.backend import Reply, StaticBackend
from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError, RetryPolicy
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.providers.reported import UsageReader
from airflow_provider_llmbeam.providers.vertex_endpoint.client import (
    VertexInstances,
    _reply,
    error_of,
    open_backend,
)
from airflow_provider_llmbeam.spec import Generation, VertexEndpointModel
from tests.asking import ask_each

ENDPOINT = "projects/p/locations/us-central1/endpoints/llmbeam-1"
Answer = Callable[[str, dict[str, Any]], Any]


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = tmp_path / "adc.json"
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    key.write_text(json.dumps(user | {"token": "t", "expiry": "2199-01-01T00:00:00Z", "quota_project_id": "p"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))


def model(base_url: str | None = None, request_format: str = "chat") -> VertexEndpointModel:
    return VertexEndpointModel.parse(
        {
            "type": "vertex_endpoint",
            "name": "gemma-3-4b-it",
            "endpoint": ENDPOINT,
            "base_url": base_url,
            "request_format": request_format,
        }
    )


async def with_endpoint(answer: Answer, body: Callable[[str], Awaitable[Any]]) -> Any:
    """Runs `body` beside an endpoint that answers with JSON, or with a response."""

    async def handle(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer t"
        assert request.content_type == "application/json"
        found = answer(request.path, await request.json())
        return found if isinstance(found, web.Response) else web.json_response(found)

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        return await body(f"http://{host}:{port}")
    finally:
        await runner.cleanup()


def ask(
    answer: Answer, *prompts: Prompt, request_format: str = "chat", generation: Generation | None = None
) -> list[Reply | RequestError]:
    async def body(base_url: str) -> list[Reply | RequestError]:
        return await ask_each(
            open_backend(model(base_url, request_format), generation or Generation(), None), *prompts
        )

    return asyncio.run(with_endpoint(answer, body))  # type: ignore[no-any-return]


def outcomes(answer: Answer, count: int, max_bytes: int | None = None) -> list[Completion | Failure]:
    """Sends rows through the engine, several per request."""

    async def body(base_url: str) -> list[Completion | Failure]:
        backend = VertexInstances(model(base_url, "instances"), Generation())
        if max_bytes is not None:
            backend._max_bytes = max_bytes
        engine = Engine(
            backend,
            governor=Governor(requests_per_minute=1e9),
            buckets=LengthBuckets((128,), 64),
            parser=OutputParser(None),
            policy=RetryPolicy(2, 10),
            max_in_flight=4,
            request_timeout_seconds=5,
            batching=backend.limits,
        )
        try:
            return list(await engine.answer([Prompt(f"row {number}") for number in range(count)]))
        finally:
            await engine.aclose()

    return asyncio.run(with_endpoint(answer, body))  # type: ignore[no-any-return]


def chat(text: str = "Hi.") -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"model": "gemma", "choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}


def google_error(http_status: int, message: str, **headers: str) -> web.Response:
    error = {"code": http_status, "message": message, "status": "ANY"}
    return web.json_response({"error": error}, status=http_status, headers=headers)


def test_a_chat_is_sent_below_the_endpoints_name_without_a_model() -> None:
    seen: list[Any] = []
    (reply,) = ask(lambda *request: seen.append(request) or chat(), Prompt("Hello", system="Be brief."))
    assert reply == Reply(text="Hi.", finish_reason="stop", tokens=Tokens(5, 2), model="gemma")
    ((path, body),) = seen
    assert path == f"/v1/{ENDPOINT}/chat/completions"
    assert body["model"] == ""
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


@pytest.mark.parametrize("end", ["data: [DONE]\n\n", ""], ids=["done line", "no done line"])
def test_a_streamed_chat_needs_no_done_line(end: str) -> None:
    pieces = [
        {"choices": [{"delta": {"content": "Hi"}}]},
        {"choices": [{"delta": {"content": "."}, "finish_reason": "length"}]},
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
    ]
    text = "".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces) + end
    (reply,) = ask(lambda *_: web.Response(text=text), Prompt("Hello"), generation=Generation(stream=True))
    assert isinstance(reply, Reply)
    assert (reply.text, reply.finish_reason, reply.tokens.output) == ("Hi.", "max_tokens", 2)
    assert reply.first_token_seconds is not None


def test_a_streamed_chat_that_the_server_breaks_off_is_no_answer() -> None:
    chunk = {"choices": [{"delta": {"content": "The contract ends on 3"}, "finish_reason": "abort"}]}
    text = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    (found,) = ask(lambda *_: web.Response(text=text), Prompt("Hello"), generation=Generation(stream=True))
    assert isinstance(found, RequestError)
    assert (found.kind, found.http_status) == ("garbage", 200)


def test_a_stream_that_ends_before_its_answer_does_is_broken() -> None:
    text = 'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\ndata: [DONE]\n\n'
    (error,) = ask(lambda *_: web.Response(text=text), Prompt("Hello"), generation=Generation(stream=True))
    assert isinstance(error, RequestError)
    assert error.kind == "connection"


def test_several_prompts_share_a_predict_request_and_each_gets_its_own_answer() -> None:
    seen: list[Any] = []

    def answer(path: str, body: dict[str, Any]) -> Any:
        seen.append((path, body))
        return {"predictions": [instance["prompt"].upper() for instance in body["instances"]]}

    found = outcomes(answer, 70)
    assert [outcome.text for outcome in found if isinstance(outcome, Completion)] == [
        f"ROW {n}" for n in range(70)
    ]
    assert [len(body["instances"]) for _, body in seen] == [32, 32, 6]
    assert {path for path, _ in seen} == {f"/v1/{ENDPOINT}:predict"}
    first = seen[0][1]["instances"][0]
    assert first.keys() == {"prompt", "max_tokens", "raw_response"}  # the server chooses the temperature


@pytest.mark.parametrize(
    "wrong",
    [
        lambda good: good[:-1],
        lambda good: [*good, "one more"],
        lambda good: [],
        lambda good: None,
        lambda good: {"0": "a"},
    ],
    ids=["one too few", "one too many", "none", "null", "an object"],
)
def test_a_wrong_number_of_predictions_is_an_error(wrong: Callable[[list[str]], Any]) -> None:
    def answer(_: str, body: dict[str, Any]) -> Any:
        return {"predictions": wrong([instance["prompt"] for instance in body["instances"]])}

    found = outcomes(answer, 3)
    assert [outcome.kind for outcome in found if isinstance(outcome, Failure)] == ["garbage"] * 3
    assert sum(outcome.attempts for outcome in found) == 2
    assert "for 3 instances" in str(found[0])


def test_a_prediction_that_cannot_be_read_fails_only_its_row() -> None:
    found = outcomes(lambda *_: {"predictions": ["one", {"error": "too long"}, "three"]}, 3)
    assert [getattr(outcome, "text", None) for outcome in found] == ["one", None, "three"]
    assert isinstance(found[1], Failure)
    assert found[1].kind == "garbage"


def test_rows_whose_answers_a_server_breaks_off_as_it_shuts_down_are_sent_again() -> None:
    requests: list[int] = []

    def answer(_: str, body: dict[str, Any]) -> Any:
        requests.append(len(body["instances"]))
        text, reason = (
            ("The contract ends on 3", "abort") if len(requests) == 1 else ("It ends on 31 May.", "stop")
        )
        choice = {"text": text, "finish_reason": reason}
        return {"predictions": [{"choices": [choice]} for _ in body["instances"]]}

    found = outcomes(answer, 3)
    assert [getattr(outcome, "text", None) for outcome in found] == ["It ends on 31 May."] * 3
    assert requests == [3, 3]


def test_one_bad_prompt_does_not_fail_its_neighbours() -> None:
    def answer(_: str, body: dict[str, Any]) -> Any:
        prompts = [instance["prompt"] for instance in body["instances"]]
        return google_error(400, "bad row") if "row 5" in prompts else {"predictions": prompts}

    found = outcomes(answer, 8)
    assert [isinstance(outcome, Completion) for outcome in found] == [number != 5 for number in range(8)]


def test_a_request_larger_than_the_endpoint_takes_is_sent_in_halves() -> None:
    sizes: list[int] = []

    def answer(_: str, body: dict[str, Any]) -> Any:
        sizes.append(len(json.dumps(body)))
        return {"predictions": [instance["prompt"] for instance in body["instances"]]}

    found = outcomes(answer, 16, max_bytes=500)
    assert all(isinstance(outcome, Completion) for outcome in found)
    assert len(sizes) > 1
    assert max(sizes) <= 500


def test_a_prompt_larger_than_the_endpoint_takes_is_refused_before_it_is_sent() -> None:
    seen: list[Any] = []
    backend = open_backend(model(None, "raw"), Generation(), None)
    with pytest.raises(
        RequestError, match=r"1,500,\d\d\d bytes, and the endpoint takes at most 1,500,000; nothing"
    ):
        asyncio.run(backend.complete(Prompt("a" * 1_500_000)))
    (reply,) = ask(
        lambda *request: seen.append(request) or {"predictions": ["fits"]},
        Prompt("é" * 1_500_000),
        request_format="raw",
    )
    assert getattr(reply, "text", reply) == "fits"  # a dedicated address takes 10 MB


@pytest.mark.parametrize(
    ("body", "text", "tokens"),
    [
        ({"predictions": ["Hi."]}, "Hi.", (2, 1)),
        ({"predictions": ["Prompt:\nHello\nOutput:\nHi."]}, "Hi.", (2, 1)),
        ({"predictions": [{"content": "Hi."}]}, "Hi.", (2, 1)),
        ({"text": ["HelloHi."]}, "Hi.", (2, 1)),
        ({"text": "Hi."}, "Hi.", (2, 1)),
        ({"choices": [{"text": "Hi."}], "usage": {"prompt_tokens": 5, "completion_tokens": 6}}, "Hi.", (5, 6)),
        (chat(), "Hi.", (5, 2)),
    ],
    ids=str,
)
def test_each_reply_format_of_a_raw_request_is_read(body: Any, text: str, tokens: tuple[int, int]) -> None:
    (reply,) = ask(lambda *_: body, Prompt("Hello"), request_format="raw")
    assert isinstance(reply, Reply)
    assert (reply.text, (reply.tokens.input, reply.tokens.output)) == (text, tokens)


def test_a_raw_request_is_the_prompt_and_its_parameters() -> None:
    seen: list[Any] = []
    generation = Generation(max_output_tokens=7, temperature=0.0, top_p=0.5, seed=3, stop_sequences=("END",))
    ask(
        lambda *request: seen.append(request) or {"predictions": ["a"]},
        Prompt("Hello", system="Be brief."),
        request_format="raw",
        generation=generation,
    )
    parameters = {"max_tokens": 7, "temperature": 0.0, "top_p": 0.5, "seed": 3, "stop": ["END"]}
    assert seen == [(f"/v1/{ENDPOINT}:rawPredict", {"prompt": "Be brief.\n\nHello", **parameters})]


@pytest.mark.parametrize("request_format", ["instances", "raw"])
@pytest.mark.parametrize("body", ["<html>", "[]", "null", "{}", "[" * 100_000], ids=lambda b: b[:9])
def test_a_200_that_is_no_answer_is_garbage(request_format: str, body: str) -> None:
    (error,) = ask(lambda *_: web.Response(text=body), Prompt("Hello"), request_format=request_format)
    assert isinstance(error, RequestError)
    assert (error.kind, error.http_status) == ("garbage", 200)


@pytest.mark.parametrize("request_format", ["chat", "instances", "raw"])
@pytest.mark.parametrize(
    ("response", "kind", "seconds"),
    [
        ((429, "Quota exceeded", {"Retry-After": "7"}), "throttled", 7.0),
        ((503, "warming up", {"Retry-After": "soon"}), "server_error", None),
        ((500, "oops", {}), "server_error", None),
        ((400, "too long", {}), "bad_request", None),
        ((401, "no token", {}), "unauthorized", None),
        ((403, "no permission", {}), "unauthorized", None),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, tuple) else "",
)
def test_each_fault_has_its_kind_in_every_request_format(
    request_format: str, response: tuple[int, str, dict[str, str]], kind: str, seconds: float | None
) -> None:
    status, words, headers = response
    seen: list[Any] = []
    (error,) = ask(
        lambda *request: seen.append(request) or google_error(status, words, **headers),
        Prompt("Hello"),
        request_format=request_format,
    )
    assert isinstance(error, RequestError)
    assert (error.kind, error.http_status, error.retry_after_seconds) == (kind, status, seconds)
    assert words in error.message
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (404, "The Endpoint does not exist."),
        (400, "Endpoint projects/1/locations/us-central1/endpoints/llmbeam-1 doesn't have traffic_split."),
        (400, "The endpoint has no deployed model."),
    ],
)
def test_the_error_names_an_endpoint_without_a_deployed_model(status: int, words: str) -> None:
    error = error_of(model(), status, {}, json.dumps({"error": {"message": words}}))
    assert (error.kind, error.http_status) == ("not_found", status)
    assert error.message.startswith(f"{words.rstrip('.')}. {ENDPOINT} does not exist, or has no deployed model")
    assert "gcloud ai endpoints list" in error.message


def test_an_endpoint_with_dedicated_dns_differs_from_a_missing_one() -> None:
    words = (
        "Dedicated Endpoint cannot be accessed through the shared Vertex AI domain aiplatform.googleapis.com. "
        "Please access the endpoint using its dedicated domain name '1.us-central1-2.prediction.vertexai.goog'"
    )
    error = error_of(model(), 400, {}, json.dumps({"error": {"message": words}}))
    assert error.kind == "not_found"
    assert error.message.endswith("goog'. Set `base_url` to https:// and that name.")


def test_a_server_that_does_not_listen_is_a_connection_error() -> None:
    async def main() -> None:
        backend = open_backend(model("http://127.0.0.1:9"), Generation(), None)
        try:
            await backend.complete(Prompt("a"))
        finally:
            await backend.aclose()

    with pytest.raises(RequestError) as caught:
        asyncio.run(main())
    assert caught.value.kind == "connection"


@pytest.mark.parametrize("request_format", ["instances", "raw"])
def test_a_prompt_with_a_lone_surrogate_is_sent(request_format: str) -> None:
    (reply,) = ask(lambda *_: {"predictions": ["a"]}, Prompt("\ud83d"), request_format=request_format)
    assert isinstance(reply, Reply)


def test_only_the_instances_format_takes_several_prompts() -> None:
    kinds = {
        request_format: isinstance(open_backend(model(None, request_format), Generation(), None), StaticBackend)
        for request_format in ("chat", "instances", "raw")
    }
    assert kinds == {"chat": False, "instances": True, "raw": False}


@pytest.mark.parametrize("answer", ["Hello", "Hello, you.", "No, Hello"])
def test_an_answer_that_repeats_its_prompt_stays_whole(answer: str) -> None:
    assert _reply(answer, "Hello", "m", UsageReader("m")).text == answer
    assert _reply({"text": answer}, "Hello", "m", UsageReader("m")).text == answer


def test_an_unusual_finish_reason_of_one_prediction_fails_no_other_prompt() -> None:
    answer = {"text": "fine", "finish_reason": "repetition"}
    assert _reply(answer, "Hello", "m", UsageReader("m"), is_alone=False).text == "fine"
    with pytest.raises(RequestError, match="broken off"):
        _reply(answer, "Hello", "m", UsageReader("m"))
    with pytest.raises(RequestError, match="broken off"):
        _reply(answer | {"finish_reason": "abort"}, "Hello", "m", UsageReader("m"), is_alone=False)
