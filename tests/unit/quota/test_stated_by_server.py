"""The limits that a server states in its replies are evidence of its quota."""

from __future__ import annotations

from typing import Any

import pytest
from llmbeam_sandbox import ManualClock, ModelSettings, Quota, Sandbox

from airflow_provider_llmbeam.hooks.google.authentication import ModelAuthentication
from airflow_provider_llmbeam.hooks.probe import Probe, Prober
from airflow_provider_llmbeam.quota.hook import QuotaHook
from airflow_provider_llmbeam.spec.model import parse_model

QUOTA = Quota(requests_per_minute=1000, tokens_per_minute=50_000, burst_seconds=60.0)


@pytest.mark.parametrize(
    "model",
    [{"type": "anthropic", "name": "claude-haiku-5-5"}, {"type": "openai", "name": "gpt-5-mini"}],
    ids=["anthropic", "openai"],
)
def test_the_limits_of_an_account_are_known_from_one_probe(
    monkeypatch: pytest.MonkeyPatch, model: dict[str, Any]
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    clock = ManualClock()
    with Sandbox(models=ModelSettings(quota=QUOTA), clock=clock) as sandbox:
        url = sandbox.url if model["type"] == "anthropic" else sandbox.openai_url
        found = parse_model(model | {"base_url": url})
        prober = Prober(found, authenticate=ModelAuthentication(found), now=clock, sleep=lambda seconds: None)
        probe = prober.probe(2)
    assert Probe.from_dict(probe.to_dict()) == probe
    health = QuotaHook(found, now=clock).health(probe=probe)
    assert (health.verdict, health.limits) == ("healthy", {"requests": 1000, "tokens": 50_000})
    assert health.usage["requests"] == 2
    assert health.rates["requests"] == pytest.approx(0.95 * 998)
    assert "The server allows 1,000 requests per minute, of which 0% are used." in health.sentence


def test_a_server_that_states_no_limits_is_judged_by_its_answers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    clock = ManualClock()
    with Sandbox(clock=clock) as sandbox:
        found = parse_model({"type": "anthropic", "name": "claude-haiku-5-5", "base_url": sandbox.url})
        probe = Prober(found, authenticate=ModelAuthentication(found), now=clock).probe(1)
    health = QuotaHook(found, now=clock).health(probe=probe)
    assert (health.verdict, health.limits) == ("healthy", {})
