from __future__ import annotations

import fcntl
import logging
import math
import os
import random
import resource
import signal
import stat
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

import pytest

from airflow_provider_llmbeam.engine.pacing import shared_governor
from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.pacing.rejection import Rejection
from airflow_provider_llmbeam.engine.pacing.shared_governor import SharedGovernor, shared_path
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sub" / "governor"


def learned():
    """Returns the governor of a run whose rate, 10 requests per second, an earlier run has learned."""
    return LearnedRate(LearnedRateState(base_rps=10.0, measured=50.0).for_next_run())


def shared(path, **limits):
    return SharedGovernor(Governor(**(limits or {"requests_per_minute": 600})), path)


def test_two_governors_with_one_state_file_share_one_quota(path):
    first, second = shared(path), shared(path)
    admitted, now = 0, 100.0
    while now < 110:
        waits = [governor.admit(now, 1) for governor in (first, second)]
        admitted += waits.count(0)
        now += max(min(waits), 0.01)
    assert admitted == pytest.approx(100, abs=5)


def test_a_change_of_the_number_of_machines_counts_once_whichever_processes_tell_it(path):
    first, second = shared(path), shared(path)
    first.share_among(4)
    second.share_among(4)
    assert (first.state.share, second.state.share) == (0.25, 0.25)
    os.truncate(path, 0)  # as after a pause, when each begins anew
    assert (first.state.share, second.state.share) == (0.25, 0.25)
    learned_rate = SharedGovernor(learned(), path.with_name("learned"))
    before = learned_rate.state
    learned_rate.share_among(4)
    assert learned_rate.state == before


@pytest.mark.parametrize("law", [partial(Governor, requests_per_minute=600), learned])
def test_fifty_processes_that_wait_for_each_other_share_one_quota(path, law):
    """Each read the clock up to 0.2 s before its turn, and lowered the line of the others to its own time."""
    governors = [SharedGovernor(law(), path) for _ in range(50)]
    rng, admitted, now = random.Random(0), 0, 100.0
    while now < 110:
        for governor in governors:
            admitted += governor.admit(now - rng.uniform(0, 0.2), 1) == 0
            now += 0.001
    assert admitted == pytest.approx(100, abs=5)


def test_a_429_of_one_governor_holds_the_other(path):
    first, second = shared(path), shared(path)
    first.admit(100.0, 1)
    first.rejected(100.0, Rejection(5.0))
    assert second.admit(101.0, 1) == pytest.approx(4.0)


def test_tokens_refunded_by_one_governor_are_available_to_the_other(path):
    first, second = shared(path, tokens_per_minute=60_000), shared(path, tokens_per_minute=60_000)
    first.admit(100.0, 1000)
    assert second.admit(100.0, 500) == pytest.approx(0.5)
    first.settle(1000, 500, is_answered=True)
    assert second.admit(100.0, 500) == 0


def test_a_rate_that_one_process_learned_is_used_by_the_other(path):
    first, second = SharedGovernor(LearnedRate(), path), SharedGovernor(LearnedRate(), path)
    admitted, now = 0, 100.0
    while now < 110:
        admitted += first.admit(now, 1) == 0
        now += 0.01
    first.rejected(now, Rejection(10.0))
    assert second.admit(now, 1) == pytest.approx(10.0)
    assert second.admit(now + 10.0, 1) == 0
    assert first.admit(now + 10.0, 1) > 0.01


def test_a_state_that_is_outdated_or_from_before_a_reboot_is_discarded(path):
    first = shared(path)
    first.admit(100_000.0, 1)
    first.rejected(100_000.0, Rejection(500.0))
    assert shared(path).admit(100_001.0, 1) > 400
    assert shared(path).admit(101_000.0, 1) == 0
    first.rejected(101_000.0, Rejection(500.0))
    assert shared(path).admit(5.0, 1) == 0


def test_a_clock_that_is_ten_seconds_behind_is_that_of_a_reboot_and_nobody_waits_until_it_has_caught_up(path):
    shared(path).rejected(300.0, Rejection(60.0))
    assert shared(path).admit(299.0, 1) == pytest.approx(60.0), "others were faster"
    assert shared(path).admit(20.0, 1) == 0


@pytest.mark.parametrize("next_at", [101_000.0, 5.0])
def test_a_run_after_ten_minutes_or_a_reboot_begins_with_the_rate_of_the_earlier_one(path, next_at):
    first, now, admitted = SharedGovernor(LearnedRate(), path), 100_000.0, 0
    while admitted < 100:
        wait = first.admit(now, 1)
        admitted += wait == 0
        now += wait
        if wait == 0 and admitted % 20 == 0:
            first.rejected(now, Rejection(1.0))
    learned = first._governor.state.base_rps
    later = SharedGovernor(LearnedRate(), path)
    assert later.admit(next_at, 1) == 0
    assert later._governor.state.base_rps == learned > 0
    assert later._governor.state.is_next_run


