"""Who gets which bundle: small ones, each to a harness that has few in hand, as the service balances work."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from apache_beam.runners.portability.fn_api_runner import fn_runner

BUNDLES_PER_HARNESS = 16
"""Of a stage that reads groups; the runner's own would be one, and who is slow would end last and alone."""
MIN_KEYS = 4
AT_ONCE = 2
"""Bundles that a harness has in hand; the runner's own would be all."""


class Distribution:
    """Deals out bundles to several harnesses.

    Args:
        harnesses: How many there are.
    """

    def __init__(self, harnesses: int) -> None:
        self._harnesses = harnesses
        self._free = threading.Semaphore(harnesses * AT_ONCE)
        self._lock = threading.Lock()
        self._in_hand: Counter[str] = Counter()

    def install(self) -> None:
        """Cut the stages of the runner's parallel kind into smaller bundles."""
        process, harnesses = fn_runner.ParallelBundleManager.process_bundle, self._harnesses

        def process_bundle(manager: Any, inputs: Mapping[str, Any], *arguments: Any, **options: Any) -> Any:
            manager._num_workers = bundles(harnesses, inputs)
            return process(manager, inputs, *arguments, **options)

        fn_runner.ParallelBundleManager.process_bundle = process_bundle

    @contextmanager
    def turn(self, handlers: list[Any]) -> Iterator[Any]:
        """Wait for a harness that can take one bundle more; the body runs it there."""
        with self._free:
            with self._lock:
                chosen = min(handlers, key=lambda handler: self._in_hand[handler.worker_id])
                self._in_hand[chosen.worker_id] += 1
            try:
                yield chosen
            finally:
                with self._lock:
                    self._in_hand[chosen.worker_id] -= 1


def bundles(harnesses: int, inputs: Mapping[str, Any]) -> int:
    """Return into how many bundles a stage is cut: more than harnesses where it reads groups by many keys."""
    # `_table` is what the runner's buffer of a GroupByKey has; other buffers do not tell their length.
    keys = max((len(getattr(buffer, "_table", ())) for buffer in inputs.values()), default=0)
    return max(harnesses, min(harnesses * BUNDLES_PER_HARNESS, keys // MIN_KEYS))
