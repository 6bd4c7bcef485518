"""The Milvus sink: upserts vectors into a collection."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, RowsLostError, require_extra
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.records import encode_key, read_records, whole
from airflow_provider_llmbeam.pipeline.sinks.key_types import KeyType, KeyTypes
from airflow_provider_llmbeam.pipeline.sinks.parquet import as_text
from airflow_provider_llmbeam.pipeline.sinks.refused import Refuse, store_each
from airflow_provider_llmbeam.spec.sink import MILVUS_DETAILS, MilvusSink

if TYPE_CHECKING:
    from pymilvus import MilvusClient

ID, VECTOR = "llmbeam_id", "vector"
#: Maximum size of one upsert; the limit of a server is 64 MB: https://milvus.io/docs/limitations.md
_UPSERT_BYTES, _UPSERT_ROWS = 8 * 2**20, 5_000
#: Maximum length of a text field; https://milvus.io/docs/limitations.md
_LONGEST_TEXT = 65_535
#: Codes of errors of a value: those of milvus-lite, and "invalid parameter" of a server.
#: Source: milvus-io/milvus, pkg/util/merr/errors.go.
_OF_A_ROW = frozenset({5, 6, 1100})
_NOT_BILLED = JobSpecError.remains
_KEPT = "The answers are in the journal: another run sends nothing to the model."


def check(sink: MilvusSink, columns: OutputColumns) -> None:
    """Checks that an existing collection can store the answers.

    Raises:
        JobSpecError: The collection does not fit, or a package is missing.
        JobFailedError: The server cannot be reached.
    """
    with _opened(sink, _NOT_BILLED) as client:
        if client.has_collection(sink.collection) and (
            mismatch := _misfit(client, sink, columns, columns.dimensions)
        ):
            raise JobSpecError(mismatch)


def publish(
    sink: MilvusSink, columns: OutputColumns, staged: Mapping[int, str], refuse: Refuse, *, flushes: bool = True
) -> list[str]:
    """Upserts the rows of the staged files; doing it again changes nothing.

    Args:
        sink: The sink.
        columns: Columns of the answers.
        staged: Address of each file of answer records, as JSON lines.
        refuse: Takes each row that does not fit the collection.
        flushes: Whether Milvus is asked to seal what it has.

    Returns:
        The address of the collection.

    Raises:
        JobFailedError: The collection cannot be reached, or fits no row.
        RowsLostError: Milvus stored fewer rows than were sent.
    """
    shape = _shape(staged, columns)
    if shape.dimensions:  # without a vector those of a collection are not known
        with _opened(sink, _KEPT) as client:
            _upsert(client, sink, columns, staged, shape, refuse)
            if flushes:
                client.flush(sink.collection)
            client.load_collection(sink.collection)
    return [f"{sink.uri}/{sink.collection}"]


def entity_id(row: Mapping[str, Any], key: tuple[str, ...]) -> str:
    """Returns the id of the entity of a row, the same in every run."""
    return hashlib.sha256(encode_key(dict(row), key)).hexdigest()


@dataclass(frozen=True, slots=True)
class _Shape:
    """Shape of the staged rows: the commonest length of the vectors, 0 without any, and types of columns."""

    dimensions: int
    types: dict[str, KeyType]


def _shape(staged: Mapping[int, str], columns: OutputColumns) -> _Shape:
    lengths, types = Counter[int](), KeyTypes(columns.from_source)
    for row in read_records(staged):
        lengths[len(row["answer"])] += 1
        types.add(row)
    return _Shape(max(lengths, key=lambda length: (lengths[length], length), default=0), types.types())


def _upsert(
    client: MilvusClient,
    sink: MilvusSink,
    columns: OutputColumns,
    staged: Mapping[int, str],
    shape: _Shape,
    refuse: Refuse,
) -> None:
    from pymilvus.exceptions import DataNotMatchException, MilvusException

    if not client.has_collection(sink.collection):
        _create(client, sink, columns, shape)
    elif mismatch := _misfit(client, sink, columns, shape.dimensions):
        raise JobFailedError(f"{mismatch} {_KEPT}")
    fields = client.describe_collection(sink.collection)["fields"]
    types = {field["name"]: field["type"].name for field in fields}
    rows, sent, taken = enumerate(read_records(staged)), 0, 0
    size = min(_UPSERT_ROWS, max(1, _UPSERT_BYTES // (4 * shape.dimensions)))
    while chunk := [(number, _entity(row, columns, types)) for number, row in itertools.islice(rows, size)]:

        def upsert(first: int, end: int, chunk: list[tuple[int, dict[str, Any]]] = chunk) -> str | None:
            nonlocal sent, taken
            try:
                found = client.upsert(sink.collection, [entity for _, entity in chunk[first:end]])
            except MilvusException as error:
                is_of_value = isinstance(error, DataNotMatchException) or error.code in _OF_A_ROW
                if is_of_value or isinstance(error.__cause__, OverflowError):  # the client cannot pack a number
                    return f"Collection {sink.collection!r}: {error.message}"
                raise
            sent += end - first
            taken += found["upsert_count"]
            return None

        def take(position: int, reason: str, chunk: list[tuple[int, dict[str, Any]]] = chunk) -> None:
            refuse(chunk[position][0], reason)

        store_each(0, len(chunk), upsert, take)
    if taken != sent:
        raise RowsLostError(f"Milvus took {taken} of {sent} rows into {sink.collection!r}. {_KEPT}")


def _entity(row: dict[str, Any], columns: OutputColumns, types: Mapping[str, str]) -> dict[str, Any]:
    for column in columns.from_source:
        if types[column] == "INT64":
            row[column] = whole(row[column])
    texts = [name for name in columns.from_source if types[name] == "VARCHAR" and row[name] is not None]
    found = {name: row[name] for name in (*columns.from_source, *_details(columns))}
    found |= {name: as_text(row[name]) for name in texts}
    return {ID: entity_id(row, columns.key), VECTOR: row["answer"], **found}


def _details(columns: OutputColumns) -> list[str]:
    return [name for name in MILVUS_DETAILS if name in columns.after_answer]


def _create(client: MilvusClient, sink: MilvusSink, columns: OutputColumns, shape: _Shape) -> None:
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field(ID, DataType.VARCHAR, is_primary=True, max_length=64)
    kinds = {"integer": DataType.INT64, "number": DataType.DOUBLE, "boolean": DataType.BOOL}
    for column, kind in shape.types.items():
        nullable = {} if column in columns.key else {"nullable": True}
        if kind in kinds:
            schema.add_field(column, kinds[kind], **nullable)
        else:
            schema.add_field(column, DataType.VARCHAR, max_length=_LONGEST_TEXT, **nullable)
    for name in _details(columns):
        schema.add_field(name, DataType.VARCHAR, max_length=1024)
    schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=shape.dimensions)
    index = client.prepare_index_params()
    index.add_index(VECTOR, index_type="AUTOINDEX", metric_type=sink.metric_type)
    client.create_collection(sink.collection, schema=schema, index_params=index)


def _misfit(client: MilvusClient, sink: MilvusSink, columns: OutputColumns, dimensions: int | None) -> str | None:
    """Returns why an existing collection cannot store the answers; `None` if it can."""
    described = client.describe_collection(sink.collection)
    fields = {field["name"]: field for field in described["fields"]}
    if missing := [name for name in (ID, *columns.from_source, VECTOR, *_details(columns)) if name not in fields]:
        return (
            f"The collection {sink.collection!r} has no field {missing}: a job of another kind, or with another "
            "key or `sink.passthrough`, made it. `sink.details` False leaves those with 'llmbeam_' out. "
            "Name a new one (`sink.collection`)."
        )
    found = int(fields[VECTOR]["params"]["dim"])
    if dimensions is not None and found != dimensions:
        return (
            f"The collection {sink.collection!r} holds vectors of {found} dimensions, and this job's have "
            f"{dimensions}. Name a new one (`sink.collection`), or ask for {found} (`embedding.dimensions`)."
        )
    metrics = {
        client.describe_index(sink.collection, name)["metric_type"]
        for name in client.list_indexes(sink.collection, field_name=VECTOR)
    }
    if metrics - {sink.metric_type}:
        return (
            f"The collection {sink.collection!r} has an index by {sorted(metrics)}, and `sink.metric_type` is "
            f"{sink.metric_type!r}."
        )
    return None


def _is_relevant(record: logging.LogRecord) -> bool:
    """Drops the log line that milvus-lite 3.2 lacks `AllocTimestamp`, which pymilvus 3.0 calls optionally."""
    return "Method not implemented" not in record.getMessage()


@contextmanager
def _opened(sink: MilvusSink, outcome: str) -> Iterator[MilvusClient]:
    """Opens a client and converts its errors."""
    with require_extra("A sink of type 'milvus'", "milvus", outcome):
        from pymilvus import MilvusClient
        from pymilvus.exceptions import MilvusException

        if sink.is_local:
            from milvus_lite.server_manager import server_manager_instance
    # It logs every exception with a traceback.
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    if sink.is_local:
        logging.getLogger("grpc._server").addFilter(_is_relevant)
        Path(sink.uri).parent.mkdir(parents=True, exist_ok=True)
    try:
        client = MilvusClient(sink.uri, token=os.environ.get(sink.token_env, ""))
        try:
            yield client
        finally:
            client.close()
    except MilvusException as error:
        in_use = " Another process may have the file open." if sink.is_local else ""
        raise JobFailedError(f"Milvus at {sink.uri!r}: {error}{in_use} {outcome}") from error
    finally:
        if sink.is_local:
            # Other processes can open the file once the server in this one has ended.
            server_manager_instance.release_server(sink.uri)
