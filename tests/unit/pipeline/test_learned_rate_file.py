"""What a run has learned about the rate of a server is known to the next run, on any machine."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.pacing.rejection import Rejection
from airflow_provider_llmbeam.engine.pacing.shared_governor import SharedGovernor
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState
from airflow_provider_llmbeam.pipeline.pacing import learned_rate_file
from airflow_provider_llmbeam.pipeline.pacing.learned_rate_file import LearnedRateFile
from airflow_provider_llmbeam.pipeline.pacing.machine_governor import (
    MachineGovernor,
    identity_of,
    learned_rate,
)
from airflow_provider_llmbeam.spec import EchoModel, GeminiModel, Limits

DAY = 86_400.0
LEARNED = LearnedRateState(
    base_rps=5.0, measured=180.0, measured_seconds=36.0, rejection_seconds=0.02, trust=0.9, burst=40.0
)
GEMINI = GeminiModel(type="gemini", name="gemini-2.5-flash")
UNKNOWN = Limits()


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / "journal").mkdir()
    return f"{tmp_path}/journal/"


def content(directory: str) -> dict[str, Any]:
    (path,) = Path(directory).iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return json.loads(path.read_bytes())


def test_the_next_run_begins_with_the_learned_rate(directory: str, clock: Clock) -> None:
    LearnedRateFile(directory, "a", clock).write(LEARNED)
    found = LearnedRateFile(directory, "a", clock).read()
    assert (found.base_rps, found.burst, found.trust, found.is_next_run) == (5.0, 40.0, 0.9, 1.0)
    assert found == LEARNED.for_next_run()
    assert LearnedRateFile(directory, "b", clock).read() == LearnedRateState(), "another server"


def test_what_the_quota_counts_is_known_to_the_next_run_and_its_duration_to_the_estimate(directory: str) -> None:
    state = dataclasses.replace(LEARNED, unit_tokens=3000.0, tokens_evidence=1.5)
    LearnedRateFile(directory, identity_of(GEMINI, UNKNOWN)).write(state)
    found = LearnedRateFile(directory, identity_of(GEMINI, UNKNOWN)).read()
    assert (found.unit_tokens, found.tokens_evidence, found.base_rps) == (3000.0, 1.5, 5.0)
    known = learned_rate(GEMINI, UNKNOWN, directory)
    assert known is not None
    assert known.tokens_per_minute == 5 * 60 * 3000
    assert known.seconds(100, 600_000) == 40
    assert known.words.startswith("900,000 tokens per minute on ")


def test_a_file_of_a_version_that_counted_no_tokens_is_one_of_requests(directory: str, clock: Clock) -> None:
    file = LearnedRateFile(directory, "a", clock)
    file.write(LEARNED)
    (path,) = Path(directory).iterdir()
    old = {name: value for name, value in content(directory).items() if "tokens" not in name}
    path.write_text(json.dumps(old))
    assert file.read() == LEARNED.for_next_run()
    assert file.read().unit_tokens == 0.0


def test_an_old_rate_counts_as_less_evidence_and_in_the_end_as_none(directory: str, clock: Clock) -> None:
    file = LearnedRateFile(directory, "a", clock)
    file.write(LEARNED)
    evidence = []
    for days in (0, 7, 14, 60):
        clock.now = 1_000_000.0 + days * DAY
        evidence.append(file.read().measured)
    assert evidence == [50.0, 25.0, 12.5, 0.0]
    clock.now = 0.0
    assert file.read().measured == 50.0, "the clock of the other machine was ahead"


def test_the_rate_of_a_run_whose_first_429_came_after_millions_of_requests_is_known_to_the_next_one(
    directory: str, clock: Clock
) -> None:
    """The next run took its own file for a damaged one, and so did all later ones."""
    LearnedRateFile(directory, "a", clock).write(dataclasses.replace(LEARNED, burst=2.5e6))
    found = LearnedRateFile(directory, "a", clock).read()
    assert (found.base_rps, found.burst) == (5.0, 1e6)


def test_nothing_is_written_before_a_rate_is_measured(directory: str, clock: Clock) -> None:
    file = LearnedRateFile(directory, "a", clock)
    file.write(LearnedRateState())
    file.write(LearnedRateState(total=50.0, burst=50.0, since=3.0))
    assert list(Path(directory).iterdir()) == []


def test_the_rate_is_written_at_most_every_fifteen_seconds_and_if_it_has_changed(
    directory: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = []
    monkeypatch.setattr(learned_rate_file.storage, "replace", lambda _, content: writes.append(clock.now))
    file, began = LearnedRateFile(directory, "a", clock), clock.now
    for second in range(60):
        clock.now = began + second
        file.write(LearnedRateState(base_rps=5.0 + min(second, 20), measured=60.0))
    assert [written - began for written in writes] == [0, 15, 30]


def test_a_run_without_a_429_keeps_the_rate_and_the_time_at_which_it_was_learned(
    directory: str, clock: Clock
) -> None:
    """Each night gave the rate its own date, and that of another machine the rate of this one."""
    LearnedRateFile(directory, "a", clock).write(LEARNED)
    began, clock.now = clock.now, clock.now + DAY
    file = LearnedRateFile(directory, "a", clock)
    file.write(file.read())
    file.write(dataclasses.replace(LEARNED, base_rps=1.0).for_next_run())
    assert (content(directory)["requests_per_second"], content(directory)["learned_at"]) == (5.0, began)
    pool = dataclasses.replace(LEARNED.for_next_run(), base_rps=9.0, since=3.0, chance=0.9)
    file.write(pool)
    assert (content(directory)["requests_per_second"], content(directory)["learned_at"]) == (9.0, clock.now)
    other = LearnedRateFile(directory, "b", clock)
    other.read()
    other.write(LEARNED.for_next_run())
    assert LearnedRateFile(directory, "b", clock).read().base_rps == 5.0, "this machine knows the rate"


@pytest.mark.parametrize(
    "changed",
    [
        {"requests_per_second": 0},
        {"requests_per_second": -3.0},
        {"requests_per_second": 1e300},
        {"requests_per_second": "fast"},
        {"measured": 1e9},
        {"rejection_seconds": 0},
        {"trust": 2},
        {"burst": 1e12},
        {"burst": None},
        {"unit_tokens": -1},
        {"unit_tokens": 1e-9},
        {"unit_tokens": 1e300},
        {"tokens_evidence": 1e9},
        {"learned_at": -1},
    ],
    ids=str,
)
def test_an_invalid_file_is_named_and_the_rate_is_learned_again(
    directory: str, clock: Clock, caplog: pytest.LogCaptureFixture, changed: dict[str, Any]
) -> None:
    file = LearnedRateFile(directory, "a", clock)
    file.write(LEARNED)
    (path,) = Path(directory).iterdir()
    path.write_text(json.dumps(content(directory) | changed))
    with caplog.at_level(logging.WARNING):
        assert file.read() == LearnedRateState()
    assert f"in '{path}' is not used" in caplog.text


@pytest.mark.fuzz
@given(
    st.builds(
        LearnedRateState,
        base_rps=st.floats(0, 1e6),
        measured=st.floats(0, 1e6),
        rejection_seconds=st.floats(0.002, 1),
        trust=st.floats(0, 1),
        burst=st.floats(0, 1e6),
        chance=st.floats(0, 1),
        unit_tokens=st.just(0.0) | st.floats(1, 1e8),
        tokens_evidence=st.floats(-10, 10),
        share=st.just(0.0) | st.floats(0, 0.9),
    )
)
@example(LearnedRateState(base_rps=0.01, measured=1e6))
@example(LearnedRateState(base_rps=4.0, measured=1, trust=0, chance=0, unit_tokens=1.0))
def test_no_rate_of_an_earlier_run_slows_a_server_that_admits_all_for_more_than_three_minutes(state):
    """Six requests were sent in ten minutes, whoever had written the file."""
    governor, now, sent = LearnedRate(state.for_next_run()), 0.0, 0
    while now < 180 and sent < 500:
        wait = governor.admit(now, 1000.0, 1000.0)
        sent += wait == 0
        now += wait
    assert sent == 500


@pytest.mark.parametrize("text", ["", "{", "[]", '{"burst": NaN}', "\x00" * 100])
def test_a_torn_file_is_passed_over(directory: str, clock: Clock, text: str) -> None:
    file = LearnedRateFile(directory, "a", clock)
    file.write(LEARNED)
    (path,) = Path(directory).iterdir()
    path.write_text(text)
    assert file.read() == LearnedRateState()


def test_a_rate_that_cannot_be_written_is_no_error_and_is_written_later(
    directory: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("no")

    file = LearnedRateFile(directory, "a", clock)
    with monkeypatch.context() as patched:
        patched.setattr(learned_rate_file.storage, "replace", refuse)
        file.write(LEARNED)
    file.write(LEARNED)
    assert content(directory)["requests_per_second"] == 5.0


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a directory for temporary files of its own in place of this machine's."""

    def another() -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("machine")))

    another()
    return another


