"""Names of datasets, by the naming rules of OpenLineage. Pure.

Source: `spec/Naming.md` of OpenLineage 1.54. It has no rule for Milvus, whose collections are named here as
the tables of other servers are: `milvus://{host}:{port}`, `{collection}`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from airflow_provider_llmbeam.spec.sink import (
    BigQuerySink,
    FilesSink,
    KafkaSink,
    MilvusSink,
    PostgresSink,
    PubSubSink,
    Sink,
)
from airflow_provider_llmbeam.spec.source import BigQuerySource, FilesSource, KafkaSource, PubSubSource, Source

_BIGQUERY = "bigquery"
_PUBSUB = "pubsub"
_FILE = "file"
_POSTGRES_PORT, _MILVUS_PORT, _KAFKA_PORT = 5432, 19530, 9092
_GLOB = re.compile(r"[*?\[]")


class DatasetName(NamedTuple):
    """Name of a dataset.

    Attributes:
        namespace: The service that holds it, e.g. `gs://bucket`.
        name: Its name in that service, e.g. `tickets/2026`.
    """

    namespace: str
    name: str


def source_name(source: Source) -> DatasetName | None:
    """Returns the dataset that a job reads; `None` for rows in the spec, for several topics, and for a query."""
    match source:
        case FilesSource():
            return file_name(source.uri)
        case BigQuerySource(table=str(table)):
            return DatasetName(_BIGQUERY, table)
        case KafkaSource(topic=(topic,), bootstrap_servers=str(servers)):
            return kafka_name(topic, servers)
        case PubSubSource():
            _, project, _, name = source.subscription.split("/")
            return DatasetName(_PUBSUB, f"subscription:{project}:{name}")
        case _:
            return None


def query_names(query: str, project: str | None) -> list[DatasetName]:
    """Returns the tables that a BigQuery query reads, as the parser of OpenLineage finds them.

    Args:
        query: The query.
        project: Project of tables that the query names without one; without it they are left out.

    Raises:
        ImportError: The OpenLineage provider is not installed.
    """
    from openlineage.common.sql import parse

    parsed = parse(query, dialect="bigquery")
    names = [table.qualified_name.replace("`", "") for table in parsed.in_tables] if parsed is not None else []
    full = [f"{project}.{name}" if project and name.count(".") == 1 else name for name in names]
    return [DatasetName(_BIGQUERY, name) for name in sorted(set(full)) if name.count(".") >= 2]


def sink_name(sink: Sink, postgres_dsns: Mapping[str, str]) -> DatasetName | None:
    """Returns the dataset that a job writes its answers to.

    Args:
        sink: The sink.
        postgres_dsns: Connection strings, by variable; without that of a PostgreSQL sink its name is not known.
    """
    match sink:
        case FilesSink():
            return file_name(sink.uri)
        case BigQuerySink():
            return DatasetName(_BIGQUERY, sink.table)
        case PostgresSink():
            return _postgres_name(sink.table, dsn) if (dsn := postgres_dsns.get(sink.dsn_env)) else None
        case MilvusSink() if sink.is_local:
            return DatasetName(_FILE, f"{_absolute(sink.uri)}/{sink.collection}")
        case MilvusSink():
            parts = urlsplit(sink.uri)
            return DatasetName(f"milvus://{parts.hostname}:{parts.port or _MILVUS_PORT}", sink.collection)
        case KafkaSink():
            return kafka_name(sink.topic, sink.bootstrap_servers) if sink.bootstrap_servers else None
        case PubSubSink():
            _, project, _, name = sink.topic.split("/")
            return DatasetName(_PUBSUB, f"topic:{project}:{name}")


def kafka_name(topic: str, servers: str) -> DatasetName:
    """Returns the name of a topic, by the first of its brokers."""
    host, _, port = servers.partition(",")[0].strip().rpartition(":")
    return DatasetName(f"kafka://{host}:{port}" if host else f"kafka://{port}:{_KAFKA_PORT}", topic)


def file_name(uri: str) -> DatasetName:
    """Returns the name of a file or a directory; of a glob, the directory above its first wildcard."""
    scheme, _, rest = uri.rpartition("://")
    if scheme in ("", _FILE):
        return DatasetName(_FILE, _above_glob(_absolute(rest)) or "/")
    authority, _, path = rest.partition("/")
    return DatasetName(f"{scheme}://{authority}", _above_glob(path).strip("/") or "/")


def _above_glob(path: str) -> str:
    if not (glob := _GLOB.search(path)):
        return path if path == "/" else path.rstrip("/")
    return path[: glob.start()].rpartition("/")[0]


def _absolute(path: str) -> str:
    return str(Path(path).absolute())


def _postgres_name(table: str, dsn: str) -> DatasetName:
    host, port, database = _postgres_address(dsn)
    qualified = table if "." in table else f"public.{table}"
    return DatasetName(f"postgres://{host}:{port}", f"{database}.{qualified}")


def _postgres_address(dsn: str) -> tuple[str, int, str]:
    """Returns host, port and database of a connection string of libpq, in either of its forms."""
    if dsn.startswith(("postgresql://", "postgres://")):
        parts = urlsplit(dsn)
        host, port, database, user = parts.hostname, None, unquote(parts.path.lstrip("/")), parts.username
        with suppress(ValueError):  # several hosts
            port = parts.port
    else:
        given = dict(part.partition("=")[::2] for part in shlex.split(dsn) if "=" in part)
        host, user, database = given.get("host"), given.get("user"), given.get("dbname", "")
        port = int(given["port"]) if given.get("port", "").isdecimal() else None
    # A socket directory is no host; libpq's default database is the name of the user.
    is_host = host and not unquote(host).startswith("/")
    return (host if is_host else None) or "localhost", port or _POSTGRES_PORT, database or user or "postgres"
