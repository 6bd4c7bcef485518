from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import logging
import math
import statistics
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from llmbeam_sandbox import Fault, FixedWindow, ModelSettings, Quota, Sandbox

from airflow_provider_llmbeam.endpoints.provisioning import ProvisioningHistory
from airflow_provider_llmbeam.exceptions import AccessDeniedError, JobSpecError
from airflow_provider_llmbeam.hooks.google.authentication import ModelAuthentication
from airflow_provider_llmbeam.hooks.llmbeam import open_model
from airflow_provider_llmbeam.hooks.probe import (
    MAX_UNANSWERED,
    Probe,
    Prober,
    ProbeReply,
    affordable,
    probe_cost_usd,
    read_reply,
)
from airflow_provider_llmbeam.polling.poller import poll_until_result
from airflow_provider_llmbeam.providers.probe import probe_request
from airflow_provider_llmbeam.spec import parse_endpoint
from airflow_provider_llmbeam.spec.endpoint.identity import endpoint_labels
from airflow_provider_llmbeam.spec.model import parse_model
from airflow_provider_llmbeam.spec.model.price import Price
from airflow_provider_llmbeam.triggers.endpoint import EndpointTrigger
from tests.replying import Replying, raw

GEMINI = {"type": "gemini"}
VERTEX = {"type": "gemini", "project": "llmbeam-sandbox"}
GENERATE = "gemini.generateContent"


@pytest.fixture
def probed(sandbox):
    """Returns a function that probes the sandbox with the connection of a task, without pauses."""

    def ask(model, requests=3, max_usd=math.inf, **settings):
        return prober(sandbox, model, **settings).probe(requests, max_usd)

    return ask


def prober(sandbox, model, **settings):
    url = {"gemini": sandbox.gemini_url, "openai": sandbox.openai_url}.get(model["type"])
    model = {"base_url": url, **model} if url else model
    parsed, access = open_model({name: value for name, value in model.items() if value is not None})
    return Prober(parsed, authenticate=access, **{"pause_seconds": 0.0, **settings})


def outcomes(probe):
    return [reply.outcome for reply in probe.replies]


def methods_sent(sandbox):
    return [record.method for record in sandbox.requests]


@pytest.mark.parametrize(
    ("model", "embeds", "method"),
    [
        (GEMINI, False, GENERATE),
        ({"type": "gemini", "name": "gemini-embedding-001"}, False, "gemini.batchEmbedContents"),
        ({"type": "openai", "name": "gemma"}, False, "openai.chatCompletions"),
        ({"type": "openai", "name": "text-embedding-3-small"}, True, "openai.embeddings"),
    ],
)
def test_a_model_with_a_key_is_probed_with_the_method_of_a_job(sandbox, probed, model, embeds, method):
    probe = probed(model, embeds=embeds)
    assert (probe.sent, probe.answered, probe.rejected, probe.failed) == (3, 3, 0, 0), probe.refusal
    assert methods_sent(sandbox) == [method] * 3
    assert probe.rejected_ratio == 0.0
    assert probe.median_seconds == statistics.median(reply.seconds for reply in probe.replies) > 0
    assert all(reply.message == "" and reply.http_status == 200 for reply in probe.replies)
    assert all(record.output_tokens <= 1 and record.input_tokens <= 10 for record in sandbox.requests)


@pytest.mark.parametrize(
    ("fields", "method"),
    [
        ({"location": "global"}, GENERATE),
        ({"location": "europe-west4"}, GENERATE),
        ({"name": "gemini-embedding-001"}, "gemini.predict"),
        ({"name": "text-embedding-005", "location": "us-central1"}, "gemini.predict"),
        ({"name": "gemini-embedding-2"}, "gemini.embedContent"),
    ],
)
def test_gemini_on_vertex_ai_is_probed_at_its_own_hosts_with_a_token(sandbox, google, probed, fields, method):
    probe = probed({**VERTEX, "base_url": None, **fields}, requests=1)
    assert outcomes(probe) == ["answered"], probe.refusal
    assert methods_sent(sandbox) == [method]


