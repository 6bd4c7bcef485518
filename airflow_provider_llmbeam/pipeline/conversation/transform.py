"""The steps of a graph with conversations, in place of one request per distinct prompt."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.ml.inference.base import PredictionResult

from airflow_provider_llmbeam.engine.journal.segment_name import half_of
from airflow_provider_llmbeam.engine.outcome import Completion, Outcome
from airflow_provider_llmbeam.pipeline.answer_form import answer_form
from airflow_provider_llmbeam.pipeline.context import NO_RUN, RunContext
from airflow_provider_llmbeam.pipeline.conversation.order import conversation_of, fault_of, position_of, turn_name
from airflow_provider_llmbeam.pipeline.conversation.store import encode_turn, oldest_turn_at, read_history
from airflow_provider_llmbeam.pipeline.conversation.turns import (
    AskedTurn,
    Conversation,
    Dialogues,
    RowTurn,
    StoredTurn,
)
from airflow_provider_llmbeam.pipeline.elements import (
    FAILED,
    AnsweredRow,
    FailedRow,
    Origin,
    RenderedRow,
    failed_row,
)
from airflow_provider_llmbeam.pipeline.engine_thread import EngineThread
from airflow_provider_llmbeam.pipeline.job_handler import JobHandler
from airflow_provider_llmbeam.pipeline.privacy.vault import add_sealed
from airflow_provider_llmbeam.pipeline.reporting.metrics import CountingDoFn
from airflow_provider_llmbeam.pipeline.reporting.progress import publish_progress, write_progress_soon
from airflow_provider_llmbeam.pipeline.transforms.keys import refuse_duplicates
from airflow_provider_llmbeam.pipeline.transforms.reuse import EarlierOutcomes, read_journal
from airflow_provider_llmbeam.spec.conversation import Conversation as ConversationSpec
from airflow_provider_llmbeam.spec.job import JobSpec

#: Tag of the output with the lines of the history.
HISTORY = "history"


def make_conversations(
    root: beam.Pipeline,
    rendered: beam.PCollection,
    spec: JobSpec,
    duplicate_keys: beam.pvalue.AsList | None,
    context: RunContext,
) -> tuple[beam.PCollection, list[beam.PCollection], list[beam.PCollection]]:
    """Brings the rows of each conversation together, with their history and their answers in the journal.

    Args:
        root: The pipeline.
        rendered: `(fingerprint, RenderedRow)`.
        spec: The job.
        duplicate_keys: Duplicate keys, which fail the job here, before anything is sent.
        context: Its run.

    Returns:
        The `Conversation`s, which have all answered rows, so that none are apart as those of `reuse`; and the
        `FailedRow`s that are no turns.
    """
    conversation = spec.conversation
    assert conversation is not None
    keyed = rendered | "TurnOfRow" >> beam.ParDo(KeyTurns(conversation, spec.source.key, context)).with_outputs(
        FAILED, main="turns"
    )
    by_conversation = "ByConversation" >> beam.Map(lambda entry: (half_of(entry[0]), (entry[0], *entry[1])))
    guard = () if duplicate_keys is None else (duplicate_keys,)
    collected = (
        {
            "rows": keyed["turns"],
            "journal": read_journal(root, spec, context) | by_conversation,
            "history": read_history(root, spec, oldest_turn_at(spec, conversation.ttl_days, context.started_at)),
        }
        | "CollectTurns" >> beam.CoGroupByKey()
        | "MakeConversation"
        >> beam.ParDo(
            MakeConversation(
                conversation, spec.source.key, EarlierOutcomes(spec.name, answer_form(spec, context))
            ),
            *guard,
        )
    )
    return collected, [], [keyed[FAILED]]


class KeyTurns(CountingDoFn):
    """Outputs the name of the conversation and the rendered row; rows that are no turns are output as `failed`.

    Args:
        conversation: The `conversation` of the job.
        key: Key columns of the rows.
        context: The run.
    """

    def __init__(self, conversation: ConversationSpec, key: tuple[str, ...], context: RunContext = NO_RUN) -> None:
        super().__init__(context)
        self._conversation, self._key = conversation, key

    def process(
        self, rendered: tuple[str, RenderedRow]
    ) -> Iterator[tuple[str, RenderedRow] | beam.pvalue.TaggedOutput]:
        """Processes one row."""
        row = rendered[1][0]
        if (fault := fault_of(row, self._conversation, self._key)) is None:
            yield conversation_of(row, self._conversation), rendered[1]
        else:
            self.count("failed")
            yield beam.pvalue.TaggedOutput(FAILED, failed_row(row, "no_turn", fault))


class MakeConversation(beam.DoFn):
    """Makes one `Conversation` of its rows, its history and its outcomes in the journal.

    Args:
        conversation: The `conversation` of the job.
        key: Key columns of the rows.
        earlier: Chooses the outcomes.
    """

    def __init__(self, conversation: ConversationSpec, key: tuple[str, ...], earlier: EarlierOutcomes) -> None:
        super().__init__()
        self._conversation, self._key, self._earlier = conversation, key, earlier

    def process(
        self,
        group: tuple[str, Any],
        duplicate_keys: list[bytes] = [],  # noqa: B006 - never changed
    ) -> Iterator[Conversation]:
        """Processes one conversation; one without rows of this run is not asked."""
        refuse_duplicates(duplicate_keys)
        name, found = group
        turns = [self._turn(rendered) for rendered in found["rows"]]
        if turns:
            stored = (StoredTurn(*turn) for turn in found["history"])
            known = self._known(found["journal"])
            yield Conversation.of(name, turns, stored, known, self._conversation.max_turns)

    def _turn(self, rendered: RenderedRow) -> RowTurn:
        row, text, system, *_ = rendered
        position = position_of(row, self._conversation, self._key)
        return RowTurn(turn_name(row, self._key), position, row, text, system)

    def _known(self, journal: Any) -> dict[str, tuple[Outcome, Origin]]:
        entries: dict[str, list[tuple[str, Outcome]]] = {}
        for fingerprint, job, outcome in journal:
            entries.setdefault(fingerprint, []).append((job, outcome))
        found = ((fingerprint, self._earlier.of(fingerprint, each)) for fingerprint, each in entries.items())
        return {fingerprint: known for fingerprint, known in found if known is not None}


class FanOutTurns(beam.DoFn):
    """Gives each row of a conversation its answer or failure, and outputs new turns as lines of the history."""

    def process(self, result: PredictionResult) -> Iterator[AnsweredRow | beam.pvalue.TaggedOutput]:
        """Emits one element per row, and a line for each turn that the history does not have."""
        conversation: Conversation = result.example
        for turn, asked in zip(conversation.turns, result.inference, strict=True):
            if not isinstance(asked.outcome, Completion):
                yield beam.pvalue.TaggedOutput(FAILED, FailedRow(turn.row, asked.outcome, asked.origin))
                continue
            row = add_sealed(turn.row, asked.values, asked.outcome.text)
            yield AnsweredRow(row, asked.fingerprint, asked.outcome, asked.origin)
            if asked.fingerprint not in conversation.written:
                line = encode_turn(conversation.name, _stored(turn, asked, asked.outcome))
                yield beam.pvalue.TaggedOutput(HISTORY, line)


def _stored(turn: RowTurn, asked: AskedTurn, completion: Completion) -> StoredTurn:
    return StoredTurn(
        name=turn.name,
        position=turn.position,
        text=turn.text,
        answer=completion.text,
        fingerprint=asked.fingerprint,
        answered_at=completion.answered_at,
        stored_at=time.time(),
        values=dict(asked.values),
    )


class ConversationHandler(JobHandler[Conversation]):
    """Asks conversations: the prediction of each is a list with one `AskedTurn` per turn.

    The turns of one conversation are sent one after the other, and those of different ones concurrently, within
    the window of the engine. A batch ends with its longest conversation, which begins first.
    """

    def run_inference(
        self,
        batch: Sequence[Conversation],
        model: EngineThread,
        inference_args: dict[str, Any] | None = None,
    ) -> list[PredictionResult]:
        """Asks the turns of a batch; that of a failed one is a `Failure`, without secrets in its message."""
        assert self.spec.conversation is not None
        publish_progress(self.context.progress_prefix)
        dialogues = Dialogues(batch, self.spec.fingerprinter(), self.spec.conversation.max_turns)
        audited = None if self.audit is None else partial(self.audit.record, dialogues.requests)
        model.converse(dialogues, self._throttled.signal_throttled, self.count, audited)
        write_progress_soon()
        return [
            PredictionResult(dialogue.conversation, dialogue.asked, self.spec.model.name)
            for dialogue in dialogues.each
        ]

    def characters(self, element: Any) -> int:
        """Counts the characters of a conversation."""
        number: int = element.characters
        return number
