"""Prompts that wait a moment for each other, for servers that take several in one request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from airflow_provider_llmbeam.engine.outcome import Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt


class Batches:
    """Sends prompts in batches: as soon as one is full, or its first prompt has waited long enough.

    Args:
        answer: Answers a batch.
        size: Size of a full batch.
        wait_seconds: Longest time for which a prompt waits for others.
    """

    def __init__(
        self, answer: Callable[[list[Prompt]], Awaitable[list[Outcome]]], size: int, wait_seconds: float
    ) -> None:
        self._answer, self._size, self._wait_seconds = answer, size, wait_seconds
        self._waiting: list[tuple[Prompt, asyncio.Future[Outcome]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, prompt: Prompt) -> Outcome:
        """Sends a prompt with others, and returns its outcome."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Outcome] = loop.create_future()
        self._waiting.append((prompt, outcome))
        if len(self._waiting) >= self._size:
            self._send_batch()
        elif self._timer is None:
            self._timer = loop.call_later(self._wait_seconds, self._send_batch)
        return await outcome

    def _send_batch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting, []
        task = asyncio.get_running_loop().create_task(self._answer_batch(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_batch(self, batch: list[tuple[Prompt, asyncio.Future[Outcome]]]) -> None:
        try:
            outcomes = await self._answer([prompt for prompt, _ in batch])
        except Exception as error:  # noqa: BLE001 - raised for each of them
            for _, waiting in batch:
                if not waiting.done():
                    waiting.set_exception(error)
            return
        for (_, waiting), outcome in zip(batch, outcomes, strict=True):
            if not waiting.done():
                waiting.set_result(outcome)
