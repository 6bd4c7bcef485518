"""The conversations of the partitions that this process owns.

Their turns are in a compacted topic, written in the transaction of the answer. Here are those that are committed,
in a file of SQLite, which is no more than a copy; a conversation with turns that are not committed is in memory.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.pipeline.conversation.store import decode_turn, encode_turn
from airflow_provider_llmbeam.pipeline.conversation.turns import (
    AskedTurn,
    Conversation,
    Dialogue,
    RowTurn,
    StoredTurn,
)
from airflow_provider_llmbeam.spec.conversation import Conversation as ConversationSpec
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter

_DAY_SECONDS = 86_400.0
#: A place in Kafka: topic and partition.
_Place = tuple[str, int]


@dataclass(slots=True)
class Talk:
    """A conversation with messages that are not committed.

    Attributes:
        lock: Lets its messages be answered one after the other, in their order.
        messages: Number of them.
        state: Its turns after the last answer; `None` before any.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    messages: int = 0
    state: bytes | None = None


class Histories:
    """The committed turns of conversations.

    Args:
        conversation: The `conversation` of the job.
        fingerprint: Computes the fingerprints of the job.
        max_bytes: Size of the largest record, in bytes.
    """

    def __init__(self, conversation: ConversationSpec, fingerprint: Fingerprinter, max_bytes: int) -> None:
        self._conversation, self._fingerprint, self._max_bytes = conversation, fingerprint, max_bytes
        self._directory = tempfile.TemporaryDirectory(prefix="llmbeam-stream-")
        path = Path(self._directory.name) / "histories.sqlite"
        # The loop reads and writes, and the thread of the client restores.
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._lock = threading.Lock()
        self._execute("PRAGMA journal_mode=OFF")
        self._execute("PRAGMA synchronous=OFF")
        self._execute(
            "CREATE TABLE h (topic, part, name, state, at, PRIMARY KEY (topic, part, name)) WITHOUT ROWID"
        )
        self._execute("CREATE INDEX by_age ON h (at)")

    def close(self) -> None:
        """Deletes the file."""
        self._database.close()
        self._directory.cleanup()

    def drop(self, place: _Place) -> None:
        """Removes the conversations of a partition that goes to another member."""
        self._execute("DELETE FROM h WHERE topic = ? AND part = ?", place)

    def put(self, place: _Place, states: Iterable[tuple[str, bytes | None]], at: float) -> None:
        """Stores the turns of conversations, and removes conversations without a turn that is in a history.

        Args:
            place: Their partition.
            states: The turns, by name of the conversation; `None` removes them.
            at: Unix time of the last one.
        """
        with self._lock:
            self._database.execute("BEGIN")
            self._database.execute("DELETE FROM h WHERE at < ?", (self._oldest(at),))
            for name, state in states:
                if state is None:
                    self._database.execute(
                        "DELETE FROM h WHERE topic = ? AND part = ? AND name = ?", (*place, name)
                    )
                else:
                    self._database.execute("REPLACE INTO h VALUES (?, ?, ?, ?, ?)", (*place, name, state, at))
            self._database.execute("COMMIT")

    def begin(self, place: _Place, talk: Talk, name: str, turn: RowTurn, now: float) -> Dialogue:
        """Returns the dialogue of one message, which has its history.

        Args:
            place: Its partition.
            talk: Its conversation.
            name: Name of the conversation.
            turn: The message.
            now: Unix time; turns older than `ttl_days` are in no history.
        """
        state = talk.state
        if state is None:
            found = self._execute("SELECT state FROM h WHERE topic = ? AND part = ? AND name = ?", (*place, name))
            state = found[0][0] if found else b""
        oldest = self._oldest(now)
        stored = tuple(each for each in decode_state(state) if each.answered_at >= oldest)
        conversation = Conversation(name, (turn,), stored[-self._conversation.max_turns :])
        return Dialogue(conversation, self._fingerprint, self._conversation.max_turns)

    def finish(self, talk: Talk, dialogue: Dialogue, outcome: Outcome) -> tuple[AskedTurn, bytes | None]:
        """Takes the outcome of a dialogue.

        Returns:
            The turn, and the turns of the conversation if there is another one: the last ones that a record takes.
            One that is alone larger than a record is returned, and is in no history.
        """
        dialogue.finish_turn(outcome)
        (asked,), conversation = dialogue.asked, dialogue.conversation
        if not isinstance(outcome, Completion):
            return asked, None
        (turn,) = conversation.turns
        # Without a position, turns come before those that follow, in their order.
        new = StoredTurn(
            turn.name,
            (),
            turn.text,
            outcome.text,
            asked.fingerprint,
            outcome.answered_at,
            outcome.answered_at,
            dict(asked.values),
        )
        turns = (*conversation.stored, new)[-self._conversation.max_turns :]
        lines = [encode_turn(conversation.name, each) for each in turns]
        while len(lines) > 1 and sum(map(len, lines)) > self._max_bytes:
            del lines[0]
        state = b"".join(lines)
        if len(state) <= self._max_bytes:
            talk.state = state
        return asked, state

    def _oldest(self, now: float) -> float:
        return now - self._conversation.ttl_days * _DAY_SECONDS

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple[bytes]]:
        with self._lock:
            return self._database.execute(statement, values).fetchall()


def decode_state(state: bytes) -> list[StoredTurn]:
    """Reads the turns of a conversation; those that cannot be read are none."""
    turns = []
    for line in state.splitlines():
        try:
            turns.append(decode_turn(line)[1])
        except ValueError:
            continue
    return turns
