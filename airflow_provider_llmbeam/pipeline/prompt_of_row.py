"""From a row as read to its prompt: selection, key, masks, templates, fingerprint and files.

The graph, the estimate, the evaluation, the preview and `forget` all make prompts here. What takes more than one
row, such as duplicate keys, is not here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jinja2

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.columns import used_columns
from airflow_provider_llmbeam.pipeline.elements import FailedRow, Row, RowPrompt, failed_row
from airflow_provider_llmbeam.pipeline.media.stored import MediaIdentifier
from airflow_provider_llmbeam.pipeline.privacy.masker import Inspect, ItemT, PersonalDataError, itself, masker_of
from airflow_provider_llmbeam.pipeline.privacy.vault import without_vault
from airflow_provider_llmbeam.pipeline.records import encode_key, failure_of
from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.job.output_rules import reads_own_dead_letter
from airflow_provider_llmbeam.spec.nesting import MAX_DEPTH, depth_exceeds
from airflow_provider_llmbeam.spec.plain_values import plain_row
from airflow_provider_llmbeam.spec.prompt import PromptTemplate
from airflow_provider_llmbeam.spec.prompt.template import RowEnvironment
from airflow_provider_llmbeam.spec.source import FilesSource, Source

#: Number of files that are looked up at once: one of Cloud Storage takes a round trip of some 30 ms.
_THREADS = 16
_WHOLE = (0.0, 1.0)
_NESTED = frozenset({dict, list})


class RowPrompts:
    """Makes the prompts of the rows of a job. One for each process: it is not pickled.

    Args:
        spec: The job.
        source: Source of the rows; `None`: that of the job.
        columns: Further columns that are masked, see `Masker`.

    Attributes:
        source: Source of the rows.
        used: Columns of them that are used, see `used_columns`; `None` for all.
        masker: Masks the rows; `None` if nothing is masked.

    Raises:
        JobSpecError: See `Masker`.
    """

    def __init__(self, spec: JobSpec, source: Source | None = None, columns: Collection[str] = ()) -> None:
        self.source = source or spec.source
        self.used = used_columns(spec) if source is None else None
        self.masker = masker_of(spec, None if source is None else source.key, columns)
        is_own_dead_letter = source is None and reads_own_dead_letter(spec)
        self._is_selected = selection(self.source, is_own_dead_letter=is_own_dead_letter)
        self._renderer = PromptRenderer(spec.prompt, is_embedded=spec.embedding is not None)
        #: Prepares a row, see `prepare`; one that a service is to inspect is not masked yet.
        self.take = (
            partial(with_key, key=self.source.key)
            if self.masker is not None and self.masker.asks_service
            else self.prepare
        )
        self._fingerprint = spec.fingerprinter()
        self._media = MediaIdentifier(spec) if spec.prompt.media else None
        # One pool for all batches, as one for each took 10 ms per 64 local files instead of 3. It starts no thread
        # without files, and its threads end when it is collected (`concurrent.futures.thread`, `weakref_cb`).
        self._threads = ThreadPoolExecutor(_THREADS)

    def prompt_of_row(self, row: Row | FailedRow) -> RowPrompt | FailedRow:
        """Returns the prompt of a selected row, before its files are identified; a failed row if it has none."""
        prepared = self.prepare(row)
        return prepared if isinstance(prepared, FailedRow) else self.render(prepared)

    def selects(self, row: Row | FailedRow) -> bool:
        """Returns whether the job reads this row of its source, see `selection`."""
        return self._is_selected is None or self._is_selected(row)

    def skips(self, row: Row | FailedRow) -> bool:
        """Returns whether a row is not asked, as it has nothing in the columns of `skip_empty`."""
        columns = self.source.skip_empty
        return bool(columns) and isinstance(row, dict) and all(_is_blank(row.get(column)) for column in columns)

    def prepare(self, row: Row | FailedRow, inspect: Inspect | None = None) -> Row | FailedRow:
        """Returns a row that has its key, with its columns masked; else a failed row, masked as well.

        Args:
            row: The row.
            inspect: See `Masker.row`.

        Raises:
            JobSpecError: See `Masker.row`.
            ModelUnavailableError: See `Masker.row`.
        """
        row = with_key(row, self.source.key)
        return row if self.masker is None else self.masker.row(row, inspect)

    def inspected(
        self, items: Iterable[ItemT], row_of: Callable[[ItemT], Row | FailedRow] = itself
    ) -> Iterable[ItemT]:
        """Returns items whose rows a detector of type `dlp` inspects together, see `Masker.inspected`."""
        return items if self.masker is None else self.masker.inspected(items, row_of)

    def render(self, row: Row) -> RowPrompt | FailedRow:
        """Returns the prompt of a prepared row; a failed row if it has none."""
        try:
            prompt = self._renderer.render(row)
            if self.masker is not None:
                row, prompt = self.masker.prompt(row, prompt)
        except PersonalDataError as error:
            return failed_row(row, "personal_data", str(error))
        except Exception as error:  # noqa: BLE001 - a template may raise anything, and only this row fails
            kind = "" if isinstance(error, jinja2.UndefinedError) else f"{type(error).__name__}: "
            message = f"{kind}{error}"
            if self.masker is not None:
                message = self.masker.message(message)
            return failed_row(row, "template_error", message)
        return RowPrompt(row, self._fingerprint(prompt.text, prompt.system, prompt.media), prompt)

    def identify(self, prompts: Sequence[RowPrompt | FailedRow]) -> Iterator[RowPrompt | FailedRow]:
        """Identifies the files of prompts by what they hold, several at once; all else is as it was.

        Raises:
            JobFailedError: Cloud Storage does not answer.
        """
        if (media := self._media) is None:
            return iter(prompts)
        return self._threads.map(
            lambda each: media.identify(each) if isinstance(each, RowPrompt) else each, prompts
        )


class PromptRenderer:
    """Renders the prompt of a row.

    Args:
        template: The job's templates.
        is_embedded: Whether vectors are requested, so that an empty text is an error.
    """

    def __init__(self, template: PromptTemplate, *, is_embedded: bool = False) -> None:
        self._is_embedded = is_embedded
        environment = RowEnvironment()
        self._begin_row = environment.begin_row
        self._text = _compiled(environment, template.template)
        self._system = _compiled(environment, template.system) if template.system else None
        self._media = [(_compiled(environment, media.uri), media.mime_type) for media in template.media]
        self._variables = dict(template.variables)

    def render(self, row: Row) -> Prompt:
        """Renders the templates for one row.

        Raises:
            Exception: Any error of the code in the template; a missing column is a `jinja2.UndefinedError`, too
                much a `TemplateLimitError`, and an empty text to embed a `ValueError`.
        """
        self._begin_row()
        scope = {"row": without_vault(row), "variables": self._variables}
        text = valid_text(self._text.render(scope))
        if self._is_embedded and not text.strip():
            # APIs reject a whole request for one empty text, and isolating it takes many more.
            raise ValueError("the text is empty, so it has no vector")
        return Prompt(
            text=text,
            system=valid_text(self._system.render(scope)) if self._system else None,
            media=tuple((valid_text(uri.render(scope)), mime_type) for uri, mime_type in self._media),
        )


def _compiled(environment: jinja2.Environment, text: str) -> jinja2.Template:
    template = environment.from_string(text)
    # Jinja copies these for each rendering; its chain of mappings takes 3.5 of 6 µs for that.
    template.globals = dict(template.globals)
    return template


def selection(source: Source, *, is_own_dead_letter: bool = False) -> Callable[[Row | FailedRow], bool] | None:
    """Returns whether a job reads a row of its source; `None` if it reads all.

    Rows without a key belong to the share that begins at 0, so that one of several jobs reports them.

    Args:
        source: The source.
        is_own_dead_letter: Whether it is, or contains, the dead letter of the job. A row there that shares its key
            with an answered one is read only if `failed_kinds` names it: its answer would replace the other one.
    """
    kinds = frozenset(source.failed_kinds) if isinstance(source, FilesSource) else frozenset()
    leaves_duplicates = is_own_dead_letter and not kinds
    if source.share == _WHOLE and not kinds and not leaves_duplicates:
        return None
    low, high = source.share

    def is_selected(row: Row | FailedRow) -> bool:
        if isinstance(row, FailedRow):
            return low == 0
        if kinds and _kind(row) not in kinds:
            return False
        if leaves_duplicates and _kind(row) == "duplicate_key":
            return False
        if any(row.get(column) is None for column in source.key):
            return low == 0
        place = _place(encode_key(row, source.key))
        return low <= place < high

    return is_selected


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _kind(row: Row) -> Any:
    return (failure_of(row) or {}).get("kind")


def _place(key: bytes) -> float:
    """Returns the place of a key from 0 to below 1, evenly spread and the same on every machine."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=6).digest()) / 2**48


