from __future__ import annotations

import pytest
import waiting


@pytest.fixture
def clock(monkeypatch):
    """The clock that `until` reads, in seconds; time passes only while `until` sleeps."""
    passed = [0.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: passed[0])
    monkeypatch.setattr(waiting.time, "sleep", lambda seconds: passed.__setitem__(0, passed[0] + seconds))
    return passed


@pytest.fixture
def three_times_slower(monkeypatch):
    monkeypatch.setattr(waiting, "slowdown", lambda: 3.0)
    monkeypatch.setattr(waiting, "load", lambda: 1.0)


def test_until_returns_the_value_of_the_condition(clock, three_times_slower):
    found = iter([None, 0, "here"])
    assert waiting.until(lambda: next(found), "it is here", pause_seconds=0.25) == "here"
    assert clock == [0.5]


def test_a_timeout_is_scaled_to_the_machine_and_describes_the_condition_at_its_end(clock, three_times_slower):
    def describe() -> str:
        return f"it is here, at {clock[0]:.0f} s"

    with pytest.raises(TimeoutError, match=r"Not within 3[01] s: it is here, at 3[01] s"):
        waiting.until(lambda: None, describe, timeout_seconds=10, pause_seconds=1)


def test_a_timeout_grows_with_the_load_of_the_machine_during_the_wait(clock, three_times_slower, monkeypatch):
    monkeypatch.setattr(waiting, "load", lambda: 1.0 if clock[0] < 20 else 1.5)
    with pytest.raises(TimeoutError, match=r"Not within 4[56] s: the condition"):
        waiting.until(lambda: None, timeout_seconds=10, pause_seconds=1)


def test_a_timeout_grows_at_most_fivefold(monkeypatch):
    monkeypatch.setattr(waiting, "slowdown", lambda: 4.0)
    monkeypatch.setattr(waiting, "load", lambda: 50.0)
    assert waiting.scaled(3) == 15


@pytest.mark.parametrize(("loop_seconds", "slowdown"), [(0.5, 1.0), (1.0, 1.0), (2.5, 2.5)])
def test_the_slowdown_is_at_least_one(monkeypatch, loop_seconds, slowdown):
    monkeypatch.setattr(waiting, "loop_seconds", lambda: loop_seconds * waiting.REFERENCE_SECONDS)
    assert waiting.slowdown() == slowdown


def test_the_speed_is_measured_once(monkeypatch):
    times = iter(range(6))
    monkeypatch.setattr(waiting.time, "perf_counter", lambda: next(times))
    waiting.loop_seconds.cache_clear()
    try:
        assert [waiting.loop_seconds() for _ in range(2)] == [1, 1]
    finally:
        waiting.loop_seconds.cache_clear()
