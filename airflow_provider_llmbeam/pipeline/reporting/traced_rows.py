"""Rows that become spans of the trace of a job, see `spec.Traces`.

Of each reason those with the lowest hashes are kept, however rows were distributed to workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from airflow_provider_llmbeam.engine.outcome import Completion, Failure, Outcome
from airflow_provider_llmbeam.pipeline.audit.record import key_hash
from airflow_provider_llmbeam.pipeline.elements import OF_THIS_RUN, AnsweredRow, FailedRow, Row
from airflow_provider_llmbeam.pipeline.privacy.vault import without_vault
from airflow_provider_llmbeam.pipeline.records import encode_record
from airflow_provider_llmbeam.pipeline.reporting.report import TracedRow, TraceReason
from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.spec.protocol.counts import NANO
from airflow_provider_llmbeam.spec.traces import MAX_TRACED_ROWS, Traces

#: Longest text, in characters.
MAX_CHARACTERS = 1000
_ABOVE_ALL = "g"


@dataclass(slots=True)
class TracedRows:
    """The rows with the lowest hashes of their keys.

    Attributes:
        kept: The rows by reason and hash.
        highest: Highest hash of each reason that has enough rows.
    """

    kept: dict[TraceReason, dict[str, TracedRow]] = field(default_factory=dict)
    highest: dict[TraceReason, str] = field(default_factory=dict)

    def keep(self, row: TracedRow) -> None:
        """Offers a row."""
        kept = self.kept.setdefault(row.reason, {})
        kept[row.key_hash] = row
        if len(kept) > MAX_TRACED_ROWS:
            del kept[max(kept)]
            self.highest[row.reason] = max(kept)

    def merge(self, other: TracedRows) -> None:
        """Offers all rows of others."""
        for rows in other.kept.values():
            for row in rows.values():
                self.keep(row)

    def rows(self, most: int, redact: Callable[[str], str]) -> list[TracedRow]:
        """Returns so many of each reason, with texts without secrets."""
        return [
            row.model_copy(
                update={name: redact(text) for name in _TEXTS if (text := getattr(row, name)) is not None}
            )
            for rows in self.kept.values()
            for _, row in sorted(rows.items())[:most]
        ]


class RowTracer:
    """Chooses the rows of a job, and describes them.

    Args:
        traces: What is asked for.
        key: Key columns.
    """

    def __init__(self, traces: Traces, key: tuple[str, ...]) -> None:
        self._traces, self._key = traces, key
        below = traces.sample_ratio * 16**12
        self._sampled_below = f"{int(below):012x}" if traces.sample_ratio < 1 else _ABOVE_ALL

    def takes(self, found: AnsweredRow) -> bool:
        """Returns whether an answered row is traced."""
        if found.moderation_output or found.moderation_input:
            return True
        return found.fingerprint < self._sampled_below and found.origin in OF_THIS_RUN

    def add_answer(self, traced: TracedRows, found: AnsweredRow) -> None:
        """Keeps an answered row that it takes."""
        flags = {"moderation.input": found.moderation_input, "moderation.output": found.moderation_output}
        labels = {name: label for name, label in flags.items() if label}
        reason: TraceReason = "flagged" if labels else "sampled"
        self.keep(traced, reason, found.row, found.completion, labels, is_own=found.origin in OF_THIS_RUN)

    def add_failure(self, traced: TracedRows, found: FailedRow) -> None:
        """Offers a failed row."""
        failure = found.failure
        labels = {"moderation": failure.category} if failure.kind == "moderated" and failure.category else {}
        self.keep(traced, "failed", found.row, failure, labels, is_own=found.origin in OF_THIS_RUN)

    def keep(
        self,
        traced: TracedRows,
        reason: TraceReason,
        row: Row,
        outcome: Outcome,
        labels: Mapping[str, str] | None = None,
        scores: Mapping[str, float] | None = None,
        *,
        is_own: bool,
    ) -> None:
        """Keeps a row, if its hash is among the lowest ones.

        Args:
            traced: Where it is kept.
            reason: Why it is traced.
            row: The row.
            outcome: Its answer or failure.
            labels: What a guard found.
            scores: Marks of metrics.
            is_own: Whether this run has sent the request: the time and the tokens are of the span of that run.
        """
        if not self._traces.max_rows:
            return
        if (digest := self._hash(row)) > traced.highest.get(reason, _ABOVE_ALL):
            return
        texts = _texts(row, outcome) if self._traces.include_text else {}
        traced.keep(
            TracedRow(
                reason=reason,
                key_hash=digest,
                labels=dict(labels or {}),
                scores=dict(scores or {}),
                **_facts(outcome, is_own=is_own),
                **texts,
            )
        )

    def _hash(self, row: Row) -> str:
        if self._key and all(column in row for column in self._key):
            return key_hash(row, self._key)
        return hashlib.sha256(encode_record(without_vault(row))).hexdigest()


_TEXTS = ("row", "answer", "message")


_COUNTS = {
    **{name: attrgetter(name) for name in ("attempts", "rejections")},
    **{f"{name}_tokens": attrgetter(f"tokens.{name}") for name in ("input", "output", "cached", "reasoning")},
}


def _facts(outcome: Outcome, *, is_own: bool) -> dict[str, Any]:
    """Returns what a span has of an outcome; times and counts of one that was not asked in this run are 0."""
    facts: dict[str, Any] = {"service_tier": outcome.service_tier}
    if isinstance(outcome, Failure):
        began_at, ended_at = outcome.began_at or outcome.failed_at, outcome.failed_at
        facts |= {"error": outcome.kind, "http_status": outcome.http_status, "request_id": outcome.request_id}
    else:
        began_at, ended_at = outcome.sent_at, outcome.answered_at
        facts |= {"model": outcome.model, "finish_reason": outcome.finish_reason}
    if not is_own:
        return facts | dict.fromkeys((*_COUNTS, "cost_usd", "began_at", "ended_at"), 0)
    cost_usd = None if outcome.cost_nano_usd is None else outcome.cost_nano_usd / NANO
    counts = {name: count(outcome) for name, count in _COUNTS.items()}
    return facts | counts | {"cost_usd": cost_usd, "began_at": began_at, "ended_at": ended_at}


def _texts(row: Row, outcome: Outcome) -> dict[str, str]:
    texts = {"row": encode_record(without_vault(row)).decode().rstrip("\n")}
    texts |= {"answer": outcome.text} if isinstance(outcome, Completion) else {"message": outcome.message}
    return {name: valid_text(text[:MAX_CHARACTERS]) for name, text in texts.items()}