def with_key(row: Row | FailedRow, key: tuple[str, ...]) -> Row | FailedRow:
    """Returns the row, with plain values, if it has one in each key column, else a failed row.

    A row that is nested too deep fails as well.
    """
    if isinstance(row, FailedRow):
        return row
    if not _NESTED.isdisjoint(map(type, row.values())) and depth_exceeds(row):
        message = f"nested more than {MAX_DEPTH} levels deep; it has {sorted(row)}"
        return failed_row({"llmbeam_raw": _text(row)}, "unreadable_row", message)
    plain = plain_row(row)
    for column in key:
        value = row.get(column)
        if value is None:
            return failed_row(row, "missing_key", f"no value in key column {column!r}; the row has {sorted(row)}")
        if not isinstance(value, str) and (plain[column] is None or not _is_key(value)):
            # NaN equals no other key, so no sink could find its row again, and JSON has no such numbers.
            return failed_row(plain, "missing_key", f"no number in key column {column!r} but {value!r}")
    return plain


def _is_key(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, (list, tuple)):
        return all(map(_is_key, value))
    return not isinstance(value, dict) or all(map(_is_key, value.values()))


def _text(row: Row) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, default=str)
    except (RecursionError, ValueError):  # deeper than its encoder goes, or it contains itself
        return json.dumps({name: value for name, value in row.items() if not isinstance(value, (dict, list))})
