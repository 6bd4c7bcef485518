"""A sample of a source: its rows, and the prompts that they become."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.engine.plan import prompt_tokens
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.audit.record import audited_row
from airflow_provider_llmbeam.pipeline.elements import FailedRow, Row, RowPrompt
from airflow_provider_llmbeam.pipeline.measure.portions import MAX_BYTES, read_source
from airflow_provider_llmbeam.pipeline.moderation.guard import Questions, guard_job
from airflow_provider_llmbeam.pipeline.prompt_of_row import RowPrompts
from airflow_provider_llmbeam.pipeline.records import encode_equal_key, encode_key, encode_record
from airflow_provider_llmbeam.pipeline.transforms.keys import refuse_duplicates, row_digest
from airflow_provider_llmbeam.spec.conversation import refuse_conversation
from airflow_provider_llmbeam.spec.job import JobSpec

#: Number of prompts that are kept, at random, for the sample of answers.
CANDIDATES = 2048
#: Maximum number of characters that are shown of the message of a failure.
_MAX_CHARACTERS = 300


@dataclass
class FailedKind:
    """Rows that fail for one kind of reason.

    Attributes:
        kind: The kind.
        rows: Number of rows.
        key: Key of one of them, as JSON; empty if it is not known.
        message: Why that one fails.
        is_earlier: Whether an earlier run or sample got the refusal, which the journal has.
    """

    kind: str
    rows: int = 0
    key: str = ""
    message: str = ""
    is_earlier: bool = False

    def __str__(self) -> str:
        message = self.message if len(self.message) <= _MAX_CHARACTERS else f"{self.message[:_MAX_CHARACTERS]} …"
        earlier = " by an earlier run" if self.is_earlier else ""
        return f"{self.rows:,} {self.kind}{earlier}, e.g. {f'{self.key}: ' if self.key else ''}{message}"


@dataclass
class SourceSample:
    """The rows read from a source, and their prompts.

    Attributes:
        rows: Number of rows read.
        failures: Rows without a request by kind: invalid lines, missing or duplicate keys, template errors, files.
        tokens: Estimated input tokens of each distinct prompt, by fingerprint.
        audio_tokens: Those of audio among them, for prompts that have some.
        repeats: Number of rows by fingerprint, for prompts of several rows.
        candidates: A random selection of the prompts by fingerprint, the same every time.
        questions: Fingerprint and estimated input tokens of the question to the guard model about each prompt, by
            the fingerprint of the prompt, for a job that moderates its prompts.
        audited: What an audit needs of the rows of a prompt, by its fingerprint; empty without one.
        inspected_bytes: Size of the texts that a detector of type `dlp` inspects, in bytes.
        refusals: Rows whose prompt the model has refused, by kind; the journal has it, so it is not sent again.
            They are numbers of rows of the source.
        scale: Rows of the source over rows read; 1 if all were read.
        spread_ratio: Relative standard error of the tokens of the source due to sampling; 0 if all rows were read.
        ran_query: Whether a query was run to read it, which BigQuery bills.
    """

    rows: int = 0
    failures: dict[str, FailedKind] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    audio_tokens: dict[str, int] = field(default_factory=dict)
    repeats: dict[str, int] = field(default_factory=dict)
    candidates: dict[str, Prompt] = field(default_factory=dict)
    questions: dict[str, tuple[str, int]] = field(default_factory=dict)
    audited: dict[str, list[Row]] = field(default_factory=dict)
    inspected_bytes: int = 0
    refusals: dict[str, FailedKind] = field(default_factory=dict)
    scale: float = 1.0
    spread_ratio: float = 0.0
    ran_query: bool = False

    @property
    def failed(self) -> int:
        """Number of rows without a request."""
        return sum(each.rows for each in self.failures.values())

    def fail(self, kind: str, message: str, *, key: str = "", rows: int = 1) -> None:
        """Adds failed rows."""
        self.failures.setdefault(kind, FailedKind(kind, key=key, message=message)).rows += rows

    def refuse(self, fingerprint: str, failure: Failure, weight: float) -> None:
        """Adds the rows of a refused prompt, which represents `weight` prompts of the source."""
        of_kind = FailedKind(failure.kind, message=failure.message, is_earlier=True)
        rows = round(weight * self.repeats.get(fingerprint, 1))
        self.refusals.setdefault(failure.kind, of_kind).rows += rows

    def leave_out(self, fingerprint: str, *, is_failed: bool) -> None:
        """Leaves out a prompt that is not sent; its rows are among the failed ones if `is_failed`."""
        del self.tokens[fingerprint]
        self.audio_tokens.pop(fingerprint, None)
        rows = self.repeats.pop(fingerprint, 1)
        if is_failed:
            self.fail("moderated", "the guard model has blocked the prompt", rows=rows)

    @property
    def is_sampled(self) -> bool:
        """Whether only a part of the source was read."""
        return self.scale != 1


def sample_source(
    spec: JobSpec, max_bytes: int = MAX_BYTES, also: Callable[[Row | FailedRow], None] | None = None
) -> SourceSample:
    """Reads the source of a job and renders its prompts; a BigQuery source is exported, as by the job.

    Args:
        spec: The job.
        max_bytes: A larger source is read in portions.
        also: Takes each row as it is read.

    Raises:
        JobSpecError: The source is empty, has duplicate keys that the spec does not allow, or the job has
            conversations.
    """
    refuse_conversation(spec, "an estimate")
    prompts = RowPrompts(spec)
    reading = read_source(spec, prompts, spec.paths.export_uri, max_bytes)
    counter = _Sampler(spec, prompts)
    spans = []
    for portion in reading.portions():
        if also is not None:
            for row in portion.rows:
                also(row)
        spans.append((portion.size, float(counter.add(portion.rows))))
    found = counter.end()
    found.ran_query = reading.ran_query
    found.scale = reading.scale
    found.spread_ratio = _spread_ratio(spans) if found.is_sampled else 0.0
    return found


class _Sampler:
    def __init__(self, spec: JobSpec, prompts: RowPrompts) -> None:
        self._source = spec.source
        self._is_audited = spec.safety.audit is not None
        self._prompts = prompts
        self._found = SourceSample()
        moderation = spec.safety.moderation
        self._questions = None
        if moderation is not None and "input" in moderation.on:
            self._questions = Questions(guard_job(spec, moderation), moderation)
        self._digests: dict[bytes, bytes] = {}
        self._differing: dict[bytes, None] = {}
        self._picked: dict[bytes, tuple[bytes, Row]] = {}

    def add(self, rows: Iterable[Row | FailedRow]) -> int:
        """Adds rows; returns their tokens, or the bytes of those of which the job selects one for each key."""
        size, accepted = 0, []
        for read in self._prompts.inspected(rows):
            self._found.rows += 1
            row = self._prompts.prepare(read)
            if isinstance(row, FailedRow):
                self._fail(row)
            elif self._source.on_duplicate_key in ("first", "last", "dead_letter"):
                size += self._pick(row)
            else:
                if self._source.on_duplicate_key == "allow" or self._is_first(row):
                    accepted.append(row)
        return size + self._render(accepted)

    def end(self) -> SourceSample:
        found = self._found
        self._render(row for _, row in self._picked.values())
        found.candidates = dict(heapq.nsmallest(CANDIDATES, found.candidates.items()))
        found.inspected_bytes = 0 if self._prompts.masker is None else self._prompts.masker.text_bytes
        refuse_duplicates([*self._differing])
        return found

    def _fail(self, failed: FailedRow) -> None:
        row, key = failed.row, self._source.key
        has_key = all(row.get(column) is not None for column in key)
        text = encode_key(row, key).decode("utf-8", "replace").strip() if has_key else ""
        self._found.fail(failed.failure.kind, failed.failure.message, key=text)

    def _is_first(self, row: Row) -> bool:
        """Returns whether no row with this key was read before; one that differs fails the job."""
        key, digest = encode_equal_key(row, self._source.key), row_digest(row)
        if (first := self._digests.get(key)) is None:
            self._digests[key] = digest
        elif first != digest:
            self._differing[key] = None
        return first is None

    def _pick(self, row: Row) -> int:
        """Keeps the row of a key that the job selects."""
        key, record = encode_equal_key(row, self._source.key), encode_record(row)
        if key in self._picked:
            kept, policy = self._picked[key][0], self._source.on_duplicate_key
            if policy == "dead_letter" and record != kept:
                text = key.decode("utf-8", "replace").strip()
                self._found.fail("duplicate_key", f"another row has the key {text}", key=text)
            if policy == "first" or (policy == "dead_letter" and kept <= record):
                return 0
        self._picked[key] = record, row
        return len(record)

    def _render(self, rows: Iterable[Row]) -> int:
        """Adds the prompts of rows, whose files are identified together; returns their tokens."""
        return sum(map(self._add, self._prompts.identify([*map(self._prompts.render, rows)])))

    def _add(self, of_row: RowPrompt | FailedRow) -> int:
        if isinstance(of_row, FailedRow):
            self._fail(of_row)
            return 0
        row, fingerprint, prompt = of_row
        found = self._found
        if self._is_audited:
            found.audited.setdefault(fingerprint, []).append(audited_row(row, self._source.key))
        if fingerprint in found.tokens:
            found.repeats[fingerprint] = found.repeats.get(fingerprint, 1) + 1
            return 0
        tokens = found.tokens[fingerprint] = prompt_tokens(prompt)
        if prompt.audio_tokens:
            found.audio_tokens[fingerprint] = prompt.audio_tokens
        if self._questions is not None:
            question, asked = self._questions.of(prompt.text)
            found.questions[fingerprint] = question, prompt_tokens(asked)
        found.candidates[fingerprint] = prompt
        if len(found.candidates) == 2 * CANDIDATES:  # those with the smallest fingerprints are a random selection
            found.candidates = dict(heapq.nsmallest(CANDIDATES, found.candidates.items()))
        return tokens


def _spread_ratio(spans: list[tuple[float, float]]) -> float:
    """Returns the relative standard error of the tokens per size over the portions."""
    sizes, tokens = sum(size for size, _ in spans), sum(tokens for _, tokens in spans)
    if len(spans) < 2 or not tokens:
        return 0.0
    ratio = tokens / sizes
    squares = sum((found - ratio * size) ** 2 for size, found in spans)
    return float((squares * len(spans) / (len(spans) - 1)) ** 0.5 / tokens)
