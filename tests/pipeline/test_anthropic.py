"""Jobs for Claude, against the emulated API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llmbeam_sandbox import Fault, ModelSettings, Quota, Sandbox
from llmbeam_sandbox.models.anthropic import THOUGHTS

from airflow_provider_llmbeam.exceptions import NothingAnsweredError
from tests.pipeline.conftest import Job

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
    assert tokens["cache_written"] == charge.cache_write_tokens
    # The list price of claude-haiku-5-5; those of the cache are 0.1 and 1.25 of it.
    uncached = charge.input_tokens - charge.cached_tokens - charge.cache_write_tokens
    usd = (uncached + charge.cached_tokens * 0.1 + charge.cache_write_tokens * 1.25) * 0.1
    assert ended.report["cost_usd"] == pytest.approx((usd + charge.output_tokens * 0.5) / 1e6, abs=1e-6)


@pytest.mark.parametrize(
    ("rows", "limits"), [(200, {}), pytest.param(300, {"requests_per_minute": 600}, marks=pytest.mark.full)]
)
def test_overloads_cost_few_requests_and_no_row(
    tmp_path: Path, sandbox: Sandbox, rows: int, limits: dict[str, Any]
) -> None:
    sandbox.faults.every(METHOD, 20, Fault(kind="error", http_status=529))
    ended = job_of(tmp_path, sandbox.url).run(rows_of(rows), generation={"stream": True}, limits=limits)
    assert len(ended.answers) == rows
    assert rows * 1.05 <= len(sandbox.requests) <= rows * 1.15


def test_a_limit_of_the_rate_is_waited_for(tmp_path: Path) -> None:
    quota = Quota(requests_per_minute=600)
    with Sandbox(models=ModelSettings(quota=quota)) as sandbox:
        ended = job_of(tmp_path, sandbox.url).run(rows_of(30), limits={"requests_per_minute": 600})
        assert len(ended.answers) == 30
        assert len(sandbox.requests) <= 30 * 1.15


def test_a_spend_limit_ends_the_job_after_few_requests(tmp_path: Path, sandbox: Sandbox) -> None:
    spent = Fault(kind="error", http_status=429, message="enforced_spend_limit_reached")
    sandbox.faults.every(METHOD, 1, spent)
    with pytest.raises(NothingAnsweredError, match="quota_exhausted"):
        job_of(tmp_path, sandbox.url).run(rows_of(300))
    assert len(sandbox.requests) < 100


def test_a_limit_of_the_growth_of_the_rate_is_waited_for(tmp_path: Path, sandbox: Sandbox) -> None:
    ramp = Fault(kind="error", http_status=429, message="ramp_limit_exceeded")
    sandbox.faults.every(METHOD, 20, ramp)
    ended = job_of(tmp_path, sandbox.url).run(rows_of(60))
    assert len(ended.answers) == 60
    assert ended.report["requests"]["rejected"] >= 3


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_kept_beside_the_answer(tmp_path: Path, sandbox: Sandbox, stream: bool) -> None:
    generation = {"thinking_budget_tokens": -1, "keep_reasoning": True, "stream": stream}
    ended = job_of(tmp_path, sandbox.url).run(rows_of(2), generation=generation)
    assert len(ended.answers) == 2
    assert {row["llmbeam_reasoning"] for row in ended.answers} == {THOUGHTS}
