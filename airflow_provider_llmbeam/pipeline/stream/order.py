"""Which answers of a partition may be committed: those before which every message is settled. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class PartitionOrder(Generic[ResultT]):
    """The messages of a partition between their consumption and their commit, in the order of their offsets.

    Attributes:
        position: Offset of the first message that is not committed.
        held: Number of results that are not committed.
        held_bytes: Their size, in bytes.
    """

    position: int
    held: int = 0
    held_bytes: int = 0
    _results: dict[int, tuple[ResultT, int] | None] = field(default_factory=dict)
    _taken: int = -1

    @property
    def unsettled(self) -> int:
        """Number of messages that are consumed and have no result."""
        return len(self._results) - self.held

    @property
    def is_empty(self) -> bool:
        """Whether all consumed messages are committed."""
        return not self._results

    def take(self, offset: int) -> bool:
        """Adds a message; returns whether it is new.

        After a rebalance the client may deliver a message a second time: seen once in 90,000 messages, with
        librdkafka 2.16 and a load of 14 on two cores.
        """
        if offset < self.position or offset <= self._taken:
            return False
        self._taken = offset
        self._results[offset] = None
        return True

    def settle(self, offset: int, result: ResultT, size: int) -> None:
        """Adds the result of a message: its answer, or its record in the dead letter.

        Args:
            offset: Offset of the message.
            result: The result.
            size: Its size, in bytes.
        """
        self._results[offset] = result, size
        self.held += 1
        self.held_bytes += size

    def has_ready(self) -> bool:
        """Returns whether the first message that is not committed is settled."""
        return next(self.ready(1), None) is not None

    def ready(self, most: int) -> Iterator[tuple[int, ResultT]]:
        """Yields the offsets and results that may be committed, at most so many."""
        for offset, settled in itertools.islice(self._results.items(), most):
            if settled is None:
                return
            yield offset, settled[0]

    def commit(self, position: int) -> None:
        """Removes the results below a position, which are committed."""
        while self._results and (offset := next(iter(self._results))) < position:
            settled = self._results.pop(offset)
            assert settled is not None
            self.held -= 1
            self.held_bytes -= settled[1]
        self.position = position


@dataclass(slots=True)
class NoOrder(PartitionOrder[ResultT]):
    """Messages whose results may be committed as they come; positions number the results."""

    _waiting: set[int] = field(default_factory=set)

    @property
    def unsettled(self) -> int:
        """Number of messages that are consumed and have no result."""
        return len(self._waiting)

    @property
    def is_empty(self) -> bool:
        """Whether all consumed messages are committed."""
        return not self._waiting and not self._results

    def take(self, offset: int) -> bool:
        """Adds a message; returns whether it is new."""
        self._waiting.add(offset)
        return True

    def settle(self, offset: int, result: ResultT, size: int) -> None:
        """Adds the result of a message, see `PartitionOrder.settle`."""
        self._waiting.discard(offset)
        PartitionOrder.settle(self, self.position + len(self._results), result, size)
