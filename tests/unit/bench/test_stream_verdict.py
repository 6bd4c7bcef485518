"""What the harness of the stream worker sees of workers that are wrong."""

from dataclasses import replace

import pytest

from bench.stream.plan import steps
from bench.stream.verdict import Evidence, Seen, Sent, judge


def seen(at, number, key="a", partition=0):
    return Seen(at=at, number=number, key=key, partition=partition)


#: Message 1 was in flight at the kill, and message 0 was journaled.
RIGHT = Evidence(
    keys={0: "a", 1: "a", 2: "b"},
    seen=[seen(2.0, 0), seen(5.0, 1), seen(5.5, 2, "b", 1)],
    requests={0: [Sent(1.0, 1.4)], 1: [Sent(2.5), Sent(4.0, 4.4)], 2: [Sent(4.5, 4.9)]},
    journaled={0: 1.5, 1: 4.5, 2: 5.0},
    disturbances=[3.0],
    kills=[3.0],
)


def test_a_message_in_flight_at_a_kill_may_be_paid_twice():
    verdict = judge(RIGHT)
    assert verdict.faults == {}
    assert (verdict.messages, verdict.paid_twice, verdict.unrecorded) == (3, 1, 1)


def test_the_recovery_from_a_kill_is_over_when_all_partitions_have_an_answer():
    evidence = replace(RIGHT, seen=[seen(2.0, 0), seen(5.0, 1), seen(5.5, 2, "b", 1)])
    assert judge(evidence).recoveries == (2.5,)


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"seen": RIGHT.seen[:-1]}, "missing"),
        ({"seen": [*RIGHT.seen, seen(6.0, 2, "b", 1)]}, "repeated"),
        ({"seen": [RIGHT.seen[1], RIGHT.seen[0], RIGHT.seen[2]]}, "disordered"),
        ({"journaled": {0: 1.5, 1: 2.9, 2: 5.0}}, "paid_though_recorded"),
        ({"requests": {1: [Sent(1.0, 1.4), Sent(4.0, 4.4)]}}, "paid_though_answered"),
        ({"disturbances": [2.0]}, "paid_without_cause"),
        ({"undrained": ["worker 0 ended with 1"]}, "undrained"),
    ],
)
def test_each_fault_is_seen(wrong, fault):
    assert judge(replace(RIGHT, **wrong)).faults == {fault: 1}


def test_a_plan_has_each_deed_as_often_as_asked_and_is_the_same_by_its_seed():
    plan = [*steps(7, 50, leaves=2, joins=1, brokers=1)]
    deeds = [step.deed for step in plan]
    assert {deed: deeds.count(deed) for deed in deeds} == {"kill": 50, "leave": 2, "join": 1, "broker": 1}
    assert plan == [*steps(7, 50, leaves=2, joins=1, brokers=1)]
