from __future__ import annotations

import dataclasses
import random
from itertools import islice

import pytest
from llmbeam_sandbox.services import METHODS

from bench.soak.verdict import MIB, Sample, Totals, checks, memory_slope
from bench.soak.weather import ALWAYS, PHASES, Phase, RandomFaults, phases

TOTALS = Totals(
    issued=1000,
    answered=1000,
    completions=1000,
    billed=1007,
    faults={"drop": 4, "truncated": 2, "disconnect": 1, "error": 50},
    restarts=1,
    misdirected=0,
    changed=0,
)


def sample(minute: int, *, memory: float = 200.0, index: float = 0.0, **changes: int) -> Sample:
    fields = {"threads": 6, "files": 130, "tasks": 140, **changes}
    return Sample(
        at=60.0 * minute,
        phase="calm",
        issued=12_000 * minute,
        answered=12_000 * minute,
        requests=13_000 * minute,
        rejections=0,
        billed=12_100 * minute,
        memory=int(memory * MIB),
        journal_index=int(index * MIB),
        segments=minute,
        engine_cpu=0.0,
        server_cpu=0.0,
        server_memory=0,
        **fields,
    )


FLAT = [sample(minute, memory=200 + minute % 3) for minute in range(1, 61)]


def failed(samples, totals=TOTALS):
    return [check.name for check in checks(samples, totals) if not check.is_passed]


def test_a_soak_that_loses_nothing_and_does_not_grow_passes():
    assert failed(FLAT) == []


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"answered": 999}, "rows lost"),
        ({"answered": 1001}, "rows answered twice"),
        ({"misdirected": 1}, "answers given to another row"),
        ({"changed": 1}, "answers that changed when a batch was answered again"),
        ({"billed": 1009}, "answers paid for twice that no damaged answer explains"),
        ({"completions": 1001}, "answers paid for twice that no damaged answer explains"),
    ],
)
def test_books_that_do_not_agree_fail(changes, name):
    assert failed(FLAT, dataclasses.replace(TOTALS, **changes)) == [name]


def test_the_books_of_a_short_run_are_checked():
    assert failed([]) == []
    assert failed(FLAT[:1], dataclasses.replace(TOTALS, answered=999)) == ["rows lost"]


def test_a_leak_of_ten_mebibytes_per_hour_fails():
    leaking = [sample(minute, memory=200 + minute / 6) for minute in range(1, 61)]
    assert memory_slope(leaking) == pytest.approx(10.0, rel=0.01)
    assert failed(leaking) == ["growth of memory in the second half"]


def test_the_index_of_the_journal_is_no_leak():
    growing = [sample(minute, memory=200 + minute, index=minute) for minute in range(1, 61)]
    assert failed(growing) == []


def test_memory_that_rises_early_and_stays_there_fails():
    risen = [sample(minute, memory=200 if minute < 20 else 300) for minute in range(1, 61)]
    assert failed(risen) == ["greatest memory over that of the first quarter"]


@pytest.mark.parametrize("name", ["files", "threads", "tasks"])
def test_a_number_that_never_falls_back_fails(name):
    growing = [sample(minute, **{name: 100 + minute}) for minute in range(1, 61)]
    assert failed(growing) == [f"{name}, least of the last quarter"]


def test_every_other_phase_is_calm_and_each_phase_occurs():
    drawn = list(islice(phases(random.Random(0)), 600))
    assert {phase.name for phase, _ in drawn[::2]} == {"calm"}
    assert {phase.name for phase, _ in drawn} == {phase.name for phase in PHASES}
    assert all(phase.seconds[0] <= seconds <= phase.seconds[1] for phase, seconds in drawn)


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.name)
def test_each_phase_has_a_valid_quota(phase: Phase):
    assert (phase.quota(200) == type(phase.quota(200))()) is (phase.rate is None)


def test_the_faults_of_requests_are_counted_by_kind_until_the_weather_is_over():
    faults = RandomFaults(METHODS, random.Random(0))
    taken = [fault for _ in range(20_000) if (fault := faults.take("gemini.generateContent", "")) is not None]
    assert len(taken) == sum(faults.taken.values())
    assert set(faults.taken) == {fault.kind for _, fault in ALWAYS}
    expected = 20_000 * sum(probability for probability, _ in ALWAYS)
    assert len(taken) == pytest.approx(expected, rel=0.2)
    faults.is_over = True
    assert all(faults.take("gemini.generateContent", "") is None for _ in range(1000))
