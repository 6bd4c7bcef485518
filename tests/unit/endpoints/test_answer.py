from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from airflow_provider_llmbeam.endpoints.platforms.base import ask
from airflow_provider_llmbeam.spec.model import parse_model


def send_to(port):
    """Sends the request to a local server that needs no credentials."""
    return ask(parse_model({"type": "openai", "name": "m", "base_url": f"http://127.0.0.1:{port}/v1"}), None)


@pytest.fixture
def answered(monkeypatch):
    """Sends the request to a server that returns one given reply."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def run(status, text):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *arguments):
                pass

        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.handle_request)
            thread.start()
            try:
                return send_to(server.server_port)
            finally:
                thread.join()

    return run


def completion(content):
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]})


@pytest.mark.parametrize("content", ["OK.", ""])
def test_a_completion_is_an_answer(answered, content):
    assert answered(200, completion(content)).refusal is None


@pytest.mark.parametrize("text", ["", "OK", "{}", '{"choices": []}', "[]", completion(None)])
def test_another_body_with_status_200_is_a_refusal_that_waiting_may_not_resolve(answered, text):
    answer = answered(200, text)
    assert "HTTP 200" in answer.refusal
    assert answer.may_help_to_wait is False


@pytest.mark.parametrize(
    ("status", "waits"),
    [*((each, True) for each in (408, 409, 425, 429, 499, 500, 503)), (404, False), (403, False)],
)
def test_a_loading_server_differs_from_one_that_refuses(answered, status, waits):
    answer = answered(status, "no\nnot now")
    assert answer.refusal == f"HTTP {status}: no not now"
    assert answer.may_help_to_wait is waits


def test_an_unreachable_server_may_still_start():
    answer = send_to(1)
    assert answer.may_help_to_wait is True
