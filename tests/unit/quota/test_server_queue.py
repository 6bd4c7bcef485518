"""The queue of a vLLM server, read from its metrics."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from airflow_provider_llmbeam.quota.evidence import ServerQueue
from airflow_provider_llmbeam.quota.hook import QuotaHook
from airflow_provider_llmbeam.quota.server_queue import read_queue
from airflow_provider_llmbeam.spec.model import parse_model

PAGE = """# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="google/gemma-3-4b-it"} 9.0
vllm:num_requests_waiting{engine="1",model_name="google/gemma-3-4b-it"} 3.0
vllm:num_requests_running{engine="0",model_name="google/gemma-3-4b-it"} 256.0
vllm:kv_cache_usage_perc{engine="0",model_name="google/gemma-3-4b-it"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="google/gemma-3-4b-it"} 0.91
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (PAGE, ServerQueue(waiting=12, cache_ratio=0.91)),
        (PAGE.replace("kv_cache", "gpu_cache"), ServerQueue(waiting=12, cache_ratio=0.91)),
        ("vllm:num_requests_waiting 0", ServerQueue(waiting=0)),
        ("vllm:num_requests_waiting NaN", None),
        ("go_goroutines 7", None),
        ("", None),
    ],
)
def test_requests_of_all_engines_are_added_up_and_the_fullest_cache_counts(
    text: str, found: ServerQueue | None
) -> None:
    assert read_queue(text) == found


@pytest.mark.parametrize(
    ("http_status", "page", "verdict", "words"),
    [
        (200, PAGE, "degraded", "vLLM: 12 requests wait in its queue, and its KV cache is 91% full."),
        (200, "vllm:num_requests_waiting 0", "healthy", "0 requests wait in its queue."),
        (404, "", "unknown", "is unknown"),
        (200, "<html>", "unknown", "is unknown"),
    ],
)
def test_the_quota_health_of_a_server_of_one_s_own_has_its_queue(
    http_status: int, page: str, verdict: str, words: str
) -> None:
    paths = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(http_status)
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base_url = f"http://127.0.0.1:{server.server_port}/v1"
        model = parse_model({"type": "openai", "name": "gemma", "base_url": base_url})
        health = QuotaHook(model).health()
        server.shutdown()
    assert paths == ["/metrics"], "beside the API, not below it"
    assert (health.verdict, words in health.sentence) == (verdict, True), health.sentence


def test_a_server_that_does_not_answer_is_no_evidence() -> None:
    model = parse_model({"type": "openai", "name": "gemma", "base_url": "http://127.0.0.1:9/v1"})
    assert QuotaHook(model).health().verdict == "unknown"
