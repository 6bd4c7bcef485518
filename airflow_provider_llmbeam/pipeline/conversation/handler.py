"""The model handler of a job with conversations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from apache_beam.ml.inference.base import PredictionResult

from airflow_provider_llmbeam.pipeline.conversation.dialogues import Dialogues
from airflow_provider_llmbeam.pipeline.conversation.turns import AskedTurn, Conversation
from airflow_provider_llmbeam.pipeline.engine_thread import EngineThread
from airflow_provider_llmbeam.pipeline.job_handler import JobHandler
from airflow_provider_llmbeam.pipeline.reporting.progress import publish_progress, write_progress_soon


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
            PredictionResult(dialogue.conversation, self._redacted(dialogue.asked), self.spec.model.name)
            for dialogue in dialogues.each
        ]

    def characters(self, element: Any) -> int:
        """Counts the characters of a conversation."""
        number: int = element.characters
        return number

    def _redacted(self, asked: Sequence[AskedTurn]) -> list[AskedTurn]:
        outcomes = self._without_secrets([turn.outcome for turn in asked])
        return [turn._replace(outcome=outcome) for turn, outcome in zip(asked, outcomes, strict=True)]
