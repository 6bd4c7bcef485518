from __future__ import annotations

import pytest

from airflow_provider_llmbeam.engine.pacing.outage import Outage
from airflow_provider_llmbeam.engine.retry import RequestError


def fail(outage: Outage, now: float, *rows: int, is_unconnected: bool = False) -> None:
    for row in rows:
        outage.failed(now, row, RequestError("connection", "no", is_unconnected=is_unconnected))


def opened(now: float = 100.0) -> Outage:
    outage = Outage()
    fail(outage, now, *range(8))
    assert outage.is_open
    return outage


def test_a_few_failures_open_nothing() -> None:
    outage = Outage()
    fail(outage, 100.0, *range(7))
    assert not outage.is_open
    assert outage.admit(100.0) == 0


def test_a_reply_between_the_failures_starts_the_count_again() -> None:
    outage = Outage()
    for now in range(1000):
        fail(outage, float(now), now, now + 1, now + 2)
        outage.replied()
    assert not outage.is_open


def test_one_row_that_breaks_its_connections_opens_nothing() -> None:
    outage = Outage()
    fail(outage, 100.0, *[1] * 1000)
    assert not outage.is_open


def test_one_row_that_cannot_connect_shows_that_the_server_is_down() -> None:
    outage = Outage()
    fail(outage, 100.0, *[1] * 8, is_unconnected=True)
    assert outage.is_open


def test_only_one_probe_is_sent_per_interval_which_grows_to_five_seconds() -> None:
    outage, now, probes = opened(), 100.0, []
    while now < 140:
        if (wait := outage.admit(now)) == 0:
            probes.append(now)
            assert outage.admit(now) > 0, "a second request at the same time is held"
        now += wait or 0.001
    assert [round(b - a) for a, b in zip([100, *probes], probes, strict=False)] == [1, 1, 2, 4, 5, 5, 5, 5, 5, 5]


def test_a_reply_to_a_probe_lets_all_requests_go_on() -> None:
    outage = opened()
    outage.replied()
    assert [outage.admit(100.0) for _ in range(1000)] == [0.0] * 1000


@pytest.mark.parametrize(("now", "ended_after_seconds"), [(159.0, None), (160.0, 60.0)])
def test_an_outage_of_a_minute_ends_the_job(now: float, ended_after_seconds: float | None) -> None:
    outage = opened()
    fail(outage, now, 1)
    assert outage.ended_after_seconds == ended_after_seconds


def test_two_short_outages_are_not_added_up() -> None:
    outage = opened()
    fail(outage, 150.0, 1)
    outage.replied()
    fail(outage, 155.0, *range(8))
    fail(outage, 200.0, *range(8))
    assert outage.ended_after_seconds is None
