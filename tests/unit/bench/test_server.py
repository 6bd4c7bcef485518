from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

from bench.jobs import ServerSettings
from bench.run import environment_of
from bench.server import ServerProcess


def ask(url: str) -> int:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "row0 says"}]}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_stepped_server_rejects_and_logs_requests_beyond_its_step(tmp_path: Path):
    # A tenth of 60 requests per minute is available: a bucket of one request.
    settings = ServerSettings(latency_seconds=0, requests_per_minute=60, step_shares=(0.1,))
    with ServerProcess(settings, tmp_path, environment_of({})) as server:
        assert [ask(server.url), ask(server.url)] == [200, 429]
        assert server.answered() == 1
        assert server.max_in_flight() == 1
        assert [record.http_status for record in server.requests()] == [200, 429]


def test_no_secret_reaches_a_contender(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "secret")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert "secret" not in environment_of({}).values()
