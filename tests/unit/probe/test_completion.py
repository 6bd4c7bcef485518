from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from google.auth import credentials as auth
from google.oauth2.credentials import Credentials

from airflow_provider_llmbeam.exceptions import AccessDeniedError
from airflow_provider_llmbeam.google_cloud.tokens import access_token, id_token
from airflow_provider_llmbeam.probe.completion import ask, question


@pytest.fixture
def answered():
    """Asks a server that answers as it is told."""

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
                return ask(f"http://127.0.0.1:{server.server_port}/v1", "token", question("m"))
            finally:
                thread.join()

    return run


def completion(content):
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]})


@pytest.mark.parametrize("content", ["OK.", ""])
def test_a_completion_is_an_answer(answered, content):
    assert answered(200, completion(content)).refusal is None


@pytest.mark.parametrize("text", ["", "OK", "{}", '{"choices": []}', "[]", completion(None)])
def test_anything_else_with_status_200_is_no_answer_and_no_reason_to_wait_for_ever(answered, text):
    answer = answered(200, text)
    assert "HTTP 200" in answer.refusal
    assert answer.may_help_to_wait is False


@pytest.mark.parametrize(("status", "waits"), [(503, True), (500, True), (429, True), (404, False), (403, False)])
def test_a_server_that_loads_is_told_from_one_that_refuses(answered, status, waits):
    answer = answered(status, "no\nnot now")
    assert answer.refusal == f"HTTP {status}: no not now"
    assert answer.may_help_to_wait is waits


def test_a_server_that_is_not_there_may_come():
    answer = ask("http://127.0.0.1:1/v1", "token", question("m"))
    assert answer.may_help_to_wait is True


def test_a_person_has_no_token_for_a_service():
    with pytest.raises(AccessDeniedError, match="impersonation_chain"):
        id_token(Credentials(token="t"), "https://a.run.app")


def test_a_token_that_is_not_valid_is_made_anew():
    class Fresh(auth.Credentials):
        def refresh(self, request):
            self.token = "fresh"

    assert access_token(Fresh()) == "fresh"
