"""Programs of scripts and tests end with the process that started them, in whichever way that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import sessions
from waiting import until

from tests.processes import has_ended

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
CHILD = "import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(600)"
PROGRAM = f"""
import subprocess, sys
with subprocess.Popen([sys.executable, "-c", {CHILD!r}]):
    sys.stdin.read()
"""
PARENT = f"""
import signal, sys, sessions
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
program = sessions.start([sys.executable, "-c", {PROGRAM!r}])
print(program.pid, flush=True)
program.wait()
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_program_and_a_child_with_a_process_group_of_its_own_end_with_their_parent(sign):
    command, environment = [sys.executable, "-c", PARENT], os.environ | {"PYTHONPATH": str(SCRIPTS)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        assert not any(map(has_ended, pids))
        assert len(set(map(os.getsid, pids))) == 1
        assert len(set(map(os.getpgid, pids))) == 2
        parent.send_signal(sign)
        until(lambda: all(map(has_ended, pids)))


def test_a_program_has_no_standard_input_and_its_own_exit_status():
    command = [sys.executable, "-c", "import sys; sys.exit(3 + len(sys.stdin.read()))"]
    assert sessions.start(command).wait() == 3


def test_a_session_is_killed_without_its_leader_and_no_other_one_that_has_its_id():
    own = psutil.Process().create_time()
    assert sessions._is_same(os.getpid(), own)
    assert not sessions._is_same(os.getpid(), own - 1)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert sessions._is_same(ended.pid, own)


def test_a_leader_whose_id_is_now_that_of_another_session_kills_nothing():
    leader = sessions.start([sys.executable, "-c", "import time; time.sleep(600)"])
    began_at, leader._began_at = leader._began_at, leader._began_at - 1
    sessions.kill([leader])
    assert leader.poll() is None
    leader._began_at = began_at
    sessions.kill([leader])
    assert leader.wait() == -signal.SIGKILL
