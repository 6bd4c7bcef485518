"""A server with scripted replies for the real clients of Google."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.line_log import LineLog


def refusal_of(status, message):
    return status, {"error": {"code": status, "message": message}}


class Server(ThreadingHTTPServer):
    """Answers each method and path with its scripted replies in order; the last one repeats."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies, self.received = {}, []

    def on(self, method, path, *replies):
        self.replies[method, path] = [reply if isinstance(reply, tuple) else (200, reply) for reply in replies]


class Handler(BaseHTTPRequestHandler):
    def do(self):
        address = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.received.append(
            (self.command, address.path, parse_qs(address.query), json.loads(body or "{}"))
        )
        replies = self.server.replies.get((self.command, address.path), [refusal_of(404, "Not here.")])
        status, reply = replies[0] if len(replies) == 1 else replies.pop(0)
        text = reply.encode() if isinstance(reply, str) else json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = do  # noqa: N815

    def log_message(self, *arguments):
        pass


@pytest.fixture
def log():
    """The log of a launcher of jobs."""
    return LineLog()


@pytest.fixture
def in_state(monkeypatch):
    """Returns a function that makes a trigger that of a task in a state."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    def make(trigger, state):
        trigger.task_instance = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=-1)
        states = staticmethod(lambda **which: {"r": {"t": state}})
        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", states)
        return trigger

    return make


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def refusal():
    """Returns a function that makes an error reply in the format of Google from a status and a message."""
    return refusal_of
