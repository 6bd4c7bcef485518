"""One governor per machine, with its state in a file that each worker process locks for every call."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import logging
import math
import operator
import os
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_llmbeam.engine.pacing.governor import Governor, GovernorState
from airflow_provider_llmbeam.engine.pacing.prioritized import PrioritizedRate, PrioritizedState
from airflow_provider_llmbeam.engine.pacing.rejection import Rejection
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate_state import LearnedRateState
from airflow_provider_llmbeam.local_files import open_no_link

_log = logging.getLogger(__name__)

Law = Governor | LearnedRate | PrioritizedRate
State = GovernorState | LearnedRateState | PrioritizedState

#: Age after which an unused state is that of an earlier run: only a learned rate is used further.
_OUTDATED_SECONDS = 600.0
#: Time by which the clock of a caller may be behind the state, as others were faster; more means a reboot.
_BEHIND_SECONDS = 10.0
#: Time for which a call waits for the lock, which others hold for 6 µs each, and the pause between two tries.
_LOCK_SECONDS, _LOCK_PAUSE_SECONDS = 0.1, 0.0001
_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB


class SharedGovernor:
    """A governor whose state is shared by all processes of this machine, without a server.

    A lock and two small file operations take 7 µs per call (measured); a lock ends with its process, so that a
    kill -9 blocks no other process. A process that is stopped (SIGSTOP) while it holds the lock would block the
    event loops of all others: they go on with what they know, without the file, until the lock is free. So does a
    process that can no longer use the file, e.g. as its disk is full: paid answers do not fail for it. Refused:
    `MultiProcessShared` of Beam, whose server ends with the process that started it, and for which each call is a
    round trip.

    Args:
        governor: The governor; its state is replaced by the shared one at each call.
        path: The file, created if it does not exist.
        learned_at: Unix time at which the state of the governor was learned. A shared state that was last used
            well before is older, and is discarded.

    Raises:
        OSError: The file cannot be created, it is a link or no regular file, or it or its directory belongs to
            another user.
    """

    def __init__(self, governor: Law, path: Path, learned_at: float = 0.0) -> None:
        # For the type checker: each law has its own state, and `_load` returns the same kind.
        self._governor: Any = governor
        self._kind = type(governor.state)
        names = [field.name for field in dataclasses.fields(governor.state)]
        self._values = operator.attrgetter(*names)
        self._record = struct.Struct(f"{len(names)}d")
        self._fresh = dataclasses.replace(governor.state)
        self._file = _open(path)
        # A file that was written lately is in use, whatever the clock of the other machine says.
        if min(learned_at, time.time()) - os.fstat(self._file).st_mtime > _OUTDATED_SECONDS:
            os.ftruncate(self._file, 0)
        self._path = path
        self._is_blocked = False
        #: Whether the last call could not write the file, so that its state is older than that of this process.
        self._is_ahead = False
        self._has_warned = False

    def admit(self, now: float, tokens: float, backlog: float = 0.0) -> float:
        """See `LearnedRate.admit`."""
        with self._locked(now):
            return float(self._governor.admit(now, tokens, backlog))

    def settle(self, reserved_tokens: float, used_tokens: float, *, is_answered: bool = False) -> None:
        """See `Governor.settle`."""
        with self._locked():
            self._governor.settle(reserved_tokens, used_tokens, is_answered=is_answered)

    def rejected(self, now: float, rejection: Rejection) -> float:
        """See `LearnedRate.rejected`."""
        with self._locked(now):
            return float(self._governor.rejected(now, rejection))

    def share_among(self, machines: float) -> None:
        """See `Governor.share_among`; the processes of the machine may all call it."""
        with self._locked():
            self._governor.share_among(machines)
            state, self._governor.state = self._governor.state, self._fresh  # after a pause, too
            self._governor.share_among(machines)
            self._governor.state = state

    @property
    def state(self) -> State:
        """The state at present."""
        with self._locked():
            state: State = dataclasses.replace(self._governor.state)
        return state

    def close(self) -> None:
        """Closes the file; the state is kept for other processes."""
        os.close(self._file)

    @contextmanager
    def _locked(self, now: float | None = None) -> Iterator[None]:
        if not self._done(self._lock):
            yield
            return
        try:
            if not self._is_ahead:
                self._done(partial(self._read, now))
            yield
            self._is_ahead = not self._done(self._write)
        finally:
            self._done(self._unlock)

    def _done(self, step: Callable[[], bool]) -> bool:
        """Does something with the file; returns whether it was done."""
        try:
            return step()
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "%s, by which the processes of this machine share their rate, cannot be used: %s. Until it "
                    "can, this process paces its requests alone. Make room there, or set TMPDIR to a directory on "
                    "another disk.",
                    self._path,
                    error,
                )
            return False

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._file, _TRY)
        except BlockingIOError:
            if not self._wait_for_lock():
                return False
        self._is_blocked = False
        return True

    def _unlock(self) -> bool:
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return True

    def _read(self, now: float | None) -> bool:
        self._governor.state = self._load(now)
        return True

    def _write(self) -> bool:
        return (
            os.pwrite(self._file, self._record.pack(*self._values(self._governor.state)), 0) == self._record.size
        )

    def _wait_for_lock(self) -> bool:
        """Tries for a short time, but not if the lock is known to be blocked; returns whether it is taken."""
        if self._is_blocked:
            return False
        deadline = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < deadline:
            time.sleep(_LOCK_PAUSE_SECONDS)
            try:
                fcntl.flock(self._file, _TRY)
            except BlockingIOError:
                continue
            return True
        self._is_blocked = True
        _log.warning(
            "%s is locked by a process that does not go on, perhaps a stopped one. Until it does, this process "
            "paces its requests alone.",
            self._path,
        )
        return False

    def _load(self, now: float | None) -> State:
        record = os.pread(self._file, self._record.size, 0)
        if len(record) < self._record.size:
            return dataclasses.replace(self._fresh)
        values = self._record.unpack(record)
        # The sum is not finite if one of the values is not.
        if not math.isfinite(sum(values)):
            return dataclasses.replace(self._fresh)
        state = self._kind(*values)
        if now is not None and (
            not -_BEHIND_SECONDS <= now - state.grown_at <= _OUTDATED_SECONDS
            or state.held_until - now > Governor.LONGEST_HOLD_SECONDS + _OUTDATED_SECONDS
        ):
            return self._of_next_run(state)
        return state

    def _of_next_run(self, state: State) -> State:
        return state.for_next_run() if isinstance(state, LearnedRateState) else dataclasses.replace(self._fresh)


def _open(path: Path) -> int:
    """Opens the file without following a link: the directory for temporary files is shared with other users."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.parent.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{path.parent} is a link, no directory, or belongs to another user")
    file = open_no_link(path, os.O_RDWR | os.O_CREAT)
    if os.fstat(file).st_uid != os.getuid():
        os.close(file)
        raise PermissionError(f"{path} belongs to another user")
    return file


def shared_path(identity: str) -> Path:
    """Returns the path of the state of that name, for this user."""
    # The layout is part of the name, so that another version of this package uses another file.
    kinds = (GovernorState, LearnedRateState, PrioritizedState)
    layout = [field.name for kind in kinds for field in dataclasses.fields(kind)]
    digest = hashlib.sha256(repr((layout, identity)).encode()).hexdigest()[:16]
    # A task gives the process of its job a temporary directory of its own, see `tasks.process`.
    directory = os.environ.get("LLMBEAM_SHARED_TMPDIR") or tempfile.gettempdir()
    return Path(directory, f"llmbeam-{os.getuid()}", f"governor-{digest}")