@pytest.mark.parametrize("kind", ["vertex", "cloud_run"])
def test_an_endpoint_is_probed_in_the_format_of_its_model_spec(sandbox, google, kind):
    fields = {
        "vertex": {"type": "vertex", "model": "google/gemma3@gemma-3-4b-it", "accept_eula": True},
        "cloud_run": {"type": "cloud_run", "model": "Qwen/Qwen3-4B"},
    }[kind]
    model = brought_up(google.project, fields)
    formats = ("chat", "instances", "raw") if kind == "vertex" else (None,)
    for request_format in formats:
        extra = {} if request_format is None else {"request_format": request_format}
        parsed, access = open_model({**model, **extra})
        probe = Prober(parsed, authenticate=access, pause_seconds=0).probe(2, max_usd=0.0)
        assert outcomes(probe) == ["answered"] * 2, (request_format, probe.refusal)
        assert probe.cost_usd is None, "it costs by the hour"


def brought_up(project, fields):
    spec = parse_endpoint({**fields, "project": project, "locations": ["us-central1"]})
    now = time.time()
    trigger = EndpointTrigger(
        endpoint=spec.model_dump(mode="json"),
        key="k-0123456789ab",
        labels=endpoint_labels(
            "k-0123456789ab", deployment="prod", expires_at=now + 60, dag_id="d", run_id="r", attempt="1"
        ),
        history=ProvisioningHistory(now).to_dict(),
        poll_interval_seconds=0.1,
    )
    ended = poll_until_result(trigger.make_poller(logging.getLogger(__name__)))
    assert ended.outcome == "ready", ended.message
    return ended.model


def test_an_echo_model_answers_without_a_request(sandbox, probed):
    probe = probed({"type": "echo"})
    assert (probe.answered, probe.cost_usd) == (3, 0.0)
    assert methods_sent(sandbox) == []


def test_a_rejection_has_the_advised_wait():
    began = time.time()
    with Sandbox(models=ModelSettings(quota=Quota(window=FixedWindow(requests=2, seconds=3600)))) as sandbox:
        probe = prober(sandbox, GEMINI).probe(9, 1.0)
    assert outcomes(probe) == ["answered"] * 2 + ["rejected"] * MAX_UNANSWERED
    assert probe.rejected_ratio == pytest.approx(3 / 5)
    refusal = probe.refusal
    assert (refusal.http_status, refusal.is_daily, refusal.is_final) == (429, False, False)
    assert 3600 - (time.time() - began) - 1 <= probe.retry_after_seconds <= 3600
    assert refusal.message.startswith("HTTP 429: You exceeded your current quota")
    assert "\n" not in refusal.message
    assert probe.cost_usd == pytest.approx(2 * (10 * 0.30 + 2.50) / 1e6), "a rejected request costs nothing"


@pytest.mark.parametrize("model", [GEMINI, {"type": "openai", "name": "gemma"}])
def test_a_used_up_daily_quota_ends_the_probe_at_once(model):
    with Sandbox(models=ModelSettings(quota=Quota(requests_per_day=1))) as sandbox:
        probe = prober(sandbox, model).probe(5)
    assert outcomes(probe) == ["answered", "rejected"]
    assert probe.is_daily


def test_requests_are_spaced():
    pauses = []
    with Sandbox() as sandbox:
        prober(sandbox, GEMINI, pause_seconds=0.25, sleep=pauses.append).probe(3)
    assert pauses == [0.25, 0.25]


def test_a_rejection_without_details_counts_as_a_rejection(sandbox, probed):
    sandbox.faults.queue(GENERATE, Fault(kind="rate-limit", retry_delay_seconds=None))
    probe = probed(GEMINI)
    assert outcomes(probe) == ["rejected", "answered", "answered"]
    assert probe.replies[0].retry_after_seconds is None
    assert probe.retry_after_seconds is None


def test_the_delay_of_a_rejection_is_read_from_body_and_header(sandbox, probed):
    sandbox.faults.queue(GENERATE, Fault(kind="rate-limit", retry_delay_seconds=1.5))
    assert probed(GEMINI, 1).replies[0].retry_after_seconds == 1.5
    sandbox.faults.queue("openai.chatCompletions", Fault(kind="rate-limit", retry_delay_seconds=6.5))
    assert probed({"type": "openai", "name": "gemma"}, 1).replies[0].retry_after_seconds == 6.5, "`retry-after-ms`"


