"""Streamed answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from airflow_provider_llmbeam.engine.retry import RequestError

ChunkT = TypeVar("ChunkT")

#: Maximum length of a streamed answer: see `ANSWER_BYTES`, which limits the others.
MAX_CHARACTERS = 8 * 2**20


class StreamedText:
    """The text of a streamed answer so far."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._characters = 0

    def __bool__(self) -> bool:
        return self._characters > 0

    def add(self, piece: str) -> None:
        """Appends a piece.

        Raises:
            RequestError: The text is too long.
        """
        if not piece:
            return
        self._pieces.append(piece)
        self._characters += len(piece)
        if self._characters > MAX_CHARACTERS:
            raise RequestError(
                "garbage", f"a streamed answer of more than {MAX_CHARACTERS:,} characters", http_status=200
            )

    def whole(self) -> str:
        """Returns the text."""
        return "".join(self._pieces)


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
