"""A server on an event loop of its own, in a daemon thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

HOST = "127.0.0.1"
Serve = Callable[[Callable[[int], None], asyncio.Event], Coroutine[Any, Any, None]]
"""Serves on a port: calls the first argument with the port, then returns after the event is set."""


class Server(ABC):
    """A server that runs in a `with` block, or from `start` to `stop`."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Starts to serve; returns when connections are accepted."""

    @abstractmethod
    def stop(self) -> None:
        """Stops; does nothing when it is not running."""


class LoopThread:
    """Runs a server in a daemon thread, from `start` to `stop`.

    Args:
        name: Name of the thread.
        serve: The server.
    """

    def __init__(self, name: str, serve: Serve) -> None:
        self._name = name
        self._serve = serve
        self._thread: threading.Thread | None = None
        self._stop: Callable[[], None] = lambda: None

    @property
    def is_running(self) -> bool:
        """Whether the server accepts connections."""
        return self._thread is not None

    def start(self) -> int:
        """Starts the server, and returns its port when it accepts connections.

        Raises:
            OSError: The port is in use.
        """
        ready: Future[int] = Future()
        thread = threading.Thread(target=self._run, args=(ready,), name=self._name, daemon=True)
        thread.start()
        try:
            port = ready.result()
        except BaseException:
            thread.join()
            raise
        self._thread = thread
        return port

    def stop(self) -> None:
        """Stops the server, and waits for its thread; does nothing if it is not running."""
        if self._thread is None:
            return
        self._stop()
        self._thread.join()
        self._thread = None

    def _run(self, ready: Future[int]) -> None:
        try:
            asyncio.run(self._main(ready))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _main(self, ready: Future[int]) -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()

        def stop() -> None:
            loop.call_soon_threadsafe(stopping.set)

        self._stop = stop
        await self._serve(ready.set_result, stopping)


async def stop_accepting(listener: socket.socket) -> None:
    """Accepts no further connection, and waits until each that was accepted is known to its server.

    That takes three turns of the loop. If the server is closed before, asyncio of Python 3.11 fails to attach the
    connection, and leaves it open: 7 of 60 servers that were stopped while clients connected.
    """
    asyncio.get_running_loop().remove_reader(listener)
    for _ in range(3):
        await asyncio.sleep(0)
