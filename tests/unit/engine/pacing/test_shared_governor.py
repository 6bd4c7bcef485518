from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import pytest

from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.pacing.shared_governor import SharedGovernor, shared_path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sub" / "governor"


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


def test_a_429_of_one_governor_holds_the_other(path):
    first, second = shared(path), shared(path)
    first.admit(100.0, 1)
    first.rejected(100.0, 5.0)
    assert second.admit(101.0, 1) == pytest.approx(4.0)


def test_tokens_refunded_by_one_governor_are_available_to_the_other(path):
    first, second = shared(path, tokens_per_minute=60_000), shared(path, tokens_per_minute=60_000)
    first.admit(100.0, 1000)
    assert second.admit(100.0, 500) == pytest.approx(0.5)
    first.settle(1000, 500, is_answered=True)
    assert second.admit(100.0, 500) == 0


def test_a_state_that_is_outdated_or_from_before_a_reboot_is_discarded(path):
    first = shared(path)
    first.admit(100_000.0, 1)
    first.rejected(100_000.0, 500.0)
    assert shared(path).admit(100_001.0, 1) > 400
    assert shared(path).admit(101_000.0, 1) == 0
    first.rejected(101_000.0, 500.0)
    assert shared(path).admit(5.0, 1) == 0


def test_a_process_killed_while_it_holds_the_lock_leaves_it_free(path):
    code = (
        "import sys, fcntl, os, time\n"
        "file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"
    )
    governor = shared(path)
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.wait()
    holder.stdout.close()
    file = os.open(path, os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if another process holds it
    os.close(file)
    assert governor.admit(100.0, 1) == 0
    governor.close()


def test_different_limits_have_different_files_and_equal_limits_share_one():
    assert shared_path("gemini", 600, None) == shared_path("gemini", 600, None)
    assert shared_path("gemini", 600, None) != shared_path("gemini", 300, None)
