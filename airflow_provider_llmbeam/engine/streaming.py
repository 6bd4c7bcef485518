"""Answers that arrive in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from airflow_provider_llmbeam.engine.retry import RequestError

PieceT = TypeVar("PieceT")


async def unless_stalled(pieces: AsyncIterator[PieceT], idle_seconds: float) -> AsyncIterator[PieceT]:
    """Passes pieces on as they come.

    Raises:
        RequestError: Nothing came for `idle_seconds`.
    """
    while True:
        try:
            async with asyncio.timeout(idle_seconds):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise RequestError(
                "timeout", f"the answer stalled for {idle_seconds:g} s (`stream_idle_timeout_seconds`)"
            ) from None
        yield piece


def broken_off() -> RequestError:
    """The error of a stream that ended before its answer did; what came of it is thrown away."""
    return RequestError("connection", "the stream broke off before the answer was complete")