@pytest.mark.parametrize(("minutes", "is_kept"), [(0, True), (9, True), (11, False)])
def test_a_state_that_was_last_used_before_another_machine_learned_its_own_is_discarded(path, minutes, is_kept):
    first = shared(path)
    first.admit(100.0, 1)
    first.rejected(100.0, Rejection(5.0))
    then = time.time() - 60 * minutes
    os.utime(path, (then, then))
    clock_ahead = time.time() + 86_400
    later = SharedGovernor(Governor(requests_per_minute=600), path, learned_at=clock_ahead)
    assert (later.admit(101.0, 1) > 0) is is_kept


@pytest.fixture
def holder(path):
    """A process that holds the lock."""
    code = (
        "import sys, fcntl, os, time\n"
        "file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"
    )
    path.parent.mkdir()
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_process_killed_while_it_holds_the_lock_leaves_it_free(path, holder):
    governor = shared(path)
    holder.kill()
    holder.wait()
    file = os.open(path, os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if another process holds it
    os.close(file)
    assert governor.admit(100.0, 1) == 0
    governor.close()


def test_a_process_stopped_while_it_holds_the_lock_does_not_stop_the_others(path, holder, monkeypatch, caplog):
    holder.send_signal(signal.SIGSTOP)
    pauses = []
    monkeypatch.setattr(shared_governor.time, "sleep", pauses.append)
    monkeypatch.setattr(shared_governor.time, "monotonic", lambda: 0.01 * len(pauses) + 1)
    governor = shared(path)
    with caplog.at_level(logging.WARNING):
        admitted = sum(governor.admit(100.0 + number / 100, 1) == 0 for number in range(1000))
        governor.settle(1, 2, is_answered=True)
        assert governor.rejected(110.0, Rejection(5.0)) >= 5
    assert admitted == pytest.approx(100, abs=5), "its own governor paces it"
    assert 5 <= len(pauses) <= 20, "it waits once, and not again for each call"
    assert len(caplog.messages) == 1
    holder.kill()
    holder.wait()
    assert governor.admit(110.0, 1) == 0
    assert shared(path).admit(110.0, 1) > 0, "the state is shared again"


@contextmanager
def full_disk():
    """Lets each write to a file fail, as on a disk without room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_process_on_a_full_disk_goes_on_with_its_own_rate_until_there_is_room(path, caplog):
    governor = shared(path)
    with caplog.at_level(logging.WARNING), full_disk():
        admitted = sum(governor.admit(100.0 + number / 100, 1) == 0 for number in range(1000))
        governor.settle(1, 2, is_answered=True)
        assert governor.rejected(110.0, Rejection(5.0)) >= 5
    assert admitted == pytest.approx(100, abs=5), "its own governor paces it"
    (warning,) = caplog.messages
    assert f"{path}, by which the processes of this machine share their rate, cannot be used" in warning
    assert governor.admit(111.0, 1) > 0
    assert shared(path).admit(111.0, 1) > 0, "the state is shared again, with the 429"


def test_a_file_that_can_no_longer_be_locked_or_read_stops_no_request(path, caplog):
    governor = shared(path)
    assert governor.admit(100.0, 1) == 0
    governor.close()
    assert governor.admit(100.0, 1) > 0, "its own governor paces it"
    governor.settle(1, 2, is_answered=True)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", range(13))
def test_a_state_that_is_not_finite_is_discarded(path, value, field):
    governor = shared(path)
    governor.admit(100.0, 1)
    with path.open("r+b") as file:
        file.seek(8 * field)
        file.write(struct.pack("d", value))
    assert governor.admit(100.2, 1) == 0
    assert governor.rejected(100.3, Rejection(1.0)) == 1.0
    assert math.isfinite(sum(struct.unpack("13d", path.read_bytes())))


def test_a_debt_does_not_outlive_ten_minutes_of_polling(path):
    governor = shared(path, tokens_per_minute=60_000)
    governor.admit(100.0, 1)
    with path.open("r+b") as file:
        file.seek(8 * 7)
        file.write(struct.pack("d", -1e12))
    waiting = shared(path, tokens_per_minute=60_000)
    now = 100.0
    while (wait := waiting.admit(now, 1)) > 0:
        now += min(wait, 1.0)
        assert now < 710


def test_a_hold_that_no_server_can_cause_is_discarded(path):
    governor = shared(path)
    governor.rejected(100.0, Rejection(1.0))
    with path.open("r+b") as file:
        file.seek(8 * 5)
        file.write(struct.pack("d", 1e9))
    assert shared(path).admit(100.0, 1) == 0


def test_a_link_is_not_followed(path, tmp_path):
    path.parent.mkdir()
    target = tmp_path / "target"
    target.write_text("theirs")
    path.symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        shared(path)
    path.unlink()
    path.parent.rmdir()
    (tmp_path / "elsewhere").mkdir()
    path.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="is a link"):
        shared(path)
    assert target.read_text() == "theirs"


def test_only_its_owner_can_read_and_write_the_state(path):
    shared(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_pipe_is_refused_without_waiting(path):
    path.parent.mkdir()
    os.mkfifo(path)
    with pytest.raises(PermissionError, match="no regular file"):
        shared(path)


def test_different_names_have_different_files_and_equal_names_share_one():
    assert shared_path("gemini-600") == shared_path("gemini-600")
    assert shared_path("gemini-600") != shared_path("gemini-300")
