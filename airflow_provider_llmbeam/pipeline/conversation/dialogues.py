"""The conversations of one batch while they are asked, each turn by turn, and one beside the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.conversation.turns import Conversation, Dialogue
from airflow_provider_llmbeam.pipeline.elements import Request
from airflow_provider_llmbeam.pipeline.reporting.metrics import counts_of
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter
from airflow_provider_llmbeam.spec.model.price import Price
from airflow_provider_llmbeam.spec.protocol.counts import Counts


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
        dialogue.finished(outcome)
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