@pytest.mark.parametrize(
    ("fault", "http_status", "words"),
    [
        (Fault(kind="error", http_status=500), 500, "HTTP 500: An internal error has occurred"),
        (Fault(kind="error", http_status=503), 503, "HTTP 503: The model is overloaded"),
        (Fault(kind="garbage"), 200, "HTTP 200 without an answer"),
        (Fault(kind="garbage-json"), 200, "HTTP 200 without an answer"),
        (Fault(kind="truncated"), 200, "HTTP 200 without an answer"),
        (Fault(kind="drop"), None, "Error"),
        (Fault(kind="disconnect"), None, "ConnectionError"),
    ],
)
def test_an_unusable_reply_is_a_failure_with_the_message_of_the_server_that_is_not_final(
    sandbox, probed, fault, http_status, words
):
    sandbox.faults.queue(GENERATE, fault)
    probe = probed(GEMINI, 2)
    assert outcomes(probe) == ["failed", "answered"]
    first = probe.replies[0]
    assert first.http_status == http_status
    assert words in first.message
    assert not first.is_final


def test_a_request_to_a_server_that_hangs_times_out_and_three_timeouts_end_the_probe(sandbox, probed):
    sandbox.faults.queue(GENERATE, *[Fault(kind="hang")] * MAX_UNANSWERED)
    probe = probed(GEMINI, 20, reply_seconds=0.2)
    assert outcomes(probe) == ["failed"] * MAX_UNANSWERED
    assert "ReadTimeout" in probe.refusal.message
    assert methods_sent(sandbox) == [GENERATE] * MAX_UNANSWERED
    assert (probe.rejected_ratio, probe.median_seconds) == (None, None)


@pytest.fixture
def sending():
    """Returns a function that probes a server which sends given headers and pieces of a body."""

    def ask(headers, pieces, pause_seconds=0.0):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                for name, value in {"Connection": "close", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):
                    for piece in pieces:
                        self.wfile.write(piece)
                        time.sleep(pause_seconds)

            def log_message(self, *arguments):
                pass

        with HTTPServer(("127.0.0.1", 0), Handler) as running:
            thread = threading.Thread(target=running.handle_request)
            thread.start()
            url = f"http://127.0.0.1:{running.server_port}/v1"
            model = parse_model({"type": "openai", "name": "m", "base_url": url})
            (reply,) = Prober(model, authenticate=dict, reply_seconds=1.0).probe(1).replies
            thread.join()
            return reply

    return ask


def test_a_request_to_a_server_that_answers_byte_by_byte_times_out(sending):
    reply = sending({}, [b" "] * 100_000, pause_seconds=0.05)
    assert reply.outcome == "failed"
    assert "no whole reply within 1 s" in reply.message


def test_a_reply_that_never_ends_is_given_up(sending):
    reply = sending({}, [b" " * 100_000] * 30)
    assert "a reply of more than 2,000,000 bytes" in reply.message


def test_a_reply_that_is_small_only_compressed_is_given_up(sending):
    reply = sending({"Content-Encoding": "gzip"}, [gzip.compress(bytes(2**26))])
    assert "a reply of more than 2,000,000 bytes" in reply.message


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_a_final_refusal_that_names_both_servers(status):
    with (
        Replying(lambda _: raw({"choices": [{"message": {"content": "OK"}}]})) as other,
        Replying(lambda _: raw("x" * 2**20, status, Location=f"{other.url}/v1?key=secret")) as server,
    ):
        model = parse_model({"type": "openai", "name": "m", "base_url": f"{server.url}/v1"})
        headers = {"x-goog-api-key": "secret"}
        (reply,) = Prober(model, authenticate=lambda: headers).probe(5).replies
    assert (reply.outcome, reply.http_status, reply.is_final) == ("failed", status, True)
    assert reply.message.startswith(f"{server.url} redirects to {other.url} (HTTP {status})")
    assert "secret" not in reply.message
    assert other.received == []


