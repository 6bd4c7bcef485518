"""Conversations while their turns are asked: the next prompt and its history, and what an outcome changes."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_provider_llmbeam.engine.outcome import PERMANENT, Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt, Turn
from airflow_provider_llmbeam.pipeline.conversation.order import Position, in_order
from airflow_provider_llmbeam.pipeline.elements import Origin, Request, Row
from airflow_provider_llmbeam.pipeline.privacy.vault import sealed_in, sealed_of
from airflow_provider_llmbeam.pipeline.reporting.metrics import counts_of
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter
from airflow_provider_llmbeam.spec.model.price import Price
from airflow_provider_llmbeam.spec.protocol.counts import Counts


class StoredTurn(NamedTuple):
    """A turn of the history between runs.

    Attributes:
        name: Name of the turn: the key of its row.
        position: Its position in the conversation.
        text: Text of the prompt.
        answer: The answer.
        fingerprint: Fingerprint of both.
        answered_at: Unix time of the answer.
        stored_at: Unix time at which the turn was written.
        values: Encrypted values of the placeholders in its texts, by placeholder.
    """

    name: str
    position: Position
    text: str
    answer: str
    fingerprint: str
    answered_at: float
    stored_at: float
    values: Mapping[str, str]


class RowTurn(NamedTuple):
    """A row of this run that is a turn."""

    name: str
    position: Position
    row: Row
    text: str
    system: str | None


# Beam pickles each batch once to measure its size. No slots: a frozen class with slots pickles half as fast.
@dataclass(frozen=True)
class Conversation:
    """The rows of one key.

    Attributes:
        name: Name of the conversation, see `conversation_of`.
        turns: The rows in order.
        stored: Turns of earlier runs in order, without those that rows of this run replace, and those that are in
            no history.
        known: Outcomes of the journal, and their origins, by fingerprint.
        written: Fingerprints of the turns that the history has, as they are, of rows of this run.
    """

    name: str
    turns: tuple[RowTurn, ...]
    stored: tuple[StoredTurn, ...] = ()
    known: Mapping[str, tuple[Outcome, Origin]] = field(default_factory=dict)
    written: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        name: str,
        turns: Iterable[RowTurn],
        stored: Iterable[StoredTurn],
        known: Mapping[str, tuple[Outcome, Origin]],
        max_turns: int,
    ) -> Conversation:
        """Sorts the turns; of several stored ones of one row the last one counts.

        Stored turns of a time when the job had no `order_by`, or has one no more, come first.

        Stored turns that are in no history, as `max_turns` others come between them and the first row, are left
        out: their texts would count in the size of a batch, and 2,000 turns of 3 kB left room for 11 conversations
        in a batch, and so for 11 requests in flight.

        Args:
            name: Name of the conversation.
            turns: The rows, at least one.
            stored: Turns of earlier runs.
            known: Outcomes of the journal, and their origins, by fingerprint.
            max_turns: Maximum number of turns in a history.
        """
        rows = sorted(turns, key=_order)
        last: dict[str, StoredTurn] = {}
        for turn in stored:
            if turn.name not in last or last[turn.name].stored_at <= turn.stored_at:
                last[turn.name] = turn
        own = {turn.name for turn in rows}
        # A position with another number of values is of another `order_by`, and cannot be compared.
        others = sorted(
            (
                turn if len(turn.position) == len(rows[0].position) else turn._replace(position=())
                for turn in last.values()
                if turn.name not in own
            ),
            key=lambda turn: (_order(turn), turn.answered_at),
        )
        first, end = (bisect_left(others, _order(row), key=_order) for row in (rows[0], rows[-1]))
        return cls(
            name,
            tuple(rows),
            tuple(others[max(0, first - max_turns) : end]),
            known,
            frozenset(turn.fingerprint for turn in last.values() if turn.name in own),
        )

    @property
    def characters(self) -> int:
        """Number of characters of its texts."""
        stored = sum(len(turn.text) + len(turn.answer) for turn in self.stored)
        return stored + sum(len(turn.text) + len(turn.system or "") for turn in self.turns)


class AskedTurn(NamedTuple):
    """The outcome of a turn.

    Attributes:
        outcome: The outcome.
        origin: Its origin.
        fingerprint: Fingerprint of the prompt and its history; empty for a turn that was not sent.
        values: Encrypted values of the placeholders in prompt and answer, by placeholder.
    """

    outcome: Outcome
    origin: Origin
    fingerprint: str
    values: Mapping[str, str]


class Dialogue:
    """Asks the turns of a conversation one after the other.

    A turn that failed in a way that another run repeats, e.g. as it was blocked, is no part of the history, and
    the next one is sent without it. After any other failure, e.g. a timeout, the later turns of this run fail,
    too: another run answers the turn, and then they have another history.

    Args:
        conversation: The conversation.
        fingerprint: Computes the fingerprints of the job.
        max_turns: Maximum number of turns in a history.
    """

    def __init__(self, conversation: Conversation, fingerprint: Fingerprinter, max_turns: int) -> None:
        self.conversation = conversation
        self.asked: list[AskedTurn] = []
        self.fingerprint = ""
        self._known = dict(conversation.known)
        self._fingerprint_of = fingerprint
        self._history: deque[tuple[Turn, Mapping[str, str]]] = deque(maxlen=max_turns)
        self._stored = deque(conversation.stored)
        self._failed: str | None = None

    def add_known(self, recorded: Mapping[str, Outcome]) -> None:
        """Adds the outcomes of this conversation that earlier attempts of a batch have recorded."""
        for fingerprint, outcome in recorded.items():
            self._known.setdefault(fingerprint, (outcome, _origin(outcome)))

    @property
    def current(self) -> RowTurn:
        """The turn whose outcome is awaited."""
        return self.conversation.turns[len(self.asked)]

    def next_prompt(self) -> Prompt | None:
        """Returns the next prompt that has no outcome yet, or `None` after the last one."""
        while len(self.asked) < len(self.conversation.turns):
            if self._failed is not None:
                message = f"not sent, as turn {self._failed} of its conversation failed; another run sends both"
                failure = Failure(kind="earlier_turn_failed", message=message)
                self.asked.append(AskedTurn(failure, "fresh", "", {}))
                continue
            turn = self.current
            self._pass_stored(turn)
            history = tuple(turn for turn, _ in self._history)
            self.fingerprint = self._fingerprint_of.turn(self.conversation.name, history, turn.text, turn.system)
            if (known := self._known.get(self.fingerprint)) is None:
                return Prompt(turn.text, turn.system, conversation=self.conversation.name, history=history)
            self._take(*known)
        return None

    def finish_turn(self, outcome: Outcome) -> None:
        """Takes the outcome of the prompt that `next_prompt` has returned."""
        self._take(outcome, _origin(outcome))

    def _pass_stored(self, turn: RowTurn) -> None:
        while self._stored and _order(self._stored[0]) < _order(turn):
            stored = self._stored.popleft()
            self._history.append((Turn(stored.text, stored.answer), stored.values))

    def _take(self, outcome: Outcome, origin: Origin) -> None:
        turn, values = self.current, dict[str, str]()
        if isinstance(outcome, Completion):
            for _, earlier in self._history:
                values |= earlier
            values = sealed_in(f"{turn.text}\n{outcome.text}", values | sealed_of(turn.row))
            self._history.append((Turn(turn.text, outcome.text), values))
        elif outcome.kind not in PERMANENT:
            self._failed = turn.name
        self.asked.append(AskedTurn(outcome, origin, self.fingerprint, values))
        self._known[self.fingerprint] = (outcome, "duplicate")


def _origin(outcome: Outcome) -> Origin:
    return "repaired" if isinstance(outcome, Completion) and outcome.repairs else "fresh"


def _order(turn: RowTurn | StoredTurn) -> tuple[tuple[int, object], ...]:
    return in_order(turn.position)


class Dialogues:
    """The conversations of one batch.

    Args:
        conversations: The conversations.
        fingerprint: Computes the fingerprints of the job.
        max_turns: Maximum number of turns in a history.

    Attributes:
        each: The dialogues, in the order of the conversations.
        fingerprints: Fingerprint of each prompt that was sent.
        requests: The prompts that were sent, with their rows.
    """

    def __init__(self, conversations: Sequence[Conversation], fingerprint: Fingerprinter, max_turns: int) -> None:
        self.each = [Dialogue(conversation, fingerprint, max_turns) for conversation in conversations]
        self.fingerprints: dict[Prompt, str] = {}
        self.requests: dict[Prompt, Request] = {}
        self._sent: list[Dialogue] = []
        self._recorded: Mapping[str, Outcome] = {}
        self._taken = Counts()

    @property
    def names(self) -> Set[str]:
        """The names of the conversations."""
        return {dialogue.conversation.name for dialogue in self.each}

    def begin(self, recorded: Mapping[str, Outcome]) -> list[Prompt]:
        """Returns the first prompt to send of each conversation that has any, the longest conversation first.

        Args:
            recorded: Outcomes that earlier attempts of the batch have recorded, by fingerprint.
        """
        self._recorded = recorded
        by_name: dict[str, dict[str, Outcome]] = {}
        for fingerprint, outcome in recorded.items():
            by_name.setdefault(fingerprint[:32], {})[fingerprint] = outcome
        first = []
        for dialogue in self.each:
            dialogue.add_known(by_name.get(dialogue.conversation.name, {}))
            if (prompt := self._next(dialogue)) is not None:
                first.append((dialogue, prompt))
        first.sort(key=lambda pair: len(pair[0].asked) - len(pair[0].conversation.turns))
        self._sent = [dialogue for dialogue, _ in first]
        return [prompt for _, prompt in first]

    def next_turn(self, index: int, outcome: Outcome) -> Prompt | None:
        """Takes an outcome and returns the next prompt of its conversation, see `engine.request.NextTurn`."""
        dialogue = self._sent[index]
        dialogue.finish_turn(outcome)
        return self._next(dialogue)

    def take_counts(self, price: Price | None = None) -> Counts:
        """Returns the counts since the last call of the turns that are not sent; the engine counts the others.

        Args:
            price: Price of the tokens, see `reporting.metrics.BatchCounts`.
        """
        taken, self._taken = self._taken, self._counts(price)
        return self._taken - taken

    def _counts(self, price: Price | None) -> Counts:
        sent, repeated, others = {*self.fingerprints.values()}, list[Outcome](), list[Outcome]()
        for asked in (
            asked for dialogue in self.each for asked in dialogue.asked if asked.fingerprint not in sent
        ):
            (repeated if asked.fingerprint in self._recorded else others).append(asked.outcome)
        resumed = sum(isinstance(outcome, Completion) for outcome in others)
        return counts_of(repeated, price) + Counts(resumed=resumed, failed=len(others) - resumed)

    def _next(self, dialogue: Dialogue) -> Prompt | None:
        if (prompt := dialogue.next_prompt()) is None:
            return None
        self.fingerprints[prompt] = dialogue.fingerprint
        self.requests[prompt] = Request(dialogue.fingerprint, (dialogue.current.row,), prompt)
        return prompt