def test_another_machine_begins_with_what_the_first_one_learned(directory: str, machine: Any) -> None:
    first = MachineGovernor(GEMINI, UNKNOWN, directory)
    assert isinstance(first.admission, SharedGovernor)
    now = 0.0
    for _ in range(4):  # a 429 after every tenth request
        for _ in range(10):
            while (wait := first.admission.admit(now, 1, 1000)) > 0:
                now += wait
            now += 0.2
        first.admission.rejected(now, Rejection(sent_at=now))
    first.batch_ended()
    learned = content(directory)["requests_per_second"]
    assert 1.0 < learned < 6.0

    machine()
    second = MachineGovernor(GEMINI, UNKNOWN, directory)
    assert isinstance(second.admission, SharedGovernor)
    second.admission.admit(0.0, 1, 1000)
    state = second.admission.state
    assert isinstance(state, LearnedRateState)
    assert (state.base_rps, state.is_next_run) == (learned, 1.0)
    found = learned_rate(GEMINI, UNKNOWN, directory)
    assert found is not None
    assert found.requests_per_minute == pytest.approx(60 * learned)


def test_a_machine_with_a_newer_state_of_its_own_keeps_it(directory: str, machine: Any) -> None:
    own = MachineGovernor(GEMINI, UNKNOWN, directory)
    own.admission.admit(0.0, 1, 1000)
    own.admission.rejected(0.1, Rejection(7.0, sent_at=0.05))
    LearnedRateFile(directory, identity_of(GEMINI, UNKNOWN)).write(LEARNED)
    again = MachineGovernor(GEMINI, UNKNOWN, directory)
    assert again.admission.admit(1.0, 1, 1000) > 5.0, "the hold of the other process of this machine"


