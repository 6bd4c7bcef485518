"""A hold: calls and operations that a test keeps waiting until it releases them."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Hold:
    """Keeps calls, or the operations that calls begin, waiting until `release`. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_released = False
        self._waiting = 0
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_released(self) -> bool:
        """Whether nothing waits any longer."""
        return self._is_released

    @property
    def waiting(self) -> int:
        """How many calls and operations wait now."""
        with self._lock:
            return self._waiting

    def release(self) -> None:
        """Let all that waits go on, and all that comes later pass; does nothing the second time."""
        with self._lock:
            self._is_released, callbacks = True, self._callbacks
            self._callbacks = []
        for callback in callbacks:
            callback()

    def enter(self) -> None:
        """Count a call that begins to wait."""
        with self._lock:
            self._waiting += 1

    def leave(self) -> None:
        """Count a call that waits no longer."""
        with self._lock:
            self._waiting -= 1

    def on_release(self, callback: Callable[[], None]) -> None:
        """Call `callback` at the release; at once when that is past. Until then it counts as waiting."""
        with self._lock:
            if not self._is_released:
                self._waiting += 1
                self._callbacks += [self.leave, callback]
                return
        callback()
