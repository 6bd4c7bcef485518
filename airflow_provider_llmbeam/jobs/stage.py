"""Stages the rows of a SQL source as Parquet files, once for all tries of a run; the manifest is the commit."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from airflow_provider_llmbeam import local_files
from airflow_provider_llmbeam.exceptions import CloudError, JobSpecError
from airflow_provider_llmbeam.hooks.sql import Rows, count_rows, open_query
from airflow_provider_llmbeam.jobs.client import Files
from airflow_provider_llmbeam.polling.poller import TaskLog
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.stage import (
    MANIFEST_NAME,
    SAMPLE_VARIABLE,
    TYPED,
    Stage,
    stage_uri,
    stages_of_run_uri,
)
from airflow_provider_llmbeam.spec.source import SqlSource
from airflow_provider_llmbeam.spec.typed_values import encode_typed

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.protocol.steps import Reads

#: Rows and bytes of a file at most: it is made in memory. And rows of a row group, which one worker reads.
PART_ROWS, PART_BYTES, _GROUP_ROWS = 50_000, 16 * 2**20, 10_000
#: Rows of a sample, which is one file.
SAMPLE_ROWS = 10_000
#: Digits of a decimal of 128 bits.
_DIGITS = 38


def stage_rows(spec: JobSpec, files: Files, log: TaskLog) -> Stage:
    """Stages all rows of a job, unless an earlier try of its run has.

    Args:
        spec: The job.
        files: Client of the filesystem of its state.
        log: Log of the task.

    Raises:
        JobSpecError: The query cannot be executed.
        JobFailedError: The database does not answer.
        CloudError: The files cannot be written.
    """
    begin = stage_uri(spec)
    if (known := _read_stage(begin, files)) is not None:
        log.info("Reading the %s rows that an earlier try has staged: %s*", f"{known.rows:,}", begin)
        return known
    return _write_stage(spec, begin, files, log)


@contextmanager
def stage_sample(spec: JobSpec, files: Files, log: TaskLog) -> Iterator[dict[str, str]]:
    """Stages the first rows of a job, which are deleted after the body.

    Yields:
        The environment variables by which the process that measures the job finds them.

    Raises:
        LLMBeamError: See `stage_rows`.
    """
    begin = f"{stages_of_run_uri(spec)}sample-{uuid.uuid4().hex}-"
    try:
        _write_stage(spec, begin, files, log, is_sample=True)
        yield {SAMPLE_VARIABLE: begin}
    finally:
        with suppress(CloudError):  # an error of the body says more
            for uri in files.list(begin):
                files.delete(uri)


@contextmanager
def stage_source(
    spec: JobSpec, reads: Reads, files_at: Callable[[str], Files], log: TaskLog
) -> Iterator[dict[str, str]]:
    """Stages what a process of a job reads of a SQL source; nothing for another one.

    Args:
        spec: The job.
        reads: How much of its source the process reads.
        files_at: Returns the client of the filesystem of an address.
        log: Log of the task.

    Yields:
        Environment variables of the process.

    Raises:
        LLMBeamError: See `stage_rows`.
    """
    if not isinstance(spec.source, SqlSource) or reads == "nothing":
        yield {}
        return
    files = files_at(spec.paths.home_uri)
    if reads == "sample":
        with stage_sample(spec, files, log) as variables:
            yield variables
        return
    stage_rows(spec, files, log)
    yield {}


def _read_stage(begin: str, files: Files) -> Stage | None:
    """Returns a stage whose files are all there; `None` for one that was not completed."""
    manifest = f"{begin}{MANIFEST_NAME}"
    if not files.exists(manifest):
        return None
    try:
        found = Stage.model_validate_json(files.read(manifest))
    except ValueError:  # a part of it, or another version
        return None
    return found if len(files.list(f"{begin}{found.prefix}-")) == found.files else None


def _write_stage(spec: JobSpec, begin: str, files: Files, log: TaskLog, *, is_sample: bool = False) -> Stage:
    source = spec.source
    assert isinstance(source, SqlSource)
    _make_private_directories(spec)
    # Another try may still be writing, so that the files of each have names of their own.
    prefix, count, rows, is_whole = uuid.uuid4().hex[:12], 0, 0, True
    # Of a sample one part is written, and another one shows that there are further rows.
    with open_query(source, 2 * SAMPLE_ROWS if is_sample else None) as query:
        parts = _parts(query.batches(), SAMPLE_ROWS if is_sample else PART_ROWS)
        for part in parts:
            files.write(f"{begin}{prefix}-{count:06}.parquet", encode_part(query.columns, part))
            count, rows = count + 1, rows + len(part)
            if is_sample:
                is_whole = next(parts, None) is None
                break
            log.info("%s rows read through connection %r", f"{rows:,}", source.conn_id)
    query_rows = rows if is_whole else count_rows(source)
    stage = Stage(prefix=prefix, files=count, rows=rows, query_rows=query_rows)
    files.write(f"{begin}{MANIFEST_NAME}", stage.model_dump_json())
    return stage


def _parts(batches: Iterator[tuple[Rows, int]], max_rows: int) -> Iterator[list[Sequence[Any]]]:
    """Yields the rows of each file: so many, or those that have `PART_BYTES`."""
    part: list[Sequence[Any]] = []
    size = 0
    for rows, read in batches:
        part += rows
        size += read
        if len(part) >= max_rows or size >= PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _make_private_directories(spec: JobSpec) -> None:
    """Makes the local directories of a job that nobody else needs to read, as its process does.

    Raises:
        JobSpecError: One is a link, or has one in it.
    """
    for uri in spec.paths.private_uris:
        if "://" not in uri and uri != spec.paths.audit_uri:
            if fault := local_files.link_fault(Path(uri)):
                raise JobSpecError(fault)
            local_files.make_private(Path(uri))


def encode_part(columns: Sequence[str], rows: Rows) -> bytes:
    """Returns a Parquet file of rows.

    Its types are those of these rows: another file may have others, e.g. of a column that is NULL here.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = [encode_column(cells) for cells in zip(*rows, strict=True)]
    buffer = io.BytesIO()
    pq.write_table(pa.table(dict(zip(columns, arrays, strict=True))), buffer, row_group_size=_GROUP_ROWS)
    return buffer.getvalue()


