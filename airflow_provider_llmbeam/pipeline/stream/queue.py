"""What a worker needs of the queue that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_llmbeam.engine.outcome import Outcome
from airflow_provider_llmbeam.pipeline.stream.histories import Histories
from airflow_provider_llmbeam.pipeline.stream.partition import Commit, Incoming, Place
from airflow_provider_llmbeam.pipeline.stream.pieces import Write
from airflow_provider_llmbeam.pipeline.stream.topics import Topics

#: Attribute of a message of Pub/Sub with the id of the message that it answers, the same if it is sent twice.
MESSAGE_ID = "llmbeam_message_id"
#: What follows an error of a worker.
KEPT = "The answers so far are committed or in the journal; a restart continues from there."
#: Place of an entry that another process has stored.
ELSEWHERE = -1


class QueueMember(Protocol):
    """A reader of the queue. Its functions are called on one thread."""

    def open(self) -> None:
        """Begins to read."""

    def close(self) -> None:
        """Ends, and leaves what is not committed to others."""

    def poll(self, most: int, seconds: float) -> Iterator[tuple[Place, Incoming | None]]:
        """Yields messages, at most so many; `None` is the end of a partition."""
        ...

    def pause(self, places: frozenset[Place]) -> None:
        """Reads no messages of these partitions, and those of all others."""

    def lags(self, positions: Sequence[tuple[Place, int]]) -> dict[Place, int]:
        """Returns the number of messages after each of these positions, as far as the client knows."""
        ...

    def machines(self) -> float | None:
        """Returns by how many a quota is divided for this machine; `None` if it is not known now."""
        ...

    def commit(self, commits: Sequence[Commit], at_ms: int, increment: tuple[bytes, bytes] | None) -> bool:
        """Commits results and positions; returns whether they are, and are not to be tried again."""
        ...


class StreamJournal(Protocol):
    """What is paid and not committed yet."""

    async def write(self, place: Place, fingerprint: str, entry: bytes) -> int | None:
        """Stores an entry; returns where it is, `None` if it is too large."""
        ...

    async def find(self, fingerprint: str) -> Outcome | None:
        """Returns an outcome that another process has stored, and this one has not read yet."""
        ...

    async def close(self) -> None:
        """Stores what is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The queue of a job.

    Attributes:
        topics: Its topics.
        max_bytes: Size of the largest record, in bytes.
        journal: What is paid and not committed yet.
        open_member: Makes a reader, with its name and what takes new, revoked and lost partitions.
        write_piece: Writes a piece of an answer; `None` for none.
        histories: The conversations; `None` without any.
    """

    topics: Topics
    max_bytes: int
    journal: StreamJournal
    open_member: Callable[..., QueueMember]
    write_piece: Write | None = None
    histories: Histories | None = None
