"""Rates of the keys of messages."""

from __future__ import annotations

import pytest

from airflow_provider_llmbeam.pipeline.stream import key_limits
from airflow_provider_llmbeam.pipeline.stream.key_limits import KeyLimits
from airflow_provider_llmbeam.spec import PerKey


def test_a_key_above_its_rate_is_refused_and_others_are_not():
    limits = KeyLimits(PerKey(requests_per_minute=60, burst=2))
    assert [limits.admit(b"a", 100.0) for _ in range(4)] == [0.0, 0.0, None, None]
    assert limits.admit(b"b", 100.0) == 0.0
    assert [limits.admit(b"a", 101.0) for _ in range(2)] == [0.0, None]


def test_a_key_that_waits_is_sent_at_its_rate():
    limits = KeyLimits(PerKey(requests_per_minute=60, on_exceeded="wait"))
    assert [limits.admit(b"a", 100.0) for _ in range(3)] == [0.0, 1.0, 2.0]
    assert limits.admit(b"a", 102.5) == pytest.approx(0.5)


def test_keys_at_rest_are_forgotten(monkeypatch):
    monkeypatch.setattr(key_limits, "_SWEEP", 10)
    limits = KeyLimits(PerKey(requests_per_minute=60))
    for number in range(100):
        limits.admit(b"%d" % number, 100.0 + 2 * number)
    assert len(limits._full_at) <= 22
