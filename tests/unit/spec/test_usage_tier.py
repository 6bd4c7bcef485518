from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import EchoModel, GeminiModel, JobSpec, Limits
from airflow_provider_llmbeam.spec.usage_tier import (
    hours_by_tier,
    seconds_by_tier,
    threshold_of,
    thresholds_of,
)

FLASH = GeminiModel(name="gemini-3.5-flash-lite", project="p")


@pytest.mark.parametrize(
    ("model", "second"),
    [
        (FLASH, 4_000_000),
        (GeminiModel(name="publishers/google/models/gemini-2.5-pro", project="p"), 1_000_000),
        (GeminiModel(name="gemini-3.5-flash-lite", project="p", location="europe-west4"), None),
        (GeminiModel(name="gemini-3.5-flash-lite"), None),
        (GeminiModel(name="gemini-embedding-001", project="p"), None),
        (EchoModel(type="echo"), None),
    ],
)
def test_the_thresholds_are_those_of_the_family_in_the_global_location_of_vertex_ai(model, second):
    assert thresholds_of(model).get(2) == second


def test_a_job_may_use_its_share_of_the_threshold_unless_it_states_a_rate():
    assert threshold_of(FLASH, Limits(usage_tier=3, share_ratio=0.5)) == 5_000_000
    assert threshold_of(FLASH, Limits(usage_tier=25_000_000)) == 25_000_000
    assert threshold_of(FLASH, Limits(usage_tier=3, requests_per_minute=60)) is None
    assert threshold_of(FLASH, Limits()) is None


def test_without_a_stated_tier_the_time_is_that_at_each_and_with_one_at_this_one():
    tokens = 768_000_000
    assert hours_by_tier(seconds_by_tier(FLASH, Limits(), tokens)) == (
        "6.4 h at usage tier 1, 3.2 h at usage tier 2, 77 min at usage tier 3"
    )
    assert seconds_by_tier(FLASH, Limits(usage_tier=2), tokens) == {2: 11_520.0}
    assert hours_by_tier(seconds_by_tier(FLASH, Limits(usage_tier=8_000_000), tokens)) == (
        "96 min at a threshold of 8,000,000 tokens per minute"
    )
    assert seconds_by_tier(FLASH, Limits(tokens_per_minute=1), tokens) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"type": "gemini", "project": "p", "location": "us-central1"}},
        {"model": {"type": "echo"}},
        {"model": {"type": "gemini", "project": "p"}, "inference": {"service_tier": "flex"}},
    ],
)
def test_a_tier_where_there_are_no_thresholds_is_refused(changes):
    job = {
        "name": "j",
        "source": {"uri": "in.jsonl", "key": ["id"]},
        "prompt": {"template": "{{ row.text }}"},
        "limits": {"usage_tier": 2},
        "sink": {"uri": "out"},
    }
    assert JobSpec.parse({**job, "model": {"type": "gemini", "project": "p"}}).limits.usage_tier == 2
    with pytest.raises(JobSpecError, match=r"`limits\.usage_tier`: must be left out"):
        JobSpec.parse({**job, **changes})
