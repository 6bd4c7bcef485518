"""The model handler of a job with conversations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from apache_beam.ml.inference.base import PredictionResult

from airflow_provider_llmbeam.pipeline.conversation.dialogues import Dialogues
from airflow_provider_llmbeam.pipeline.conversation.turns import AskedTurn, Conversation
from airflow_provider_llmbeam.pipeline.engine_thread import EngineThread
from airflow_provider_llmbeam.pipeline.reporting.metrics import count
from airflow_provider_llmbeam.pipeline.reporting.progress_objects import batch_ended, publish_progress
from airflow_provider_llmbeam.pipeline.run_inference import BYTES_PER_BATCH_UNIT, LLMModelHandler
from airflow_provider_llmbeam.spec.conversation import Conversation as ConversationSpec
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter


class ConversationHandler(LLMModelHandler[Conversation]):
    """Asks conversations: the prediction of each is a list with one `AskedTurn` per turn.

    The turns of one conversation are sent one after the other, and those of different ones concurrently, within
    the window of the engine. A batch ends with its longest conversation, which begins first.

    Args:
        max_turns: Maximum number of turns in a history.
        **options: See `LLMModelHandler`.
    """

    def __init__(self, model: Any, *, max_turns: int, **options: Any) -> None:
        super().__init__(model, **options)
        self._max_turns = max_turns

    def run_inference(
        self,
        batch: Sequence[Conversation],
        model: EngineThread,
        inference_args: dict[str, Any] | None = None,
    ) -> list[PredictionResult]:
        """Asks the turns of a batch; that of a failed one is a `Failure`, without secrets in its message."""
        publish_progress(self._progress_prefix)
        fingerprint = Fingerprinter(self._model, self._generation, self._output_schema)
        dialogues = Dialogues(batch, fingerprint, self._max_turns)
        audited = None if self._audit is None else partial(self._audit.record, dialogues.requests)
        model.converse(dialogues, self._throttled.signal_throttled, count, audited)
        batch_ended()
        return [
            PredictionResult(dialogue.conversation, self._redacted(dialogue.asked), self._model.name)
            for dialogue in dialogues.each
        ]

    def batch_elements_kwargs(self) -> dict[str, Any]:
        """Returns a fixed number of conversations, of which large ones count more."""
        size = self._batching.max_batch_size
        return {
            "min_batch_size": size,
            "max_batch_size": size,
            # At most the batch size: a heavier element makes Beam emit an empty batch.
            "element_size_fn": lambda each: min(size, 1 + each.characters // BYTES_PER_BATCH_UNIT),
        }

    def get_num_bytes(self, batch: Sequence[Conversation]) -> int:
        """Counts characters; Beam's default pickles the batch a second time to measure it."""
        return sum(conversation.characters for conversation in batch)

    def _redacted(self, asked: Sequence[AskedTurn]) -> list[AskedTurn]:
        outcomes = self._without_secrets([turn.outcome for turn in asked])
        return [turn._replace(outcome=outcome) for turn, outcome in zip(asked, outcomes, strict=True)]


def handler_of(conversation: ConversationSpec) -> partial[ConversationHandler]:
    """Returns what makes the handler of a job with conversations, see `handler_of_job`."""
    return partial(ConversationHandler, max_turns=conversation.max_turns)
