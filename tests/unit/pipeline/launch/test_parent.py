from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import until

from tests.processes import has_ended

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no signal of a parent's death")

#: Starts the command of its arguments, with its own standard input, and waits.
_PARENT = """
import subprocess, sys, time
child = subprocess.Popen(sys.argv[1:], stdin=0, start_new_session=True)
print(child.pid, flush=True)
time.sleep(3600)
"""
#: Holds the lock of the interpreter, as a search of `re` does, so that no thread of this process runs again.
_STUCK = """
import ctypes, sys
from airflow_provider_llmbeam.pipeline.launch.parent import end_with_parent
end_with_parent()
open(sys.argv[1], "w").close()
ctypes.PyDLL(None).sleep(3600)
"""

KillParent = Callable[[list[str], Callable[[], bool]], None]


@pytest.fixture
def ends_with_parent() -> Iterator[KillParent]:
    """Yields a function that kills the parent of a command once it is ready, and waits until that has ended, too.

    The standard input of the command stays open, so that a thread could not see the end of the parent there.
    """
    read, write = os.pipe()

    def check(command: list[str], is_ready: Callable[[], bool]) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "LLMBEAM_TESTS_FORK_SERVER"}
        with subprocess.Popen(
            [sys.executable, "-c", _PARENT, *command],
            stdin=read,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as parent:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            try:
                until(is_ready, "the command is ready")
                parent.kill()
                until(lambda: has_ended(child), "the command ends with its parent")
            finally:
                parent.kill()
                if not has_ended(child):
                    os.kill(child, signal.SIGKILL)

    yield check
    os.close(read)
    os.close(write)


def test_a_process_that_holds_the_interpreter_lock_ends_when_its_parent_is_killed(
    tmp_path: Path, ends_with_parent: KillParent
) -> None:
    begun = tmp_path / "begun"
    ends_with_parent([sys.executable, "-c", _STUCK, str(begun)], begun.exists)


def test_a_job_ends_when_its_parent_is_killed_and_its_standard_input_stays_open(
    tmp_path: Path, ends_with_parent: KillParent
) -> None:
    spec = tmp_path / "spec.json"
    os.mkfifo(spec)
    writers: list[int] = []

    def is_read() -> bool:
        try:
            writers.append(os.open(spec, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody reads it yet
            return False
        return True

    command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", f"--spec={spec}", "--child"]
    ends_with_parent(command, is_read)
    os.close(writers[0])
