"""Stream workers on a real broker: each message is answered once, in order per key, whatever is killed."""

from __future__ import annotations

import pytest

from bench.stream.plan import steps
from bench.stream.verdict import judge
from tests.processes import KILLS
from tests.stream_trials import stream_trial

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def verdict(tmp_path):
    """Returns a function that runs a trial of workers, and judges it."""

    def run(plan, **setting):
        with stream_trial(tmp_path, **setting) as trial:
            return judge(trial.run(plan))

    return run


def test_kills_of_workers_and_broker_lose_repeat_and_pay_nothing_twice_that_was_recorded(verdict):
    found = verdict(steps(61, 2 * KILLS, leaves=1, brokers=1))
    faults = dict(found.faults)
    # A process that waits for a core records an answer later than `RECORD_SECONDS`.
    assert faults.pop("paid_though_answered", 0) <= found.unrecorded / 10
    assert faults == {}
    assert found.paid_twice <= found.unrecorded


@pytest.mark.parametrize(
    ("fault", "seen", "commit_interval_ms"),
    [
        ("positions-first", {"missing"}, 200),
        ("no-transactions", {"repeated"}, 200),
        ("no-journal", {"paid_though_answered"}, 3000),  # so that answers wait long enough
    ],
)
def test_a_wrong_worker_is_seen(fault, seen, commit_interval_ms, verdict):
    program = ("-m", "tests.pipeline.wrong_stream_worker", fault)
    found = verdict(steps(61, 3), program=program, commit_interval_ms=commit_interval_ms)
    assert {*found.faults} & seen
