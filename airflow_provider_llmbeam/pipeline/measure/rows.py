"""The rows that are measured: all of a golden set, or a sample of a source, the same one every time."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import FailedRow, Row
from airflow_provider_llmbeam.pipeline.measure.portions import MAX_BYTES, read_once
from airflow_provider_llmbeam.pipeline.prompt_of_row import RowPrompts, with_key
from airflow_provider_llmbeam.pipeline.records import encode_key
from airflow_provider_llmbeam.pipeline.transforms.check_rows import name_of
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.source import FilesSource, Source

#: Maximum number of rows of a golden set. They are answered and scored in one process; at 5,000 rows and 1,000
#: resamples, the interval of a metric takes about a second.
MAX_ROWS = 5000
#: Number of further rows that a selection keeps, so that few rows are not sorted for each one that is added.
_SPARE = 1000

#: Rows by their keys, which are written as JSON.
KeyedRows = Mapping[str, Row]


@dataclass(frozen=True)
class RowSample:
    """A sample of the rows of a source.

    Attributes:
        rows: The rows.
        read: Number of rows that were read, without those that have no key.
        is_partial: Whether the source is so large that only portions of it were read.
    """

    rows: KeyedRows
    read: int
    is_partial: bool


def read_golden(
    spec: JobSpec, golden: Source, expected: Collection[str] = (), *, may_be_empty: bool = False
) -> KeyedRows:
    """Reads a golden set.

    Args:
        spec: The job, below whose state a BigQuery table is exported.
        golden: The golden set.
        expected: Columns with expected values: those of a job with `safety.privacy` are masked, like its answers.
        may_be_empty: Whether it may have no rows, or no files yet.

    Raises:
        JobSpecError: It is empty or too large, or has a row without a key or two rows with one key.
    """
    if may_be_empty and isinstance(golden, FilesSource) and not storage.find(golden.uri):
        return {}
    rows: dict[str, Row] = {}
    repeated: list[str] = []
    prompts = RowPrompts(spec, golden, expected)
    with _name_golden_set(), read_once(spec, prompts, MAX_BYTES) as reading:
        for number, read in enumerate(prompts.inspected(with_key(row, golden.key) for row in reading.rows()), 1):
            if number > MAX_ROWS:
                raise _too_large(f"more than {MAX_ROWS:,} rows")
            row = prompts.prepare(read)
            if isinstance(row, FailedRow):
                raise JobSpecError(f"`golden`: row {number}: {row.failure.message}.")
            key = _text(encode_key(row, golden.key))
            if key in rows:
                repeated.append(key)
            rows[key] = row
        if reading.is_partial:
            raise _too_large(f"more than {MAX_BYTES // 2**10:,} KiB")
    if repeated:
        raise JobSpecError(
            f"`golden.key`: the key {repeated[0]} belongs to several rows. Name columns that tell the rows apart."
        )
    if not rows and not may_be_empty:
        raise JobSpecError("`golden`: the golden set has no rows.")
    return rows


def sample_rows(
    spec: JobSpec, size: int, *, seed: int = 0, accepts: Callable[[Row], bool] = lambda row: True
) -> RowSample:
    """Selects the rows of a job's source whose keys have the smallest hashes.

    Args:
        spec: The job.
        size: Number of rows; duplicate keys count once.
        seed: Another one selects other rows. Comparisons have none but 0, with which a key is hashed alone.
        accepts: Whether a row may be selected.

    Raises:
        JobSpecError: No row has a key, or there is none.
    """
    picker = RowPicker(spec, size, seed=seed, accepts=accepts)
    with read_once(spec, picker.prompts, MAX_BYTES) as reading:
        for row in reading.rows():
            picker.add(row)
    return RowSample(picker.end(), picker.count, reading.is_partial)


class RowPicker:
    """Selects rows of those that are added, see `sample_rows`.

    Attributes:
        prompts: Prepares the rows.
        count: Number of rows that were added, without those that have no key.
    """

    def __init__(
        self, spec: JobSpec, size: int, *, seed: int = 0, accepts: Callable[[Row], bool] = lambda row: True
    ) -> None:
        self.prompts = RowPrompts(spec)
        self.count = 0
        self._source = spec.source
        self._size = size
        self._salt = hashlib.sha256(str(seed).encode()).digest() if seed else b""
        self._accepts = accepts
        self._picked: list[tuple[bytes, str, Row]] = []
        self._failed: dict[str, str] = {}  # the first message of each kind

    def add(self, read: Row | FailedRow) -> None:
        """Adds a row."""
        row = with_key(read, self._source.key)
        if isinstance(row, FailedRow):
            self._failed.setdefault(row.failure.kind, row.failure.message)
        elif self._accepts(row):
            self.count += 1
            key = encode_key(row, self._source.key)
            self._picked.append((hashlib.sha256(self._salt + key).digest(), _text(key), row))
            if len(self._picked) >= 2 * self._size + _SPARE:
                self._drop()

    def _drop(self) -> None:
        self._picked = heapq.nsmallest(self._size, self._picked, key=lambda each: each[:2])

    def end(self) -> KeyedRows:
        """Returns the selected rows.

        Raises:
            JobSpecError: No row has a key, or there is none.
        """
        self._drop()
        if not self._picked and not self._failed:
            raise JobSpecError(f"{name_of(self._source)} has no rows.")
        prompts, key = self.prompts, self._source.key
        prepared = [prompts.prepare(row) for row in prompts.inspected([row for *_, row in self._picked])]
        selected = {_text(encode_key(row, key)): row for row in prepared if not isinstance(row, FailedRow)}
        if not selected:
            refused = next((row.failure.message for row in prepared if isinstance(row, FailedRow)), "")
            message = refused or self._failed.get("missing_key") or next(iter(self._failed.values()), "")
            if prompts.masker is not None:
                message = prompts.masker.message(message)
            raise JobSpecError(f"`source`: none of its rows can be sent: {message}.")
        return selected


@contextmanager
def _name_golden_set() -> Iterator[None]:
    """Names the golden set in errors of its source."""
    try:
        yield
    except JobSpecError as error:
        raise JobSpecError(str(error).replace("`source", "`golden")) from error


def _text(key: bytes) -> str:
    return key.decode().strip()


def _too_large(size: str) -> JobSpecError:
    return JobSpecError(
        f"`golden`: the golden set has {size}, and is answered in one process. Take a part of it: a few hundred "
        "rows tell two prompts apart."
    )
