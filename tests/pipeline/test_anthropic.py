"""Jobs for Claude, against the emulated API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from llmbeam_sandbox import Fault, ModelSettings, Quota, Sandbox

from airflow_provider_llmbeam.exceptions import NothingAnsweredError
from tests.pipeline.conftest import Job
from tests.replying import Replying, raw

METHOD = "anthropic.messages"
SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["good", "bad"]}, "stars": {"enum": [1, 2, 3]}},
    "required": ["label", "stars"],
}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")


def job_of(directory: Path, url: str, **fields: Any) -> Job:
    return Job(directory, {"type": "anthropic", "name": "claude-haiku-5-5", "base_url": url, **fields})


def rows_of(number: int) -> list[Any]:
    return [{"id": index, "text": f"review number {index}"} for index in range(number)]


def test_every_row_is_answered_once_with_a_schema_and_a_stored_head(tmp_path: Path, sandbox: Sandbox) -> None:
    head = "You rate reviews by these rules. " * 200
    job = job_of(tmp_path, sandbox.url)
    prompt = {"template": "{{ row.text }}", "system": head, "output_schema": SCHEMA}
    ended = job.run(rows_of(20), prompt=prompt)
    assert len(ended.answers) == len(sandbox.requests) == 20
    (charge,) = sandbox.token_bill.charges
    assert charge.cached_tokens > charge.cache_write_tokens > 0
    tokens = ended.report["tokens"]
    assert (tokens["input"], tokens["cached"]) == (charge.input_tokens, charge.cached_tokens)
    # The list price of claude-haiku-5-5; those of the cache are 0.1 and 1.25 of it.
    uncached = charge.input_tokens - charge.cached_tokens - charge.cache_write_tokens
    usd = (uncached + charge.cached_tokens * 0.1 + charge.cache_write_tokens * 1.25) * 0.1
    assert ended.report["cost_usd"] == pytest.approx((usd + charge.output_tokens * 0.5) / 1e6, abs=1e-6)


def test_overloads_cost_few_requests_and_no_row(tmp_path: Path, sandbox: Sandbox) -> None:
    sandbox.faults.every(METHOD, 20, Fault(kind="error", http_status=529))
    ended = job_of(tmp_path, sandbox.url).run(rows_of(200), generation={"stream": True})
    assert len(ended.answers) == 200
    assert len(sandbox.requests) <= 200 * 1.15


def test_a_limit_of_the_rate_is_waited_for(tmp_path: Path) -> None:
    quota = Quota(requests_per_minute=600)
    with Sandbox(models=ModelSettings(quota=quota)) as sandbox:
        ended = job_of(tmp_path, sandbox.url).run(rows_of(30), limits={"requests_per_minute": 600})
        assert len(ended.answers) == 30
        assert len(sandbox.requests) <= 30 * 1.15


def test_a_spend_limit_ends_the_job_after_few_requests(tmp_path: Path) -> None:
    details = {"error_code": "enforced_spend_limit_reached"}
    error = {"type": "rate_limit_error", "message": "You have reached your limit.", "details": details}
    body = json.dumps({"type": "error", "error": error, "request_id": "req_1"})
    received = []

    def refuse(request: Any) -> bytes:
        received.append(request)
        return raw(body, status=429, request_id="req_1")

    with Replying(refuse) as server, pytest.raises(NothingAnsweredError, match="quota_exhausted"):
        job_of(tmp_path, server.url).run(rows_of(300))
    assert len(received) < 100
