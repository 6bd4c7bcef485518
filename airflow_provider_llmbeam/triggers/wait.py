"""The trigger that only waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent


class WaitTrigger(BaseTrigger):
    """Fires one event, without content, when a time has come. Another triggerer can take it over.

    Args:
        until: Unix time.
    """

    def __init__(self, *, until: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.until = until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns the class path and the arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"until": self.until}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Waits, and yields the event."""
        await asyncio.sleep(max(0.0, self.until - time.time()))
        yield TriggerEvent({})  # type: ignore[no-untyped-call]
