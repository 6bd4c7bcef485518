"""Streamed answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from airflow_provider_llmbeam.engine.retry import RequestError

ChunkT = TypeVar("ChunkT")


async def with_idle_timeout(chunks: AsyncIterator[ChunkT], idle_seconds: float) -> AsyncIterator[ChunkT]:
    """Yields chunks as they arrive.

    Raises:
        RequestError: No chunk arrived for `idle_seconds`.
    """
    while True:
        try:
            async with asyncio.timeout(idle_seconds):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise RequestError(
                "timeout", f"the answer stalled for {idle_seconds:g} s (`stream_idle_timeout_seconds`)"
            ) from None
        yield chunk


def incomplete_stream() -> RequestError:
    """Returns the error of a stream that ended before the answer was complete; its text is discarded."""
    return RequestError("connection", "the stream broke off before the answer was complete")
