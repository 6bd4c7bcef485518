"""What was inspected, the quotas, and the projects whose API is disabled. No HTTP."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from llmbeam_sandbox.core.clock import Clock
from llmbeam_sandbox.models.quota import TokenBucket

#: Requests per minute of a project: to all locations, and to each one but `global`.
#: Source: cloud.google.com/sensitive-data-protection/limits.
REQUESTS_PER_MINUTE, REGIONAL_REQUESTS_PER_MINUTE = 10_000, 600
_BURST_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """One request that was answered.

    Attributes:
        project: Project that is billed.
        location: Location in the path; "global" where it has none.
        texts: Column and text of each value that is not empty; the column of an item without a table is "".
        text_bytes: Size of the texts in bytes, which is billed.
        is_truncated: Whether findings were left out.
    """

    project: str
    location: str
    texts: tuple[tuple[str, str], ...]
    text_bytes: int
    is_truncated: bool


class DlpState:
    """The state of the service. Safe to use from any thread.

    Args:
        clock: Returns seconds since the epoch.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Forgets the requests, and sets quotas and limits as they are at the start."""
        with self._lock:
            #: The requests that were answered.
            self.inspected: list[Inspected] = []
            #: Projects whose API is disabled.
            self.disabled_projects: set[str] = set()
            #: Maximum number of findings of one request.
            self.max_findings = 3_000
            self._requests_per_minute: int | None = None
            self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def set_quota(self, requests_per_minute: int) -> None:
        """Changes the quota of each project and location; nothing of it is used yet."""
        with self._lock:
            self._requests_per_minute = requests_per_minute
            self._buckets.clear()

    def admit(self, project: str, location: str) -> bool:
        """Counts a request, unless it exceeds a quota; returns whether it is admitted."""
        with self._lock:
            now = self._clock()
            buckets = [self._bucket(project, each) for each in dict.fromkeys(("global", location))]
            if any(bucket.wait_seconds(now, 1) > 0 for bucket in buckets):
                return False
            for bucket in buckets:
                bucket.take(now, 1)
            return True

    def _bucket(self, project: str, location: str) -> TokenBucket:
        usual = REQUESTS_PER_MINUTE if location == "global" else REGIONAL_REQUESTS_PER_MINUTE
        per_minute = self._requests_per_minute or usual
        if (project, location) not in self._buckets:
            self._buckets[project, location] = TokenBucket(per_minute=per_minute, burst_seconds=_BURST_SECONDS)
        return self._buckets[project, location]

    def record(self, inspected: Inspected) -> None:
        """Adds a request that was answered."""
        with self._lock:
            self.inspected.append(inspected)
