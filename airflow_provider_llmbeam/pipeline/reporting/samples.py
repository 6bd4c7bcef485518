"""Rows that the report shows: some failed ones of each kind, and some answers at random.

Those with the lowest hashes are kept, so that the choice does not depend on how rows were distributed to workers.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, get_args

from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow, Row
from airflow_provider_llmbeam.pipeline.privacy.vault import without_vault
from airflow_provider_llmbeam.pipeline.records import encode_record
from airflow_provider_llmbeam.pipeline.reporting.report import AnswerSample, FailedSample, SampledRows
from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind

#: Number of failed rows of each kind.
FAILED_ROWS = 3
#: Number of answers.
ANSWERS = 5
#: Longest text of a row, a message and an answer, in characters.
MAX_ROW_CHARACTERS = 300
MAX_MESSAGE_CHARACTERS = 500
MAX_ANSWER_CHARACTERS = 600

_ABOVE_ALL = "~"

_Sample = TypeVar("_Sample", AnswerSample, FailedSample)


@dataclass(slots=True)
class Samples:
    """The rows with the lowest hashes. A text that the report cuts has one character more than it shows.

    Attributes:
        answers: Answers by the fingerprint of their prompt.
        failed: Failed rows by their hash, by kind of failure.
        highest: Highest fingerprint of the answers if there are enough, else one above all.
    """

    answers: dict[str, AnswerSample] = field(default_factory=dict)
    failed: dict[str, dict[str, FailedSample]] = field(default_factory=dict)
    highest: str = _ABOVE_ALL

    def add_answer(self, found: AnsweredRow) -> None:
        """Offers an answer whose fingerprint is below `highest`."""
        completion = found.completion
        self._keep_answer(
            found.fingerprint,
            AnswerSample(
                row=_row(found.row),
                answer=_cut(completion.text, MAX_ANSWER_CHARACTERS),
                characters=len(completion.text),
                model=completion.model[:MAX_ROW_CHARACTERS],
                origin=found.origin,
                finish_reason=completion.finish_reason[:MAX_ROW_CHARACTERS],
            ),
        )

    def add_failure(self, found: FailedRow, key: tuple[str, ...]) -> None:
        """Offers a failed row.

        Args:
            found: The row.
            key: Key columns; a row without them is told apart by its columns.
        """
        failure, row = found.failure, found.row
        kept = self.failed.setdefault(failure.kind, {})
        identity = repr([row.get(column) for column in key])[:1000] if key else ""
        if not key or any(column not in row for column in key):
            identity = repr([*row.items()][:5])[:1000]
        order = f"{zlib.crc32(identity.encode('utf-8', 'surrogatepass')):08x}{identity[:50]}"
        if order in kept or (len(kept) >= FAILED_ROWS and order > max(kept)):
            return
        kept[order] = FailedSample(
            row=_row(row),
            message=_cut(failure.message, MAX_MESSAGE_CHARACTERS),
            http_status=failure.http_status,
            attempts=failure.attempts,
            origin=found.origin,
        )
        _drop_above(kept, FAILED_ROWS)

    def merge(self, other: Samples) -> None:
        """Offers all rows of other samples."""
        for fingerprint, answer in other.answers.items():
            self._keep_answer(fingerprint, answer)
        for kind, rows in other.failed.items():
            kept = self.failed.setdefault(kind, {})
            for order, row in rows.items():
                kept[order] = min(row, kept.get(order, row), key=repr)
            _drop_above(kept, FAILED_ROWS)

    def _keep_answer(self, fingerprint: str, answer: AnswerSample) -> None:
        # Rows of one prompt share its fingerprint; which of them is kept must not depend on their order.
        self.answers[fingerprint] = min(answer, self.answers.get(fingerprint, answer), key=repr)
        _drop_above(self.answers, ANSWERS)
        if len(self.answers) == ANSWERS:
            self.highest = max(self.answers)


def samples_of(samples: Samples, redact: Callable[[str], str]) -> SampledRows:
    """Returns the sampled rows.

    Args:
        samples: Those that were kept.
        redact: Removes secrets from a text.
    """

    def cut(sample: _Sample, **limits: int) -> _Sample:
        texts = {}
        for name, characters in limits.items():
            text = getattr(sample, name)
            redacted = redact(text)  # also a secret that was cut off, which is at the end of the text
            texts[name] = f"{redacted[:characters]}…" if len(text) > characters else redacted
        return sample.model_copy(update=texts)

    return SampledRows(
        failed={
            kind: [
                cut(row, row=MAX_ROW_CHARACTERS, message=MAX_MESSAGE_CHARACTERS)
                for _, row in sorted(samples.failed[kind].items())
            ]
            for kind in get_args(FailureKind)
            if kind in samples.failed
        },
        answers=[
            cut(row, row=MAX_ROW_CHARACTERS, answer=MAX_ANSWER_CHARACTERS)
            for _, row in sorted(samples.answers.items())
        ],
    )


def _drop_above(kept: dict[str, AnswerSample] | dict[str, FailedSample], number: int) -> None:
    while len(kept) > number:
        del kept[max(kept)]


def _row(row: Row) -> str:
    return _cut(encode_record(without_vault(row)).decode().rstrip("\n"), MAX_ROW_CHARACTERS)


def _cut(text: str, characters: int) -> str:
    return valid_text(text[: characters + 1])
