from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import aiohttp
import httpx
import llmbeam_sandbox as package
import pytest
from llmbeam_sandbox import Fault, Latency, ModelSettings, Proxy, Quota, Sandbox
from waiting import scaled, until

PATH = "/v1beta/models/gemini-2.5-flash:generateContent?key=k"
BODY = {"contents": [{"parts": [{"text": "hi"}]}]}


def test_health_answers_ok(http: httpx.Client) -> None:
    assert http.get("/").text == "OK"


def test_the_server_listens_on_loopback_only(sandbox: Sandbox) -> None:
    assert sandbox.url == f"http://127.0.0.1:{sandbox.port}"
    assert sandbox.openai_url == f"{sandbox.url}/v1"


@pytest.mark.parametrize("kind", ["hang", "hold"])
def test_the_server_stops_at_once_while_a_request_waits(kind: str) -> None:
    with Sandbox() as running:
        hold = running.faults.hold("gemini.generateContent")
        if kind == "hang":
            running.faults.queue("gemini.generateContent", Fault(kind="hang"))
        outcome: list[BaseException] = []

        def call() -> None:
            try:
                httpx.post(running.url + PATH, json=BODY, timeout=scaled(60))
            except httpx.HTTPError as error:
                outcome.append(error)

        caller = threading.Thread(target=call)
        caller.start()
        until(lambda: len(running.requests) or hold.waiting, "the request has come")
    caller.join(timeout=scaled(60))
    assert [type(error) for error in outcome] == [httpx.RemoteProtocolError], "the server ended it, no timeout did"


def test_a_held_request_is_answered_and_billed_after_the_release() -> None:
    with Sandbox() as running, ThreadPoolExecutor(1) as pool:
        hold = running.faults.hold("gemini.generateContent")
        answer = pool.submit(httpx.post, running.url + PATH, json=BODY, timeout=60)
        until(lambda: hold.waiting, "the request is held")
        assert not answer.done()
        assert running.requests.paid() == {}
        hold.release()
        assert answer.result().status_code == 200
        assert running.requests.paid().total() == 1
        assert hold.waiting == 0


def test_a_held_request_whose_client_has_disconnected_is_not_billed() -> None:
    with Sandbox() as running:
        hold = running.faults.hold("gemini.generateContent")
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(running.url + PATH, json=BODY, timeout=0.1)
        until(lambda: not hold.waiting, "the request is given up")
        hold.release()
        assert [record.http_status for record in running.requests] == [None]
        assert running.requests.paid() == {}


def test_a_held_storage_request_waits_before_its_work_is_done() -> None:
    with Sandbox(buckets=("rows",)) as running, ThreadPoolExecutor(1) as pool:
        hold = running.faults.hold("storage.objects.get", "report.json")
        url = f"{running.authorized_url}/storage/v1/b/rows/o/report.json"
        answer = pool.submit(httpx.get, url, timeout=60)
        until(lambda: hold.waiting, "the request is held")
        upload = {"uploadType": "media", "name": "report.json"}
        httpx.post(
            f"{running.authorized_url}/upload/storage/v1/b/rows/o", params=upload, content="{}"
        ).raise_for_status()
        hold.release()
        assert answer.result().status_code == 200


def test_an_answer_whose_client_has_disconnected_is_billed() -> None:
    with Sandbox(models=ModelSettings(latency=Latency(mean_seconds=0.15))) as slow:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(slow.url + PATH, json=BODY, timeout=0.03)
        until(lambda: len(slow.requests), "the answer is there")
        assert slow.requests.paid().total() == 1


def test_requests_in_flight_wait_concurrently() -> None:
    async def go(url: str) -> None:
        async with aiohttp.ClientSession() as session:

            async def call() -> None:
                async with session.post(url + PATH, json=BODY) as response:
                    assert response.status == 200
                    await response.read()

            await asyncio.gather(*[call() for _ in range(50)])

    with Sandbox() as running, ThreadPoolExecutor(1) as pool:
        hold = running.faults.hold("gemini.generateContent")
        answered = pool.submit(asyncio.run, go(running.url))
        until(lambda: hold.waiting == 50, "all requests are held")
        hold.release()
        answered.result()
        assert running.stats()["max_in_flight"] == 50


def test_an_answer_takes_time_per_output_token() -> None:
    with Sandbox(models=ModelSettings(latency=Latency(per_output_token_seconds=0.01))) as slow:
        for verb, extra in (("generateContent", ""), ("streamGenerateContent", "&alt=sse")):
            began = time.monotonic()
            httpx.post(slow.url + PATH.replace("generateContent", verb) + extra, json=BODY)
            assert time.monotonic() - began >= 0.01 * slow.requests[-1].output_tokens


def test_reset_clears_requests_faults_and_quota() -> None:
    with Sandbox(models=ModelSettings(quota=Quota(requests_per_minute=1))) as limited:
        statuses = [httpx.post(limited.url + PATH, json=BODY).status_code for _ in range(2)]
        limited.faults.queue("gemini.generateContent", Fault(kind="error"))
        limited.reset()
        assert (len(limited.requests), limited.faults.left(), limited.stats()["max_in_flight"]) == (0, {}, 0)
        statuses.append(httpx.post(limited.url + PATH, json=BODY).status_code)
    assert statuses == [200, 429, 200]


def test_the_server_can_be_started_again_on_the_same_port() -> None:
    server = Sandbox()
    with server:
        port = server.port
        with pytest.raises(RuntimeError, match="already running"):
            server.start()
    with server:
        assert server.port == port
        assert httpx.get(server.url).text == "OK"
    server.stop()


@pytest.mark.parametrize(
    ("kind", "starts"),
    [(Sandbox, 8), (lambda: Proxy(Sandbox()), 2)],  # a proxy makes certificates, for half a second
    ids=["sandbox", "proxy"],
)
def test_connections_that_arrive_while_a_server_stops_are_closed(
    kind: Callable[[], Sandbox | Proxy], starts: int, monkeypatch
) -> None:
    left: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", left.append)
    for _ in range(starts):
        with kind() as running:
            address = ("127.0.0.1", urlsplit(running.url).port)
            clients = [threading.Thread(target=_connect_until_refused, args=(address,)) for _ in range(4)]
            for client in clients:
                client.start()
        for client in clients:
            client.join()
    gc.collect()
    assert left == []


def _connect_until_refused(address: tuple[str, int]) -> None:
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        for _ in range(100):
            opened.enter_context(socket.create_connection(address, timeout=1))


def test_a_taken_port_is_an_error(sandbox: Sandbox) -> None:
    with pytest.raises(OSError, match=r"(?i)address already in use"):
        Sandbox(port=sandbox.port).start()


def test_a_number_out_of_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`port` must be .*; got -1"):
        Sandbox(port=-1)
    with pytest.raises(ValueError, match=r"`ModelSettings\.input_token_limit` must be .*; got -1"):
        ModelSettings(input_token_limit=-1)
    with pytest.raises(ValueError, match=r"`bigquery_job_seconds` must be >= 0; got -1"):
        Sandbox(bigquery_job_seconds=-1)


def test_every_exported_name_exists_and_importing_the_package_is_cheap() -> None:
    assert all(getattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018
    code = "import sys, llmbeam_sandbox; print('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"False\n"
