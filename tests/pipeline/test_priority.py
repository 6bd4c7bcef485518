"""Jobs whose requests ask for the priority tier, and are served at the standard one above its limit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from llmbeam_sandbox import Fault, Sandbox
from llmbeam_sandbox.models.settings import ModelSettings

from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.pipeline.reporting.progress import PROGRESS
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.model.server import with_base_urls
from tests.outcomes import answers_by_tier

FULL = pytest.mark.full
ROWS = 120
PRICE = {
    "input_usd_per_million_tokens": 0.30,
    "output_usd_per_million_tokens": 2.50,
    "cached_input_usd_per_million_tokens": 0.03,
    "priority_ratio": 1.8,
}
HEAD = "Judge by these rules. " + "Rule: say what the text is about, in one word. " * 500


@pytest.fixture
def crowded():
    """A sandbox in which 30 % of the priority requests are above the limit of the tier."""
    with Sandbox(models=ModelSettings(priority_overflow_ratio=0.3)) as sandbox:
        yield sandbox


def job(model, folder, tier="priority", **changes):
    rows = folder / "in.jsonl"
    rows.write_text("".join(json.dumps({"id": n, "text": f"text {n}"}) + "\n" for n in range(ROWS)))
    spec = JobSpec.parse(
        {
            "name": "noon",
            "source": {"uri": str(rows), "key": ["id"]},
            "prompt": {"template": "Judge: {{ row.text }}"},
            "model": model,
            "generation": {"max_output_tokens": 20},
            "limits": {"price": PRICE},
            "inference": {"service_tier": tier},
            "sink": {"uri": f"{folder}/out"},
        }
        | changes
    )
    return with_base_urls(spec, os.environ)


def model_of(api, sandbox, monkeypatch, project=None):
    monkeypatch.setenv("GOOGLE_API_KEY", "a-key")
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    monkeypatch.setenv("OPENAI_BASE_URL", sandbox.openai_url)
    if api == "openai":
        return {"type": "openai", "name": "gpt-5-mini"}
    return {"type": "gemini", "base_url": sandbox.gemini_url, "project": project}


@pytest.fixture
def model(sandbox, monkeypatch):
    return model_of("developer", sandbox, monkeypatch)


def report_of(manifest):
    return json.loads(Path(manifest["report_uri"]).read_text())


def is_paid_as_billed(report, sandbox):
    return report["cost_usd"] * 1e9 == pytest.approx(sandbox.token_bill.nano_usd, rel=1e-4)


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=FULL)])
@pytest.mark.parametrize(
    "api", ["developer", pytest.param("vertex", marks=FULL), pytest.param("openai", marks=FULL)]
)
def test_every_row_is_answered_and_paid_at_the_tier_that_served_it(
    api, stream, crowded, google, tmp_path, monkeypatch, caplog
):
    model = model_of(api, crowded, monkeypatch, google.project if api == "vertex" else None)
    generation = {"max_output_tokens": 20, "stream": stream}
    report = report_of(run(job(model, tmp_path, generation=generation)))
    assert report["rows"]["answered"] == ROWS
    assert report["service_tiers"] == answers_by_tier(crowded)
    assert 0.15 * ROWS < report["service_tiers"]["standard"] < 0.45 * ROWS
    assert report["service_tiers"]["priority"] == ROWS - report["service_tiers"]["standard"]
    assert is_paid_as_billed(report, crowded)
    assert len(crowded.requests) == ROWS
    (warning,) = [one for one in caplog.messages if "priority tier was served at the tier 'standard'" in one]
    assert "billed at that price" in warning


def test_all_of_it_costs_the_ratio_of_the_price(sandbox, model, tmp_path):
    report = report_of(run(job(model, tmp_path)))
    assert report["service_tiers"] == {"priority": ROWS} == answers_by_tier(sandbox)
    standard = report_of(run(job(model, tmp_path, "standard", name="full", sink={"uri": f"{tmp_path}/full"})))
    assert report["cost_usd"] == pytest.approx(1.8 * standard["cost_usd"], rel=1e-4)


def test_the_tokens_of_a_prefix_cache_have_the_same_surcharge(crowded, tmp_path, monkeypatch):
    model = model_of("developer", crowded, monkeypatch)
    report = report_of(run(job(model, tmp_path, prompt={"template": HEAD + "{{ row.text }}"})))
    assert report["tokens"]["cached"] > 0
    assert set(report["service_tiers"]) == {"priority", "standard"}
    assert report["cost_usd"] == pytest.approx(crowded.token_bill.nano_usd / 1e9, rel=0.01)


def test_without_the_ratio_the_cost_is_not_known(sandbox, model, tmp_path):
    price = {name: value for name, value in PRICE.items() if name != "priority_ratio"}
    spec = job(model, tmp_path, limits={"price": price})
    estimate = make_estimate(spec)
    assert (estimate.cost_usd, estimate.cost_usd_range) == (None, None)
    assert estimate.standard_cost_usd > 0
    assert any("no list price of the priority tier" in line for line in estimate.lines())
    report = report_of(run(spec))
    assert report["service_tiers"]["priority"] == ROWS - estimate.sample_usage.requests
    assert report["cost_usd"] is None


def test_without_the_ratio_the_counters_have_the_cost_that_a_budget_is_charged(sandbox, model, tmp_path):
    price = {name: value for name, value in PRICE.items() if name != "priority_ratio"}
    run(job(model, tmp_path, limits={"price": price}))
    assert PROGRESS.snapshot().cost_usd * 1e9 == pytest.approx(sandbox.token_bill.nano_usd * 1.75 / 1.8, rel=1e-4)


def test_a_server_error_is_an_attempt_as_at_the_standard_tier(sandbox, model, tmp_path):
    sandbox.faults.queue("gemini.generateContent", *[Fault(kind="error", http_status=503)] * 3)
    report = report_of(run(job(model, tmp_path)))
    assert (report["requests"]["shed"], report["requests"]["retried"]) == (0, 3)
    assert report["rows"]["answered"] == ROWS


def test_a_run_at_another_tier_uses_the_answers(sandbox, model, tmp_path):
    run(job(model, tmp_path))
    paid = len(sandbox.requests)
    for tier in ("standard", "flex"):
        assert report_of(run(job(model, tmp_path, tier)))["origins"]["resumed"] == ROWS
    assert len(sandbox.requests) == paid


def test_the_estimate_compares_the_budget_with_the_price_of_the_tier(sandbox, model, tmp_path):
    full = report_of(run(job(model, tmp_path, "standard", name="full", sink={"uri": f"{tmp_path}/full"})))
    limits = {"price": PRICE, "budget_usd": 1.2 * full["cost_usd"]}
    assert make_estimate(job(model, tmp_path, limits=limits)).exceeds_budget
    assert not make_estimate(job(model, tmp_path, "standard", limits=limits)).exceeds_budget


def test_the_estimate_asks_for_the_tier_and_computes_its_price(sandbox, model, tmp_path):
    spec = job(model, tmp_path)
    estimate = make_estimate(spec, sample_size=20)
    assert answers_by_tier(sandbox) == {"priority": 20}
    assert estimate.sample_usage.cost_usd * 1e9 == pytest.approx(sandbox.token_bill.nano_usd, rel=1e-3)
    assert estimate.cost_usd == pytest.approx(1.8 * estimate.standard_cost_usd, rel=1e-3)
    low, high = estimate.cost_usd_range
    assert low <= estimate.cost_usd <= high
    online, flex, _ = estimate.ways
    assert (online.tier, flex.tier) == ("priority", "flex")
    assert online.cost_usd == pytest.approx(estimate.cost_usd, rel=1e-3)
    assert flex.cost_usd == pytest.approx(0.6 * estimate.standard_cost_usd, rel=1e-3)
    assert any("1.8 times $0.30 and $2.50 per million tokens" in line for line in estimate.lines())
    report = report_of(run(spec))
    assert report["estimate"]["cost_usd"]["ratio"] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("finish_by", "others"), [("PT5M", "priority"), pytest.param("PT9H", "batch", marks=FULL)]
)
def test_with_auto_only_what_is_sent_online_is_at_priority(finish_by, others, crowded, tmp_path, monkeypatch):
    model = model_of("developer", crowded, monkeypatch)
    inference = {"mode": "auto", "service_tier": "priority", "finish_by": finish_by}
    report = report_of(run(job(model, tmp_path, inference=inference)))
    assert report["rows"]["answered"] == ROWS
    tiers = report["service_tiers"]
    assert tiers == answers_by_tier(crowded)
    assert set(tiers) == {"priority", "standard", others}
    assert tiers["priority"] + tiers["standard"] == (ROWS if others == "priority" else 32)
    assert is_paid_as_billed(report, crowded)
