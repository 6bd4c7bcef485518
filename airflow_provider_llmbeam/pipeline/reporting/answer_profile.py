"""What the answers of a run look like in sum: lengths, labels, versions of the model. Pure.

It is compared with that of earlier runs, so the classes of lengths never change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_llmbeam.engine.outcome import Completion
from airflow_provider_llmbeam.pipeline.reporting.report import Answers, LengthCount
from airflow_provider_llmbeam.spec.prompt.labels import find_label_fields

#: Longest text that counts as a label, in characters.
MAX_LABEL_CHARACTERS = 40
#: Number of different short texts above which they are no labels.
MAX_LABELS = 50
#: Number of fields whose labels are counted.
MAX_FIELDS = 10
#: Number of versions of the model that are counted apart; further ones are one.
MAX_MODELS = 1000
#: Name under which the label of an answer without a schema is counted.
TEXT = "answer"
OTHERS = "(others)"
#: Number of versions of the model in the report.
REPORTED_MODELS = 20

#: Answers that say nothing, in JSON as well.
_EMPTY = {"", "null", "{}", "[]", '""'}


@dataclass(slots=True)
class AnswerProfile:
    """Sums over all answered rows of a run, wherever their answers come from.

    Attributes:
        models: Number of answers by version of the model.
        lengths: Number of answers by class of their length, see `length_class`.
        empty: Number of answers that say nothing: blank, or an empty JSON value.
        repairs: Number of invalid answers that were replaced by a repair, in this run.
        labels: Number of answers by value, by those fields of the answer that are labels.
        texts: Number of short answers by text, without a schema; none once there are too many different ones.
        short: Number of short answers without a schema.
        is_free_text: Whether there are too many different short answers to be labels.
    """

    models: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    empty: int = 0
    repairs: int = 0
    labels: dict[str, Counter[str]] = field(default_factory=dict)
    texts: Counter[str] = field(default_factory=Counter)
    short: int = 0
    is_free_text: bool = False

    def add(self, completion: Completion, label_fields: tuple[str, ...] | None) -> None:
        """Adds an answer.

        Args:
            completion: The answer.
            label_fields: Fields of the answer that are labels; `None` for an answer without a schema.
        """
        text = completion.text
        length = len(text)
        self.models[completion.model] += 1
        if not text and completion.parsed is not None:  # a vector
            return
        self.lengths[length_class(length)] += 1
        if length <= MAX_LABEL_CHARACTERS:
            self._add_short(text.strip(), is_text=label_fields is None)
        if label_fields and isinstance(completion.parsed, dict):
            for name in label_fields:
                if name in completion.parsed:
                    self.labels.setdefault(name, Counter())[_label(completion.parsed[name])] += 1

    def merge(self, other: AnswerProfile) -> None:
        """Adds the answers of another profile, which is not changed."""
        self.models.update(other.models)
        if len(self.models) > MAX_MODELS:  # of a server that names another one with each answer
            self.models = Counter(most_frequent(self.models, MAX_MODELS))
        self.lengths.update(other.lengths)
        self.empty += other.empty
        self.repairs += other.repairs
        for name, labels in other.labels.items():
            self.labels.setdefault(name, Counter()).update(labels)
        self.texts.update(other.texts)
        self.short += other.short
        self.is_free_text |= other.is_free_text
        self._judge()

    def label_counts(self) -> dict[str, dict[str, int]]:
        """Returns the labels of each field that has any, the most frequent ones first, at most 50 and the others.

        Short answers without a schema are labels if at least 95 % of all answers are short, at most 50 differ, and
        each occurs five times on average.
        """
        found = {name: most_frequent(labels, MAX_LABELS) for name, labels in sorted(self.labels.items())}
        if self.texts and self.short >= max(0.95 * self.lengths.total(), 5 * len(self.texts)):
            found[TEXT] = most_frequent(self.texts, MAX_LABELS)
        return found

    def _add_short(self, text: str, *, is_text: bool) -> None:
        self.empty += text in _EMPTY
        if is_text:
            self.short += 1
            if not self.is_free_text:
                self.texts[text] += 1
                self._judge()

    def _judge(self) -> None:
        if self.is_free_text or len(self.texts) > MAX_LABELS:
            self.is_free_text = True
            self.texts.clear()


def length_class(characters: int) -> int:
    """Returns the class of a length: each is one length up to 15, and at most an eighth of it from there."""
    if characters < 16:
        return characters
    shift = characters.bit_length() - 4
    return 8 * shift + (characters >> shift)


def class_start(number: int) -> int:
    """Returns the least length of a class."""
    if number < 16:
        return number
    shift = number // 8 - 1
    return (number - 8 * shift) << shift


def label_fields(schema: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """Returns the first properties whose schema is an enum or a boolean; `None` for answers without a schema."""
    return None if schema is None else find_label_fields(schema)[:MAX_FIELDS]


def most_frequent(counts: Mapping[str, int], number: int) -> dict[str, int]:
    """Returns the most frequent values, and how many the others are together."""
    named = [item for item in counts.items() if item[0] != OTHERS]
    ordered = sorted(named, key=lambda item: (-item[1], item[0]))
    rest = counts.get(OTHERS, 0) + sum(count for _, count in ordered[number:])
    return {**dict(ordered[:number]), **({OTHERS: rest} if rest else {})}


def answers_of(profile: AnswerProfile, invalid: int) -> Answers:
    """Returns what the answers look like.

    Args:
        profile: Sums over the answers.
        invalid: Number of rows whose answers did not match the schema.
    """
    return Answers(
        models=most_frequent(profile.models, REPORTED_MODELS),
        empty=profile.empty,
        repaired=profile.repairs,
        invalid=invalid,
        lengths=[
            LengthCount(characters=class_start(number), answers=count)
            for number, count in sorted(profile.lengths.items())
        ],
        labels=profile.label_counts(),
    )


def _label(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():  # 4.0 is the 4 of the enum
        value = int(value)
    text = value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)
    return text[:MAX_LABEL_CHARACTERS]
