"""A hold: keeps calls and operations waiting until a test releases them."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Hold:
    """Keeps calls, or the operations that they start, waiting until `release`. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_released = False
        self._waiting = 0
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_released(self) -> bool:
        """Whether calls and operations pass."""
        return self._is_released

    @property
    def waiting(self) -> int:
        """Number of calls and operations that wait now."""
        with self._lock:
            return self._waiting

    def release(self) -> None:
        """Releases all waiting calls and operations, and lets later ones pass; idempotent."""
        with self._lock:
            self._is_released, callbacks = True, self._callbacks
            self._callbacks = []
        for callback in callbacks:
            callback()

    def enter(self) -> None:
        """Counts a call that starts to wait."""
        with self._lock:
            self._waiting += 1

    def leave(self) -> None:
        """Counts a call that has stopped waiting."""
        with self._lock:
            self._waiting -= 1

    def on_release(self, callback: Callable[[], None]) -> None:
        """Calls `callback` at the release, or at once after it. Until the release it counts as waiting."""
        with self._lock:
            if not self._is_released:
                self._waiting += 1
                self._callbacks += [self.leave, callback]
                return
        callback()
