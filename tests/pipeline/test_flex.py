"""Jobs whose requests ask for the flex tier: half the price, shed where the provider has no capacity."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from llmbeam_sandbox import Fault, Sandbox
from llmbeam_sandbox.models.settings import ModelSettings

from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import usd
from tests.outcomes import answers_by_tier

pytestmark = pytest.mark.promise(4)

ROWS = 120
PRICE = {
    "input_usd_per_million_tokens": 0.30,
    "output_usd_per_million_tokens": 2.50,
    "cached_input_usd_per_million_tokens": 0.03,
}


def job(sandbox, folder, tier="flex_then_standard", **changes):
    rows = folder / "in.jsonl"
    rows.write_text("".join(json.dumps({"id": n, "text": f"text {n}"}) + "\n" for n in range(ROWS)))
    return JobSpec.parse(
        {
            "name": "night",
            "source": {"uri": str(rows), "key": ["id"]},
            "prompt": {"template": "Judge: {{ row.text }}"},
            "model": {"type": "gemini", "base_url": sandbox.gemini_url},
            "generation": {"max_output_tokens": 20},
            "limits": {"price": PRICE},
            "inference": {"service_tier": tier},
            "sink": {"uri": f"{folder}/out"},
        }
        | changes
    )


def report_of(manifest):
    return json.loads(Path(manifest["report_uri"]).read_text())


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv("GOOGLE_API_KEY", "a-key")


@pytest.mark.parametrize("tier", ["flex", "flex_then_standard"])
def test_flex_costs_half_and_the_report_agrees_with_the_bill(tier, sandbox, tmp_path, key):
    report = report_of(run(job(sandbox, tmp_path, tier)))
    assert report["service_tiers"] == {"flex": ROWS} == answers_by_tier(sandbox)
    assert report["rows"]["answered"] == ROWS
    assert report["cost_usd"] * 1e9 == pytest.approx(sandbox.token_bill.nano_usd, rel=0.001)
    sandbox.reset()
    standard = report_of(run(job(sandbox, tmp_path, "standard", name="full", sink={"uri": f"{tmp_path}/full"})))
    assert report["cost_usd"] == pytest.approx(standard["cost_usd"] / 2, rel=0.001)
    assert standard["service_tiers"] == {"standard": ROWS}


@pytest.mark.full
def test_vertex_ai_takes_the_tier_from_its_headers(sandbox, google, tmp_path):
    model = {"type": "gemini", "base_url": sandbox.gemini_url, "project": google.project}
    report = report_of(run(job(sandbox, tmp_path, model=model)))
    assert report["service_tiers"] == {"flex": ROWS} == answers_by_tier(sandbox)


def test_where_a_third_is_shed_every_row_is_answered_and_no_429_slows_the_rest(tmp_path, key):
    with Sandbox(models=ModelSettings(flex_shed_ratio=0.3)) as sandbox:
        report = report_of(run(job(sandbox, tmp_path)))
        shed = sum(request.http_status == 503 for request in sandbox.requests)
        assert report["service_tiers"] == answers_by_tier(sandbox)
        assert report["cost_usd"] * 1e9 == pytest.approx(sandbox.token_bill.nano_usd, rel=0.001)
    assert sum(report["service_tiers"].values()) == report["rows"]["answered"] == ROWS
    assert report["service_tiers"]["flex"] > 0.9 * ROWS
    assert report["requests"]["shed"] == shed > 0
    assert report["requests"]["rejected"] == 0
    assert report["requests"]["sent"] == ROWS + shed


@pytest.mark.full
def test_without_any_capacity_the_rows_go_to_the_standard_tier(tmp_path, key):
    with Sandbox(models=ModelSettings(flex_shed_ratio=1.0)) as sandbox:
        report = report_of(run(job(sandbox, tmp_path)))
    assert report["service_tiers"] == {"standard": ROWS}
    assert report["requests"]["shed"] <= 4 * ROWS


@pytest.mark.full
def test_the_estimate_is_compared_with_the_run_at_the_tier_of_the_job(sandbox, tmp_path, key):
    spec = job(sandbox, tmp_path, "flex")
    estimate = make_estimate(spec, sample_size=8)
    assert estimate.planned_cost_usd == pytest.approx(estimate.cost_usd / 2, abs=1e-6)
    planned = [line for line in estimate.lines() if line.startswith("Planned")]
    assert planned == [f"Planned   about {usd(estimate.planned_cost_usd)} in the mode and at the tier of the job"]
    compared = report_of(run(spec))["estimate"]["cost_usd"]
    assert compared["estimated"] == estimate.planned_cost_usd
    assert compared["ratio"] == pytest.approx(1.0, abs=0.02)


@pytest.mark.full
def test_flex_alone_gives_a_row_up_after_max_throttled_seconds(tmp_path, key):
    limits = {"price": PRICE, "max_throttled_seconds": 0.5, "max_dead_letter_ratio": 1.0}
    with Sandbox(models=ModelSettings(flex_shed_ratio=0.5)) as sandbox:
        report = report_of(run(job(sandbox, tmp_path, "flex", limits=limits)))
    assert set(report["service_tiers"]) == {"flex"}
    assert report["rows"]["read"] == report["rows"]["answered"] + report["rows"]["dead_letter"]
    assert set(report["dead_letter_by_kind"]) <= {"throttled", "server_error"}


@pytest.mark.full
def test_an_answer_at_another_tier_is_billed_at_its_price_and_named_in_the_log(tmp_path, key, caplog):
    with Sandbox(models=ModelSettings(has_flex=False)) as sandbox:
        report = report_of(run(job(sandbox, tmp_path)))
        assert report["cost_usd"] * 1e9 == pytest.approx(sandbox.token_bill.nano_usd, rel=0.001)
    assert report["service_tiers"] == {"standard": ROWS}
    (warning,) = [one for one in caplog.messages if "flex tier was served" in one]
    assert "'standard'" in warning


def test_where_the_deadline_is_near_no_row_waits_for_flex(sandbox, tmp_path, key, caplog):
    caplog.set_level("INFO", "llmbeam")
    inference = {"service_tier": "flex_then_standard", "finish_by": "PT10M"}
    report = report_of(run(job(sandbox, tmp_path, inference=inference)))
    assert report["service_tiers"] == {"standard": ROWS}
    assert any("No row is sent at the flex tier" in message for message in caplog.messages)
    assert report["cost_usd"] * 1e9 == pytest.approx(sandbox.token_bill.nano_usd, rel=0.001)


@pytest.mark.full
def test_with_a_later_deadline_all_but_the_pilot_are_sent_at_flex(sandbox, tmp_path, key):
    inference = {"service_tier": "flex_then_standard", "finish_by": "PT2H"}
    report = report_of(run(job(sandbox, tmp_path, inference=inference)))
    assert report["service_tiers"] == {"flex": ROWS - 32, "standard": 32} == answers_by_tier(sandbox)
    assert report["cost_usd"] * 1e9 == pytest.approx(sandbox.token_bill.nano_usd, rel=0.001)


def test_auto_takes_flex_where_it_is_cheaper_in_time(sandbox, tmp_path, key, caplog):
    caplog.set_level("INFO", "llmbeam")
    # Batch inference needs hours in half of the cases, flex a quarter of one.
    inference = {"mode": "auto", "service_tier": "flex_then_standard", "finish_by": "PT1H"}
    report = report_of(run(job(sandbox, tmp_path, inference=inference)))
    assert report["service_tiers"] == {"flex": ROWS - 32, "standard": 32}
    assert any("flex is the cheapest way that is finished in time" in message for message in caplog.messages)


@pytest.mark.full
def test_a_budget_is_spent_at_the_price_of_the_served_tier(sandbox, tmp_path, key):
    full = report_of(run(job(sandbox, tmp_path, "standard", name="full", sink={"uri": f"{tmp_path}/full"})))
    limits = {"price": PRICE, "budget_usd": full["cost_usd"] * 0.6}
    report = report_of(run(job(sandbox, tmp_path, "flex", limits=limits)))
    assert report["rows"]["answered"] == ROWS


@pytest.mark.full
def test_a_second_run_pays_for_nothing_at_any_tier(sandbox, tmp_path, key):
    run(job(sandbox, tmp_path))
    paid = len(sandbox.requests)
    report = report_of(run(job(sandbox, tmp_path, "standard")))
    assert len(sandbox.requests) == paid
    assert report["origins"]["resumed"] == ROWS


@pytest.mark.full
def test_a_server_error_of_flex_counts_as_an_attempt(sandbox, tmp_path, key):
    sandbox.faults.queue("gemini.generateContent", *[Fault(kind="error", http_status=500)] * 2)
    report = report_of(run(job(sandbox, tmp_path)))
    assert (report["requests"]["shed"], report["requests"]["retried"]) == (0, 2)
    assert report["rows"]["answered"] == ROWS
