"""A partition of the source while this worker owns it, and its messages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow, Origin, RowPrompt
from airflow_provider_llmbeam.pipeline.stream.histories import Talk
from airflow_provider_llmbeam.pipeline.stream.journal import Paid, PartitionJournal
from airflow_provider_llmbeam.pipeline.stream.order import PartitionOrder
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind

#: A partition of a topic.
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message as its queue delivers it.

    Attributes:
        offset: Its offset, or its number where the queue has none.
        id: Its id, the same in each delivery.
        key: Its key.
        produced_at: Unix time of its timestamp; `None` without one.
        columns: What is known of it besides its value, by column.
        value: Its value.
    """

    offset: int
    id: str
    key: bytes | None
    produced_at: float | None
    columns: Mapping[str, Any]
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector of the answer of a message, for one sink.

    Attributes:
        fingerprint: Fingerprint of its request.
        completion: The vector.
        origin: Its origin.
    """

    fingerprint: str
    completion: Completion
    origin: Origin


@dataclass(eq=False, slots=True)
class Message:
    """A message that is being answered.

    Attributes:
        offset: Its offset.
        key: Its key.
        produced_at: Unix time of its timestamp; `None` without one.
        consumed_at: Unix time at which it was read.
        prompt: Its prompt, or why it has none.
        fingerprints: Fingerprints whose answers it uses so far.
        is_sent: Whether a paid request for it is under way, or its prompt was sent.
        task: The task that answers it.
        conversation: Name of its conversation; `None` for a message by itself.
        state: Turns of the conversation with its own; `None` if it adds none.
        id: Its id, the same in each delivery.
        vectors: Vectors of its answer, in the order of the sinks that have them.
    """

    offset: int
    key: bytes | None
    produced_at: float | None
    consumed_at: float
    prompt: RowPrompt | FailedRow
    fingerprints: list[str] = field(default_factory=list)
    is_sent: bool = False
    task: asyncio.Task[None] | None = None
    conversation: str | None = None
    state: bytes | None = None
    id: str = ""
    vectors: tuple[Vector, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a message has used.

    Attributes:
        failure: Why it is in the dead letter; `None` for an answer.
        input_tokens: Tokens of its prompt; 0 if it shares the answer of an earlier message.
        output_tokens: Tokens of its answer, in the same way.
        cost_nano_usd: Cost of these tokens, in billionths of a US dollar.
    """

    failure: FailureKind | None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_nano_usd: int = 0

    @classmethod
    def of(cls, row: AnsweredRow | FailedRow) -> Usage:
        """Returns what the message of a row has used."""
        outcome = row.completion if isinstance(row, AnsweredRow) else row.failure
        failure = None if isinstance(outcome, Completion) else outcome.kind
        if row.origin == "duplicate":
            return cls(failure)
        return cls(failure, outcome.tokens.input, outcome.tokens.output, outcome.cost_nano_usd or 0)


@dataclass(frozen=True, slots=True)
class Result:
    """What a message becomes.

    Attributes:
        message: The message.
        topic: Topic of its record; `None` for an answer that is stored outside Kafka alone.
        key: Key of the record.
        value: Value of the record.
        row: The answered row, if it is stored outside Kafka, too.
        usage: What the message has used.
    """

    message: Message
    topic: str | None
    key: bytes | None
    value: bytes
    usage: Usage
    row: AnsweredRow | None = None

    @property
    def is_answered(self) -> bool:
        """Whether it is an answer, and not a record of the dead letter."""
        return self.usage.failure is None


@dataclass(eq=False, slots=True)
class Partition:
    """A partition that this worker owns.

    Attributes:
        place: Its topic and number.
        order: Its messages.
        journal: What is paid and not committed.
        asked: Requests under way, by fingerprint.
        open: Messages without a result.
        talks: Conversations with messages that are not committed, by name.
        is_at_end: Whether the last message was read.
    """

    place: Place
    order: PartitionOrder[Result]
    journal: PartitionJournal
    asked: dict[str, asyncio.Future[Outcome]] = field(default_factory=dict)
    open: set[Message] = field(default_factory=set)
    talks: dict[str, Talk] = field(default_factory=dict)
    is_at_end: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """What a transaction commits of one partition.

    Attributes:
        partition: The partition.
        results: The results, in order.
        position: Position after them.
        ended: Answers whose tombstones it writes, by fingerprint.
        begin: Offset in the journal from which the next owner of the partition reads it.
        end: End of the transaction.
    """

    partition: Partition
    results: tuple[Result, ...]
    position: int
    ended: dict[str, Paid]
    begin: int
    end: asyncio.Future[None]

    @property
    def fingerprints(self) -> list[str]:
        """Fingerprints of its messages, one for each use."""
        return [fingerprint for result in self.results for fingerprint in result.message.fingerprints]

    @property
    def states(self) -> dict[str, bytes]:
        """Turns of conversations after it, by name."""
        messages = (result.message for result in self.results)
        return {each.conversation: each.state for each in messages if each.conversation and each.state is not None}


def prepare(partition: Partition, max_answers: int) -> Commit | None:
    """Takes what a transaction commits of a partition; `None` for nothing."""
    found = [*partition.order.ready(max_answers)]
    if not found:
        return None
    position, journal = found[-1][0] + 1, partition.journal
    results = tuple(result for _, result in found)
    used = [fingerprint for result in results for fingerprint in result.message.fingerprints]
    ended = journal.take_ended(used, position)
    end = asyncio.get_running_loop().create_future()
    journal.ending = dict.fromkeys(ended, end)
    return Commit(partition, results, position, ended, journal.begin, end)


def finish(commit: Commit, *, is_committed: bool) -> None:
    """Notes the end of a transaction."""
    journal = commit.partition.journal
    if is_committed:
        commit.partition.order.commit(commit.position)
        talks = commit.partition.talks
        for name in (result.message.conversation for result in commit.results):
            if name is not None:
                talks[name].messages -= 1
                if not talks[name].messages:
                    del talks[name]
    else:
        journal.give_back(commit.fingerprints, commit.ended)
    journal.ending = {}
    commit.end.set_result(None)
