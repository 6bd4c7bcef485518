"""The distribution of bundles: small ones, each to the harness with the fewest, as the service balances work."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from apache_beam.runners.portability.fn_api_runner import fn_runner

BUNDLES_PER_HARNESS = 16
"""Bundles per harness of a stage that reads groups; with the runner's own one, the slowest would end alone."""
MIN_KEYS = 4
BUNDLES_AT_ONCE = 2
"""Bundles that a harness processes at a time; the runner gives it all of them."""


class Distribution:
    """Distributes bundles to several harnesses.

    Args:
        harnesses: Number of harnesses.
    """

    def __init__(self, harnesses: int) -> None:
        self._harnesses = harnesses
        self._free = threading.Semaphore(harnesses * BUNDLES_AT_ONCE)
        self._lock = threading.Lock()
        self._assigned: Counter[str] = Counter()

    def install(self) -> None:
        """Splits the runner's parallel stages into smaller bundles."""
        process, harnesses = fn_runner.ParallelBundleManager.process_bundle, self._harnesses

        def process_bundle(manager: Any, inputs: Mapping[str, Any], *arguments: Any, **options: Any) -> Any:
            manager._num_workers = bundles(harnesses, inputs)
            return process(manager, inputs, *arguments, **options)

        fn_runner.ParallelBundleManager.process_bundle = process_bundle

    @contextmanager
    def turn(self, handlers: list[Any]) -> Iterator[Any]:
        """Waits for a harness that accepts another bundle, and yields it."""
        with self._free:
            with self._lock:
                chosen = min(handlers, key=lambda handler: self._assigned[handler.worker_id])
                self._assigned[chosen.worker_id] += 1
            try:
                yield chosen
            finally:
                with self._lock:
                    self._assigned[chosen.worker_id] -= 1


def bundles(harnesses: int, inputs: Mapping[str, Any]) -> int:
    """Returns the number of bundles of a stage: more than harnesses if it reads groups by many keys."""
    # Only the runner's buffer of a GroupByKey has a `_table`; other buffers do not have a length.
    keys = max((len(getattr(buffer, "_table", ())) for buffer in inputs.values()), default=0)
    return max(harnesses, min(harnesses * BUNDLES_PER_HARNESS, keys // MIN_KEYS))