def encode_column(cells: Sequence[Any]) -> Any:
    """Returns the cells of a column as an Arrow array, from which the same values are read.

    A column of one type that Parquet has is stored in it; any other, e.g. of UUIDs, JSON or numbers of several
    scales, as texts with the types of the values.
    """
    import pyarrow as pa

    kinds = {*map(type, cells)} - {type(None)}
    if kinds <= {bytes, bytearray, memoryview} and kinds:
        return pa.array([None if cell is None else bytes(cell) for cell in cells], pa.binary())
    # What is too large is no value of the type: an integer of 64 bits, or a decimal of 38 digits.
    with suppress(OverflowError, UnicodeEncodeError, ValueError, pa.ArrowException):
        if (found := _arrow_type(kinds, cells)) is not None:
            return pa.array(cells, found)
    typed = [None if cell is None else {TYPED: encode_typed(_plain(cell))} for cell in cells]
    return pa.array(typed, pa.struct({TYPED: pa.string()}))


def _arrow_type(kinds: set[type], cells: Sequence[Any]) -> Any:
    """Returns the Arrow type that has all values of a column unchanged; `None` if there is none."""
    import pyarrow as pa

    if not kinds:
        return pa.null()
    if len(kinds) > 1:
        return None
    (kind,) = kinds
    if kind is datetime:
        zoned = {cell.tzinfo is not None for cell in cells if cell is not None}
        return None if len(zoned) > 1 else pa.timestamp("us", "UTC" if zoned.pop() else None)
    if kind is Decimal:  # with one scale alone: 1.5 and 1.50 render differently
        first = next(cell for cell in cells if cell is not None)
        exponent = first.as_tuple().exponent
        if not isinstance(exponent, int) or not -_DIGITS <= exponent <= 0:
            return None
        is_one = all(cell is None or first.same_quantum(cell) for cell in cells)
        return pa.decimal128(_DIGITS, -exponent) if is_one else None
    plain = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), date: pa.date32()}
    return plain.get(kind)


#: Types of values that stay as they are.
_PLAIN = frozenset({str, int, float, bool, bytes, date, Decimal, UUID, type(None)})


def _plain(value: Any) -> Any:
    """Returns a value of a driver as one of Python, of which `typed_values` knows the type; else its text."""
    if type(value) in _PLAIN:
        return value
    match value:
        case datetime():
            return datetime.fromisoformat((value.astimezone(UTC) if value.tzinfo else value).isoformat())
        case dict():
            return {str(name): _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [*map(_plain, value)]
        case set() | frozenset():
            return sorted(map(str, value))
        case bytearray() | memoryview():
            return bytes(value)
    if hasattr(value, "read"):  # a CLOB or BLOB of Oracle
        return _plain(value.read())
    return value if type(value).__module__ == "datetime" else str(value)
