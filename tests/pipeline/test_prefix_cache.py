"""Jobs whose prompts begin with a long head that all have in common."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.exceptions import LLMBeamError
from airflow_provider_llmbeam.pipeline import prefix_cache as module
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.spec import JobSpec

pytestmark = pytest.mark.promise(4)

ROWS = 60
HEAD = "Judge the text by these rules. " + "Rule: say what the text is about, in one word. " * 500
PRICE = {
    "input_usd_per_million_tokens": 0.30,
    "output_usd_per_million_tokens": 2.50,
    "cached_input_usd_per_million_tokens": 0.03,
}


each_api = pytest.mark.parametrize(
    "job", ["vertex", pytest.param("developer", marks=pytest.mark.full)], indirect=True
)


@pytest.fixture
def job(request, sandbox, tmp_path, monkeypatch):
    """A job of an API of Gemini, by default that of Vertex AI."""
    rows = tmp_path / "in.jsonl"
    rows.write_text("".join(json.dumps({"id": n, "text": f"text {n}"}) + "\n" for n in range(ROWS)))
    model = {"type": "gemini", "base_url": sandbox.gemini_url}
    if getattr(request, "param", "vertex") == "vertex":
        model["project"] = request.getfixturevalue("google").project
    return {
        "name": "night",
        "source": {"uri": str(rows), "key": ["id"]},
        "prompt": {"template": HEAD + "\n{{ row.text }}"},
        "model": model,
        "generation": {"max_output_tokens": 20},
        "limits": {"price": PRICE},
        "sink": {"uri": f"{tmp_path}/out"},
    }


def methods(sandbox):
    return [request.method for request in sandbox.requests if request.method.startswith("gemini.caches.")]


def report_of(manifest):
    return json.loads(Path(manifest["report_uri"]).read_text())


@each_api
def test_the_head_is_stored_once_read_by_every_request_and_deleted_at_the_end(job, sandbox):
    manifest = run(JobSpec.parse(job))
    assert manifest["rows"]["answered"] == ROWS
    assert methods(sandbox).count("gemini.caches.create") == 1
    assert sandbox.caches.live == []
    tokens = report_of(manifest)["tokens"]
    assert tokens["cached"] > 0.95 * tokens["input"] * ROWS / (ROWS + 1)
    other = {"name": "inline", "sink": {"uri": f"{job['sink']['uri']}2"}, "inference": {"prefix_cache": False}}
    inline = run(JobSpec.parse(job | other))
    assert report_of(inline)["tokens"]["cached"] == 0
    ratio = report_of(manifest)["cost_usd"] / report_of(inline)["cost_usd"]
    assert ratio < 0.15, "60 rows share one creation: 1/60 + 1/10 of the input"


@pytest.mark.full
@each_api
def test_the_cost_in_the_report_is_the_bill_of_the_provider(job, sandbox):
    report = report_of(run(JobSpec.parse(job)))
    assert report["cost_usd"] * 1e9 == pytest.approx(sandbox.token_bill.nano_usd, rel=0.001)


def test_the_estimate_has_the_price_of_the_cache_its_making_and_its_storage(job, sandbox):
    estimate = make_estimate(JobSpec.parse(job), sample_size=8)
    before = sandbox.token_bill.nano_usd
    report = report_of(run(JobSpec.parse(job)))
    assert estimate.cost_usd == pytest.approx((sandbox.token_bill.nano_usd - before) / 1e9, rel=0.02)
    assert report["estimate"]["cost_usd"]["ratio"] == pytest.approx(1.0, rel=0.02)
    low, high = estimate.cost_usd_range
    assert low <= estimate.cost_usd <= high
    assert any(line.endswith("per million tokens in and out, with a prefix cache") for line in estimate.lines())


@pytest.mark.full
def test_an_estimate_without_a_sample_has_a_prefix_cache_as_well(job, sandbox):
    spec = JobSpec.parse(job)
    found, tokens = make_estimate(spec, sample_size=0), module.head_to_cache(spec).tokens
    rest, storage = found.input_tokens - ROWS * tokens, tokens / 1e6 * module.TTL_SECONDS / 3600
    low = (tokens * 0.30 + ROWS * tokens * 0.03 + rest * 0.30) / 1e6 + storage
    assert found.cost_usd_range == pytest.approx((low, low + ROWS * 20 * 2.50 / 1e6), abs=2e-6)
    assert found.prefix_cache_usd == pytest.approx(tokens * 0.30 / 1e6 + storage, abs=1e-6)


@pytest.mark.full
def test_a_job_without_a_prefix_cache_is_estimated_without_one(job, sandbox):
    found = make_estimate(JobSpec.parse(job | {"inference": {"prefix_cache": False}}), sample_size=0)
    cost = (found.input_tokens * 0.30 + found.output_tokens * 2.50) / 1e6
    assert (found.cost_usd, found.prefix_cache_usd) == (pytest.approx(cost), 0.0)


def test_a_head_below_the_minimum_of_the_model_is_sent_with_each_request(job, sandbox):
    run(JobSpec.parse(job | {"prompt": {"template": "Say it: {{ row.text }}"}}))
    assert methods(sandbox) == []


@pytest.mark.full
def test_the_head_of_one_row_is_sent_with_it(job, sandbox):
    rows = [{"id": number, "text": "a"} for number in range(1)]
    run(JobSpec.parse(job | {"source": {"type": "rows", "rows": rows, "key": ["id"]}}))
    assert methods(sandbox) == []


@pytest.mark.full
def test_a_provider_that_stores_nothing_costs_no_row(job, sandbox, caplog):
    sandbox.faults.every("gemini.caches.create", 1, Fault(kind="error", http_status=400))
    manifest = run(JobSpec.parse(job))
    assert manifest["rows"]["answered"] == ROWS
    assert "are sent with each request, as they could not be stored" in caplog.text


@pytest.mark.full
def test_a_cache_that_is_deleted_while_the_job_runs_costs_no_row(job, sandbox, monkeypatch):
    found = module._Client.find_or_create

    def created_and_deleted(client):
        cache = found(client)
        client.delete_all(cache)
        return cache

    monkeypatch.setattr(module._Client, "find_or_create", created_and_deleted)
    manifest = run(JobSpec.parse(job))
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}


@pytest.mark.full
@each_api
def test_a_cache_is_extended_while_the_job_runs(job, sandbox, monkeypatch):
    monkeypatch.setattr(module, "EXTEND_SECONDS", 0.01)
    run(JobSpec.parse(job))
    assert "gemini.caches.patch" in methods(sandbox)


@pytest.mark.full
def test_a_run_that_fails_leaves_no_cache(job, sandbox):
    sandbox.faults.every("gemini.generateContent", 1, Fault(kind="error", http_status=400))
    with pytest.raises(LLMBeamError, match="Nothing more was sent"):
        run(JobSpec.parse(job))
    assert "gemini.caches.create" in methods(sandbox)
    assert sandbox.caches.live == []


@each_api
def test_the_next_run_uses_and_deletes_the_cache_that_a_killed_run_left_behind(job, sandbox, tmp_path):
    spec = JobSpec.parse(job)
    left_behind = module._Client(spec, module.head_to_cache(spec)).find_or_create()
    manifest = run(spec)
    assert manifest["rows"]["answered"] == ROWS
    assert methods(sandbox).count("gemini.caches.create") == 1
    assert sandbox.caches.live == []
    assert left_behind.tokens > 2_048