def test_of_a_long_refusal_the_beginning_is_read():
    with Replying(lambda _: raw(b"no " * 2**20, 503)) as server:
        model = parse_model({"type": "openai", "name": "m", "base_url": f"{server.url}/v1"})
        (reply,) = Prober(model, authenticate=dict).probe(1).replies
    assert reply.http_status == 503
    assert reply.message.startswith("HTTP 503: no no no")


def test_a_request_that_the_server_gave_up_is_no_final_refusal():
    gave_up = raw({"error": {"message": "The operation was cancelled."}}, 499)
    with Replying(lambda _: gave_up) as server:
        model = parse_model({"type": "openai", "name": "m", "base_url": f"{server.url}/v1"})
        (reply,) = Prober(model, authenticate=dict).probe(1).replies
    assert (reply.http_status, reply.is_final) == (499, False)


def test_a_compressed_reply_in_chunks_is_read(sending):
    body = gzip.compress(b'{"choices": [{}]}')
    chunks = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:7], body[7:])]
    headers = {"Transfer-Encoding": "chunked", "Content-Encoding": "gzip"}
    assert sending(headers, [*chunks, b"0\r\n\r\n"]).outcome == "answered"


def test_an_unreachable_address_is_a_failure_that_is_not_final():
    model = parse_model({"type": "openai", "name": "m", "base_url": "http://127.0.0.1:1/v1"})
    (reply,) = Prober(model, authenticate=dict).probe(1).replies
    assert (reply.outcome, reply.http_status, reply.is_final) == ("failed", None, False)
    assert "ConnectionError" in reply.message


def test_a_wrong_key_is_a_final_refusal(sandbox, probed, monkeypatch):
    monkeypatch.setenv("GOOGLE_API_KEY", "invalid")
    probe = probed(GEMINI, 5)
    assert probe.sent == 1
    assert probe.refusal.is_final
    assert probe.refusal.message == "HTTP 400: API key not valid. Please pass a valid API key."
    with Sandbox(models=ModelSettings(openai_api_key="secret")) as guarded:
        probe = prober(guarded, {"type": "openai", "name": "m"}).probe(5)
    assert (probe.sent, probe.refusal.http_status, probe.refusal.is_final) == (1, 401, True)


@pytest.mark.parametrize("cut", [0, 8])
def test_a_key_that_the_server_quotes_is_not_repeated(server, cut):
    key = "opaque-key-of-this-test"
    text = f"{'x' * (300 - len('HTTP 401: wrong key ') - cut) if cut else ''}wrong key {key}"
    server.on("POST", "/v1/chat/completions", (401, {"error": {"message": text}}))
    address = f"http://127.0.0.1:{server.server_port}/v1"
    model = parse_model({"type": "openai", "name": "m", "base_url": address})
    prober = Prober(model, authenticate=lambda: {"Authorization": f"Bearer {key}"})
    (reply,) = prober.probe(1).replies
    assert reply.is_final
    assert "wrong key ***" in reply.message or cut
    assert key[:8] not in reply.message


def test_the_key_of_the_connection_takes_precedence_over_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    with Sandbox(models=ModelSettings(openai_api_key="secret")) as guarded:
        value = {"conn_type": "llmbeam", "host": guarded.openai_url, "password": "secret"}
        monkeypatch.setenv("AIRFLOW_CONN_LLMBEAM_DEFAULT", json.dumps(value))
        model, access = open_model({"type": "openai", "name": "m", "base_url": guarded.openai_url})
        assert Prober(model, authenticate=access).probe(1).answered == 1


def test_a_missing_model_is_a_final_refusal(sandbox, probed):
    probe = probed({"type": "gemini", "name": "claude"}, 5)
    assert (probe.sent, probe.refusal.http_status, probe.refusal.is_final) == (1, 404, True)


def test_a_missing_endpoint_is_a_final_refusal_and_an_unknown_host_is_not(sandbox, google, probed):
    endpoint = f"projects/{google.project}/locations/us-central1/endpoints/1"
    probe = probed({"type": "vertex_endpoint", "name": "g", "endpoint": endpoint}, 5)
    assert (probe.sent, probe.refusal.http_status, probe.refusal.is_final) == (1, 404, True)
    url = "https://s-1.us-central1.run.app"
    probe = probed({"type": "openai", "name": "g", "base_url": f"{url}/v1", "id_token_audience": url}, 1)
    assert (probe.refusal.http_status, probe.refusal.is_final) == (404, False), "a page, and no JSON"


