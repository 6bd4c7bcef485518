"""A sample of a source: its rows, and the prompts that they become."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from airflow_provider_llmbeam.engine.plan import prompt_tokens
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.audit.record import audited_row
from airflow_provider_llmbeam.pipeline.elements import FailedRow, Row, RowPrompt
from airflow_provider_llmbeam.pipeline.measure.estimate.sampling import Portion, read_portions
from airflow_provider_llmbeam.pipeline.moderation.guard import guard_job
from airflow_provider_llmbeam.pipeline.moderation.judging import Questions
from airflow_provider_llmbeam.pipeline.prompt_of_row import RowPrompts
from airflow_provider_llmbeam.pipeline.records import encode_equal_key, encode_record
from airflow_provider_llmbeam.pipeline.sources.check_files import check_source
from airflow_provider_llmbeam.pipeline.sources.files import RowFormat
from airflow_provider_llmbeam.pipeline.transforms.keys import refuse_duplicates
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.source import (
    BigQuerySource,
    FilesSource,
    KafkaSource,
    PubSubSource,
    RowsSource,
)

#: Maximum size in bytes of a source of which every row is read.
MAX_BYTES = 64 * 2**20
#: Number of prompts that are kept, at random, for the sample of answers.
CANDIDATES = 2048
#: Number of prompts whose files are identified together.
_MEDIA_AT_ONCE = 256


@dataclass
class SourceSample:
    """The rows read from a source, and their prompts.

    Attributes:
        rows: Number of rows read.
        failed: Number of rows without a request: invalid lines, missing or duplicate keys, template errors.
        first_message: Message of the first failure.
        tokens: Estimated input tokens of each distinct prompt, by fingerprint.
        audio_tokens: Those of audio among them, for prompts that have some.
        repeats: Number of rows by fingerprint, for prompts of several rows.
        candidates: A random selection of the prompts by fingerprint, the same every time.
        questions: Fingerprint and estimated input tokens of the question to the guard model about each prompt, by
            the fingerprint of the prompt, for a job that moderates its prompts.
        keys: What an audit needs of the rows of a prompt, by its text and system text; empty without one.
        inspected_bytes: Size of the texts that a detector of type `dlp` inspects, in bytes.
        scale: Rows of the source over rows read; 1 if all were read.
        spread_ratio: Relative standard error of the tokens of the source due to sampling; 0 if all rows were read.
    """

    rows: int = 0
    failed: int = 0
    first_message: str = ""
    tokens: dict[str, int] = field(default_factory=dict)
    audio_tokens: dict[str, int] = field(default_factory=dict)
    repeats: dict[str, int] = field(default_factory=dict)
    candidates: dict[str, Prompt] = field(default_factory=dict)
    questions: dict[str, tuple[str, int]] = field(default_factory=dict)
    keys: dict[tuple[str, str | None], list[Row]] = field(default_factory=dict)
    inspected_bytes: int = 0
    scale: float = 1.0
    spread_ratio: float = 0.0

    def leave_out(self, fingerprint: str, *, is_failed: bool) -> None:
        """Leaves out a prompt that is not sent; its rows are among the failed ones if `is_failed`."""
        del self.tokens[fingerprint]
        self.audio_tokens.pop(fingerprint, None)
        rows = self.repeats.pop(fingerprint, 1)
        if is_failed:
            self.failed += rows

    @property
    def is_sampled(self) -> bool:
        """Whether only a part of the source was read."""
        return self.scale != 1


def sample_source(spec: JobSpec, max_bytes: int = MAX_BYTES) -> SourceSample:
    """Reads the source of a job and renders its prompts; a BigQuery source is exported, as by the job.

    Args:
        spec: The job.
        max_bytes: A larger source is read in portions.

    Raises:
        JobSpecError: The source is empty, or has duplicate keys that the spec does not allow.
    """
    prompts = RowPrompts(spec)
    size, portions = read_source(prompts, spec.paths.export_uri, max_bytes)
    counter = _Sampler(spec, prompts)
    spans: list[tuple[float, float]] = []
    for portion in portions:
        spans.append((portion.size, float(counter.add(portion.rows))))
    found = counter.finished()
    read = sum(span for span, _ in spans)
    if read and size - read > 1e-9 * size:
        found.scale = size / read
        found.spread_ratio = _spread_ratio(spans)
    return found


def read_source(
    prompts: RowPrompts, export_uri: str, max_bytes: int = MAX_BYTES
) -> tuple[float, Iterable[Portion]]:
    """Reads the selected rows of a source, or of portions of a large one; see `sampling.read_portions`.

    Args:
        prompts: Selects the rows of its source.
        export_uri: Directory for the export of a BigQuery source.
        max_bytes: A larger source is read in portions.

    Returns:
        The size of the whole source, and the portions: all rows were read if their sizes add up to it.

    Raises:
        JobSpecError: The source does not exist.
    """
    size, portions = _read_all(prompts, export_uri, max_bytes)
    return size, (Portion(list(filter(prompts.selects, portion.rows)), portion.size) for portion in portions)


def _read_all(prompts: RowPrompts, export_uri: str, max_bytes: int) -> tuple[float, Iterable[Portion]]:
    match source := prompts.source:
        case FilesSource():
            check_source(source.uri, source.resolved_format)
            how = RowFormat(source.resolved_format, source.csv, prompts.used)
            return read_portions(source.uri, how, max_bytes)
        case BigQuerySource():
            from airflow_provider_llmbeam.pipeline.sources.bigquery import export, json_values

            size, portions = read_portions(f"{export(source, export_uri)}*.avro", RowFormat("avro"), max_bytes)
            return size, (
                Portion(
                    [row if isinstance(row, FailedRow) else json_values(row) for row in portion.rows], portion.size
                )
                for portion in portions
            )
        case KafkaSource() | PubSubSource():
            raise JobSpecError(
                f"`source.type`: the messages of a source of type {source.type!r} are taken by runs of the job "
                "alone. Name a source of type 'files', 'bigquery' or 'rows' with such rows. Nothing was sent or "
                "billed."
            )
        case RowsSource():
            return float(len(source.rows)), [Portion([dict(row) for row in source.rows], float(len(source.rows)))]


class _Sampler:
    def __init__(self, spec: JobSpec, prompts: RowPrompts) -> None:
        self._source = spec.source
        self._is_audited = spec.safety.audit is not None
        self._prompts = prompts
        self._unidentified: list[RowPrompt | FailedRow] = []
        self._found = SourceSample()
        self._moderation = spec.safety.moderation
        self._questions = None
        if self._moderation is not None and "input" in self._moderation.on:
            self._questions = Questions(guard_job(spec, self._moderation), self._moderation)
        self._keys: set[bytes] = set()
        self._repeated_keys: dict[bytes, None] = {}
        self._picked: dict[bytes, tuple[bytes, Row]] = {}
        self._largest: list[tuple[int, str]] = []

    def add(self, rows: Iterable[Row | FailedRow]) -> int:
        """Adds rows; returns their tokens."""
        tokens = 0
        for read in self._prompts.inspected(rows):
            self._found.rows += 1
            row = self._prompts.prepare(read)
            if isinstance(row, FailedRow):
                self._fail(row.failure.message)
            elif self._source.on_duplicate_key == "dead_letter":
                tokens += self._pick(row)
            else:
                if self._source.on_duplicate_key == "error":
                    self._check_key(encode_equal_key(row, self._source.key))
                tokens += self._render(row)
        return tokens + self._identify()

    def finished(self) -> SourceSample:
        for _, row in self._picked.values():
            self._render(row)
        self._identify()
        masker = self._prompts.masker
        self._found.inspected_bytes = 0 if masker is None else masker.text_bytes
        refuse_duplicates(list(self._repeated_keys))
        return self._found

    def _fail(self, message: str) -> None:
        self._found.failed += 1
        self._found.first_message = self._found.first_message or message

    def _check_key(self, key: bytes) -> None:
        if key in self._keys:
            self._repeated_keys[key] = None
        self._keys.add(key)

    def _pick(self, row: Row) -> int:
        """Keeps the row of a key that the job selects: the first by its record."""
        key, record = encode_equal_key(row, self._source.key), encode_record(row)
        if key in self._picked:
            self._fail(f"another row has the key {key.decode('utf-8', 'replace').strip()}")
            if self._picked[key][0] <= record:
                return 0
        self._picked[key] = record, row
        return len(record)

    def _render(self, row: Row) -> int:
        found = self._prompts.render(row)
        if isinstance(found, FailedRow):
            return self._add(found)
        if self._is_audited:
            audited = audited_row(found.row, self._source.key)
            self._found.keys.setdefault((found.prompt.text, found.prompt.system), []).append(audited)
        self._unidentified.append(found)
        return self._identify() if len(self._unidentified) == _MEDIA_AT_ONCE else 0

    def _identify(self) -> int:
        """Identifies the files of some prompts, several at once; returns their tokens."""
        prompts, self._unidentified = self._unidentified, []
        return sum(map(self._add, self._prompts.identify(prompts)))

    def _add(self, of_row: RowPrompt | FailedRow) -> int:
        if isinstance(of_row, FailedRow):
            self._fail(of_row.failure.message)
            return 0
        _, fingerprint, prompt = of_row
        found = self._found
        if fingerprint in found.tokens:
            found.repeats[fingerprint] = found.repeats.get(fingerprint, 1) + 1
            return 0
        tokens = found.tokens[fingerprint] = prompt_tokens(prompt)
        if prompt.audio_tokens:
            found.audio_tokens[fingerprint] = prompt.audio_tokens
        if self._questions is not None:
            question, asked = self._questions.of(prompt.text)
            found.questions[fingerprint] = question, prompt_tokens(asked)
        self._keep(fingerprint, prompt)
        return tokens

    def _keep(self, fingerprint: str, prompt: Prompt) -> None:
        """Keeps the prompts with the smallest fingerprints, which is a random selection."""
        candidates, entry = self._found.candidates, (-int(fingerprint, 16), fingerprint)
        if len(candidates) == CANDIDATES:
            if entry < self._largest[0]:
                return
            del candidates[heapq.heappop(self._largest)[1]]
        heapq.heappush(self._largest, entry)
        candidates[fingerprint] = prompt


def _spread_ratio(spans: list[tuple[float, float]]) -> float:
    """Returns the relative standard error of the tokens per size over the portions."""
    sizes, tokens = sum(size for size, _ in spans), sum(tokens for _, tokens in spans)
    if len(spans) < 2 or not tokens:
        return 0.0
    ratio = tokens / sizes
    squares = sum((found - ratio * size) ** 2 for size, found in spans)
    return float((squares * len(spans) / (len(spans) - 1)) ** 0.5 / tokens)
