"""What is paid and not committed yet in a partition, and what its journal topic says of it. Pure.

An answer is an entry of the topic, outside all transactions, as soon as it arrives. The transaction that commits
the last message of a fingerprint has its tombstone, and the position has the offset from which the next owner of
the partition reads the topic.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from airflow_provider_llmbeam.engine.journal.entry import decode_entry
from airflow_provider_llmbeam.engine.outcome import Outcome

#: Field of the metadata of a position: the offset from which its next owner reads the topic.
BEGIN = "journal"


@dataclass(slots=True)
class Paid:
    """An answer that is paid.

    Attributes:
        outcome: The answer, or the refused one.
        offset: Offset of its entry.
        was_read: Whether an earlier owner of the partition paid it.
    """

    outcome: Outcome
    offset: int
    was_read: bool = False


@dataclass(slots=True)
class PartitionJournal:
    """The journal of one partition.

    Attributes:
        end: Offset after the last entry that is known.
        known_until: Offset in the source below which all messages were there when the journal was read: an entry
            that none of them uses belongs to none.
        ending: Fingerprints whose tombstone is in the transaction under way, with its end.
    """

    end: int = 0
    known_until: int = 0
    ending: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    _paid: dict[str, Paid] = field(default_factory=dict)
    _uses: dict[str, int] = field(default_factory=dict)

    def restore(self, offset: int, fingerprint: str, value: bytes | None) -> None:
        """Takes a record of the topic; one that cannot be read is no entry.

        Args:
            offset: Its offset.
            fingerprint: Its key.
            value: The entry; `None` for a tombstone.
        """
        self.end = offset + 1
        self._paid.pop(fingerprint, None)
        if value is not None:
            try:
                self._paid[fingerprint] = Paid(decode_entry(value).outcome, offset, was_read=True)
            except ValueError:
                return

    def use(self, fingerprint: str) -> None:
        """Counts a message that needs the answer of a fingerprint."""
        self._uses[fingerprint] = self._uses.get(fingerprint, 0) + 1

    def paid(self, fingerprint: str) -> Paid | None:
        """Returns the answer of a fingerprint if it is paid."""
        return self._paid.get(fingerprint)

    def record(self, fingerprint: str, outcome: Outcome, offset: int, *, was_read: bool = False) -> None:
        """Takes an answer whose entry is stored, or was read."""
        self._paid[fingerprint] = Paid(outcome, offset, was_read)
        self.end = max(self.end, offset + 1)

    def take_ended(self, fingerprints: Iterable[str], position: int) -> dict[str, Paid]:
        """Takes the answers that no message needs any more once a transaction is committed.

        Args:
            fingerprints: Fingerprints of the messages of the transaction, one for each use.
            position: Position in the source that it commits.
        """
        for fingerprint in fingerprints:
            self._uses[fingerprint] -= 1
            if not self._uses[fingerprint]:
                del self._uses[fingerprint]
        if position < self.known_until:
            ended = [each for each in {*fingerprints} if each in self._paid and each not in self._uses]
        else:  # also what was read and no message has used
            ended = [each for each in self._paid if each not in self._uses]
        return {fingerprint: self._paid.pop(fingerprint) for fingerprint in ended}

    def give_back(self, fingerprints: Iterable[str], ended: dict[str, Paid]) -> None:
        """Undoes `take_ended` for a transaction that was aborted."""
        for fingerprint in fingerprints:
            self.use(fingerprint)
        self._paid.update(ended)

    @property
    def begin(self) -> int:
        """Offset from which the next owner of the partition reads the topic."""
        return min((paid.offset for paid in self._paid.values()), default=self.end)


def begin_of(metadata: str | None) -> int:
    """Returns the offset from which the journal is read by the metadata of a position; 0 without any."""
    try:
        begin = json.loads(metadata or "{}")[BEGIN]
    except (ValueError, KeyError, TypeError):
        return 0
    return begin if isinstance(begin, int) and begin > 0 else 0