def test_no_more_requests_are_sent_than_the_cost_bound_allows(sandbox, probed):
    one = probe_cost_usd(parse_model(GEMINI), 1)
    assert one == pytest.approx(5.5e-6)
    assert probed(GEMINI, 5, max_usd=2 * one).sent == 2
    nothing = probed(GEMINI, 5, max_usd=one / 2)
    assert (nothing.sent, nothing.rejected_ratio, nothing.median_seconds, nothing.refusal) == (0, None, None, None)
    dear = Price(input_usd_per_million_tokens=0, output_usd_per_million_tokens=1e6)
    assert probed(GEMINI, 5, max_usd=3.0, price=dear).cost_usd == 3.0


def test_a_self_hosted_server_has_no_price_and_no_cost_bound():
    model = parse_model({"type": "openai", "name": "m"})
    assert probe_cost_usd(model, 5) is None
    assert affordable(model, 5, 0.0) == 5
    assert affordable(model, -1, 0.0) == 0


def test_a_reply_truncated_before_any_text_counts_as_an_answer(server):
    cut = {"candidates": [{"content": {"role": "model"}, "finishReason": "MAX_TOKENS"}]}
    server.on("POST", "/v1beta/models/m:generateContent", cut)
    address = f"http://127.0.0.1:{server.server_port}"
    model = parse_model({"type": "gemini", "name": "m", "base_url": address})
    assert Prober(model, authenticate=dict).probe(1).answered == 1
    message = "Could not finish the message because max_tokens or model output limit was reached."
    server.on("POST", "/v1/chat/completions", (400, {"error": {"message": message}}))
    model = parse_model({"type": "openai", "name": "o", "base_url": f"{address}/v1"})
    assert Prober(model, authenticate=dict).probe(1).answered == 1


def test_probe_requests_to_openai_use_max_completion_tokens():
    body = probe_request(parse_model({"type": "openai", "name": "o"})).body
    assert "max_tokens" not in body
    assert body["max_completion_tokens"] == 1


def test_a_tuned_model_is_probed_at_its_endpoint():
    name = "projects/p/locations/us-central1/endpoints/7"
    model = parse_model({"type": "gemini", "name": name, "project": "p", "location": "us-central1"})
    wanted = f"https://us-central1-aiplatform.googleapis.com/v1beta1/{name}:generateContent"
    assert probe_request(model).url == wanted


def test_an_endpoint_of_vertex_ai_has_no_vectors():
    endpoint = "projects/p/locations/us-central1/endpoints/7"
    model = parse_model({"type": "vertex_endpoint", "name": "g", "endpoint": endpoint})
    with pytest.raises(JobSpecError, match="generates only text"):
        Prober(model, authenticate=dict, embeds=True)


def test_without_a_key_gemini_is_not_probed(monkeypatch):
    monkeypatch.delenv("GOOGLE_API_KEY")
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    with pytest.raises(JobSpecError, match="found neither a password"):
        ModelAuthentication(parse_model(GEMINI))()