def test_a_machine_whose_own_state_is_older_begins_with_the_rate_of_another_one(
    directory: str, machine: Any
) -> None:
    """The rate that it had learned weeks ago counted, and replaced the newer one."""
    own = MachineGovernor(GEMINI, UNKNOWN, directory)
    own.admission.admit(0.0, 1, 1000)
    own.admission.rejected(0.1, Rejection(7.0, sent_at=0.05))
    (path,) = Path(tempfile.gettempdir()).rglob("governor-*")
    weeks_ago = time.time() - 21 * DAY
    os.utime(path, (weeks_ago, weeks_ago))
    LearnedRateFile(directory, identity_of(GEMINI, UNKNOWN)).write(LEARNED)
    again = MachineGovernor(GEMINI, UNKNOWN, directory)
    assert isinstance(again.admission, SharedGovernor)
    assert again.admission.admit(1.0, 1, 1000) == 0
    state = again.admission.state
    assert isinstance(state, LearnedRateState)
    assert (state.base_rps, state.is_next_run) == (LEARNED.base_rps, 1.0)


@pytest.mark.parametrize(
    ("model", "limits"),
    [(GEMINI, Limits(requests_per_minute=60)), (EchoModel(type="echo"), UNKNOWN)],
    ids=["known quota", "echo"],
)
def test_nothing_is_kept_if_nothing_is_learned(directory: str, machine: Any, model: Any, limits: Limits) -> None:
    governor = MachineGovernor(model, limits, directory)
    governor.admission.rejected(1.0, Rejection(1.0))
    governor.batch_ended()
    assert list(Path(directory).iterdir()) == []
    assert learned_rate(model, limits, directory) is None


def test_without_a_journal_nothing_is_kept(machine: Any) -> None:
    governor = MachineGovernor(GEMINI, UNKNOWN, None)
    governor.batch_ended()
    assert isinstance(governor.admission, SharedGovernor)
    assert governor.admission.state == LearnedRate().state


def test_jobs_of_one_server_share_its_quota_whatever_their_labels():
    models = [GeminiModel(project="p", labels=labels) for labels in ({}, {"llmbeam-dag": "one"})]
    assert len({identity_of(model, UNKNOWN) for model in models}) == 1


def test_the_next_run_knows_what_share_is_rejected_by_chance(directory: str, clock: Clock) -> None:
    """The rate of an earlier run, which was learned from such rejections, is replaced."""
    LearnedRateFile(directory, "a", clock).write(LEARNED)
    clock.now += 60
    state = LearnedRateState(share=0.1)
    LearnedRateFile(directory, "a", clock).write(state)
    found = LearnedRateFile(directory, "a", clock).read()
    assert (found.share, found.base_rps, found.is_by_chance) == (0.1, 0.0, True)
    assert LearnedRateFile(directory, "a", clock).rate() is None
