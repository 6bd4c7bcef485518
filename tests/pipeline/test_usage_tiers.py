"""Jobs on Vertex AI with a usage tier of Standard PayGo, and with Provisioned Throughput."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from llmbeam_sandbox import ModelSettings, Quota, Sandbox

from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.estimate.run import START_SECONDS, make_estimate
from airflow_provider_llmbeam.spec import JobSpec
from tests.outcomes import answers_by_tier

#: A tier in small: 2,000 tokens per second.
THRESHOLD = 120_000
NAME = "gemini-2.5-flash"
LOCATIONS = {"global": Quota(usage_tier=THRESHOLD)}


def job(sandbox, google, folder, *, rows=200, **changes):
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps({"id": n, "text": f"{n} " + "word " * 60}) + "\n" for n in range(rows)))
    return JobSpec.parse(
        {
            "name": "night",
            "source": {"uri": str(source), "key": ["id"]},
            "prompt": {"template": "Judge: {{ row.text }}"},
            "model": {"type": "gemini", "name": NAME, "base_url": sandbox.gemini_url, "project": google.project},
            "generation": {"max_output_tokens": 10},
            "limits": {"usage_tier": THRESHOLD},
            "sink": {"uri": f"{folder}/out"},
        }
        | changes
    )


def sent(sandbox):
    return [each for each in sandbox.requests if each.method == "gemini.generateContent"]


@pytest.mark.parametrize("pool", [0, 3 * THRESHOLD])
def test_the_time_of_the_estimate_is_that_of_the_job_and_a_free_pool_shortens_it(google, tmp_path, pool):
    locations = {"global": Quota(usage_tier=THRESHOLD, pool_tokens_per_minute=pool)}
    with Sandbox(models=ModelSettings(location_quotas=locations)) as sandbox:
        spec = job(sandbox, google, tmp_path)
        found = make_estimate(spec, 8)
        assert (found.limited_by, [*found.tier_seconds]) == ("usage_tier", [THRESHOLD])
        assert "at a threshold of 120,000 tokens per minute" in "\n".join(found.lines())
        before = len(sent(sandbox))
        run(spec)
        requests = sent(sandbox)[before:]
    took = requests[-1].received_at - requests[0].received_at
    expected = found.duration_seconds - START_SECONDS
    rejected = sum(each.http_status == 429 for each in requests)
    assert sum(each.http_status == 200 for each in requests) == found.requests
    if pool:
        assert took < 0.95 * expected
    else:
        assert took == pytest.approx(expected, rel=0.35)
    assert rejected <= 0.1 * len(requests)


def test_a_tier_that_is_not_stated_leaves_the_time_at_each(sandbox, google, tmp_path):
    found = make_estimate(job(sandbox, google, tmp_path, limits={}), 0)
    assert [*found.tier_seconds] == [1, 2, 3]
    assert "at usage tier 1, " in next(line for line in found.lines() if line.startswith("Time"))


def test_what_provisioned_throughput_answers_costs_nothing_and_is_counted_apart(sandbox, google, tmp_path):
    sandbox.monitoring.provision(NAME, tokens_per_second=100)
    spec = job(sandbox, google, tmp_path, limits={"budget_usd": 1})
    report = json.loads(Path(run(spec)["report_uri"]).read_text())
    tiers = answers_by_tier(sandbox)
    assert report["service_tiers"] == tiers
    assert 0 < tiers["provisioned"] < 200 == sum(tiers.values())
    assert report["cost_usd"] * 1e9 == pytest.approx(sandbox.token_bill.nano_usd, rel=0.001)
    assert "provisioned" not in report["costs_usd"]


def test_a_job_that_uses_provisioned_throughput_alone_is_free_in_the_estimate_and_in_the_bill(
    sandbox, google, tmp_path
):
    sandbox.monitoring.provision(NAME, tokens_per_second=10_000)
    spec = job(sandbox, google, tmp_path, limits={}, inference={"service_tier": "provisioned"})
    assert make_estimate(spec, 4).planned_cost_usd == 0
    report = json.loads(Path(run(spec)["report_uri"]).read_text())
    assert (report["cost_usd"], sandbox.token_bill.nano_usd) == (0, 0)
    assert answers_by_tier(sandbox) == {"provisioned": 200}


def test_idle_provisioned_throughput_is_filled_before_flex(sandbox, google, tmp_path):
    sandbox.monitoring.provision(NAME, tokens_per_second=100)
    spec = job(sandbox, google, tmp_path, limits={}, inference={"service_tier": "provisioned_then_flex"})
    report = json.loads(Path(run(spec)["report_uri"]).read_text())
    assert report["service_tiers"] == answers_by_tier(sandbox)
    assert {*report["service_tiers"]} == {"provisioned", "flex"}
    assert report["cost_usd"] * 1e9 == pytest.approx(sandbox.token_bill.nano_usd, rel=0.001)
