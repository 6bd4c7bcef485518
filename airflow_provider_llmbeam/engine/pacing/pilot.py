"""The first requests of a process: whether they fail for one reason decides about the others. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from airflow_provider_llmbeam.engine.pacing.shared_failure import SharedFailure
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind

ItemT = TypeVar("ItemT")


class Pilot:
    """Limits the requests of a process until a few rows are answered.

    A mistake of the spec fails every row: it costs the pilot, not a window of requests, and not the whole job. A
    share of failed rows is normal and belongs in the dead letter, so a shared failure is the same one of dozens of
    rows, with at most one answer in fifty. The rows of a pilot must be spread over all lengths (`spread`): the
    longest, which are sent first, may all be cut where the others are not.

    A pilot that is answered costs no more than a window that begins smaller, for one latency.

    Args:
        max_repairs: Maximum number of further requests for an invalid answer.
        max_output_tokens: Limit of an answer, for the sentence about answers that are cut at it; 0 for vectors.
        max_failed_ratio: Fraction of the rows that may fail, unless all do.
    """

    #: Maximum number of requests, repairs included, and of rows that are sent while none is answered; but never so
    #: few rows that a job of which half is answered would often be taken for one of which nothing is.
    REQUESTS, FIRST_ROWS, FEWEST_ROWS = 64, 32, 16
    #: Number of failures for each answer above which a failure is that of the whole job.
    FAILED_PER_ANSWER = 49
    #: Number of answers, and maximum number of outcomes for each of them, that end the pilot.
    ANSWERS, ASKED_PER_ANSWER = 2, 10

    def __init__(self, *, max_repairs: int = 0, max_output_tokens: int = 0, max_failed_ratio: float = 0.0) -> None:
        self.max_output_tokens = max_output_tokens
        self._most = max(self.FEWEST_ROWS, self.REQUESTS // (1 + max_repairs))
        self._first = min(self.FIRST_ROWS, self._most)
        self._max_failed_ratio = max_failed_ratio
        self._answered = 0
        self._failed: Counter[FailureKind] = Counter()
        self._finished = 0
        self.is_over = False
        self.shared_failure: SharedFailure | None = None

    @property
    def room(self) -> float:
        """Maximum number of requests in flight; infinite once the pilot is over."""
        if self.is_over:
            return math.inf
        has_evidence = self._answered or self._finished >= self._first
        return (self._most if has_evidence else self._first) - self._finished

    def answered(self) -> None:
        """Counts an answer."""
        if self.is_over:
            return
        self._answered += 1
        asked = self._answered + self._failed.total()
        if self._answered >= self.ANSWERS and asked <= self.ASKED_PER_ANSWER * self._answered:
            self.is_over = True

    def failed(self, kind: FailureKind, message: str) -> None:
        """Counts the final failure of a row; `shared_failure` may follow."""
        if self.is_over:
            return
        self._failed[kind] += 1
        failed, asked = self._failed[kind], self._answered + self._failed.total()
        is_accepted = self._answered > 0 and failed <= self._max_failed_ratio * asked
        if failed >= self._first and (asked - failed) * self.FAILED_PER_ANSWER <= failed and not is_accepted:
            self.shared_failure = SharedFailure(kind, failed, asked, message)
            self.is_over = True

    def finished(self) -> None:
        """Counts a request that is over, with or without an outcome."""
        self._finished += 1
        if self._finished >= self._most:
            self.is_over = True

    def spread(self, items: Sequence[ItemT]) -> Iterable[ItemT]:
        """Puts items at equal distances first, as many as the pilot may send; the order of the others is kept."""
        if self.is_over or len(items) <= self._most:
            return items
        picked = {int((number + 0.5) * len(items) / self._most) for number in range(self._most)}
        # Those of the first half are again spread over all items.
        first = sorted(picked)
        first = [*first[::2], *first[1::2]]
        return [*(items[index] for index in first), *(it for index, it in enumerate(items) if index not in picked)]