def test_a_server_without_a_key_is_probed_without_one(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    own = {"type": "openai", "name": "m", "base_url": "http://127.0.0.1:9/v1"}
    assert ModelAuthentication(parse_model(own))() == {}
    assert ModelAuthentication(parse_model({"type": "echo"}))() == {}


def test_without_a_connection_there_is_no_token():
    access = ModelAuthentication(parse_model({"type": "gemini", "project": "p"}), gcp_conn_id="nowhere")
    with pytest.raises(AccessDeniedError, match="nowhere"):
        access()


def test_an_invalid_model_is_refused():
    with pytest.raises(JobSpecError, match=r"`model.type`: must be one of"):
        open_model({"type": "claude"})
    with pytest.raises(JobSpecError, match=r"`model.name`: this field is needed"):
        open_model({"type": "openai"})


def test_a_probe_round_trips_through_json():
    replies = (ProbeReply(outcome="rejected", seconds=0.1, http_status=429, is_daily=True),)
    probe = Probe(replies=replies, cost_usd=0.0, at=1.0)
    assert Probe.from_dict(json.loads(json.dumps(probe.to_dict()))) == probe


def read(http_status, body, **headers):
    text = body if isinstance(body, str) else json.dumps(body)
    return read_reply(http_status, headers, text, answer_fields=frozenset({"choices"}), seconds=0.1, now=1e9)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "Too\nmany."}}, "Too many."),
        ([{"error": {"message": "In a list."}}], "In a list."),
        ({"message": "Of vLLM."}, "Of vLLM."),
        ({"detail": "Of FastAPI."}, "Of FastAPI."),
        ({"error": "Of TGI."}, "Of TGI."),
        ("", "no message"),
        (
            {"error": {"details": [None, {"violations": [7]}]}},
            '{"error": {"details": [null, {"violations": [7]}]}}',
        ),
        ("[" * 100_000, "[" * 300),
    ],
)
def test_the_message_of_a_refusal_is_found_in_each_servers_format(body, words):
    assert read(429, body).message == f"HTTP 429: {words}"
    assert not read(429, body).is_daily


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": 5, "details": [{"violations": None}]}},
        {"error": {"message": None, "details": [{"violations": 5}, 5]}},
        {"error": {"message": "cut \ud83d", "code": [5], "details": {"violations": []}}},
        {
            "error": {
                "details": [{"@type": ["RetryInfo"], "retryDelay": {}}, {"@type": "RetryInfo", "retryDelay": []}]
            }
        },
    ],
    ids=str,
)
@pytest.mark.parametrize("http_status", [200, 400, 429, 500])
def test_a_refusal_with_fields_of_other_types_is_read(http_status, body):
    reply = read(http_status, body)
    reply.message.encode()
    assert (reply.is_daily, reply.retry_after_seconds) == (False, None)


@pytest.mark.parametrize("header", ["nan", "inf", "1e400"])
def test_a_probe_never_advises_a_wait_without_end(header):
    reply = read(429, "", **{"Retry-After": header})
    assert reply.retry_after_seconds is None
    json.dumps(dataclasses.asdict(reply), allow_nan=False)


def test_a_retry_after_may_be_a_date():
    assert read(429, "", **{"Retry-After": "Sun, 09 Sep 2001 01:47:10 GMT"}).retry_after_seconds == 30.0
    assert read(429, "", **{"retry-after": "Sun, 09 Sep 2001 01:00:00 GMT"}).retry_after_seconds == 0.0
    assert read(429, "", **{"retry-after": "soon"}).retry_after_seconds is None


@pytest.mark.parametrize(
    ("http_status", "body", "is_final"),
    [
        (400, {"error": {"message": "bad"}}, True),
        (401, {}, True),
        (403, {}, True),
        (404, {}, True),
        (404, "<html>", False),
        (403, "<html>", False),
        (404, {"error": {"message": "Endpoint `e` has no deployed model to serve requests."}}, False),
        (400, {"error": {"message": "expected a non-empty traffic_split"}}, False),
        (408, {}, False),
        (429, {}, False),
        (500, {}, False),
    ],
)
def test_a_refusal_is_final_if_waiting_will_not_resolve_it(http_status, body, is_final):
    assert read(http_status, body).is_final is is_final


def test_an_account_without_balance_counts_as_a_used_up_daily_quota():
    assert read(429, {"error": {"code": "insufficient_quota", "message": "You exceeded"}}).is_daily


@pytest.mark.parametrize(
    ("message", "finish_reason", "outcome"),
    [
        ({"content": ""}, "stop", "answered"),
        ({"content": None}, "stop", "failed"),
        ({"content": None}, "length", "answered"),
        ({"content": None, "reasoning_content": "Hm"}, "stop", "answered"),
    ],
)
def test_a_completion_without_text_is_an_answer_only_if_it_was_cut_or_has_reasoning(
    message, finish_reason, outcome
):
    body = {"choices": [{"message": message, "finish_reason": finish_reason}]}
    assert read(200, body).outcome == outcome
