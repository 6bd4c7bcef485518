"""Datasets and tables of BigQuery, and their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmbeam_sandbox.bigquery.columns import Field, quoted
from llmbeam_sandbox.core.rest import RestError


@dataclass(frozen=True, slots=True, kw_only=True)
class TableId:
    """The name of a table; prints as BigQuery writes it."""

    project: str
    dataset: str
    table: str

    @classmethod
    def of(cls, reference: Mapping[str, Any], project: str = "") -> TableId:
        """Reads a `TableReference`.

        Raises:
            RestError: A part is missing, or it names a partition.
        """
        names = [str(reference.get(key) or "") for key in ("projectId", "datasetId", "tableId")]
        names[0] = names[0] or project
        if not all(names):
            raise RestError(400, "Required parameter is missing: tableReference", "required")
        if "$" in names[2]:
            raise RestError(400, f"The sandbox has no partitions; got {names[2]!r}.", "invalid")
        return cls(project=names[0], dataset=names[1], table=names[2])

    def __str__(self) -> str:
        """Returns e.g. "project:dataset.table"."""
        return f"{self.project}:{self.dataset}.{self.table}"

    @property
    def schema(self) -> str:
        """Its DuckDB schema."""
        return f"{self.project}:{self.dataset}"

    @property
    def sql(self) -> str:
        """Its name in DuckDB."""
        return f"{quoted(self.schema)}.{quoted(self.table)}"

    def reference(self) -> dict[str, str]:
        """Returns a `TableReference`."""
        return {"projectId": self.project, "datasetId": self.dataset, "tableId": self.table}


@dataclass(slots=True, kw_only=True)
class Table:
    """A table without its rows.

    Attributes:
        id: Name of the table.
        created_at: Time of creation, in seconds since the epoch.
        modified_at: Time of the last change, in seconds since the epoch.
        fields: Fields of the client: `schema`, `labels`, `expirationTime` and more.
        streamed_rows: Number of its last rows that are in the streaming buffer.
    """

    id: TableId
    created_at: float
    modified_at: float
    fields: dict[str, Any] = field(default_factory=dict)
    streamed_rows: int = 0

    @property
    def columns(self) -> list[Field]:
        """Its schema; empty before it has one."""
        return list((self.fields.get("schema") or {}).get("fields") or [])

    @property
    def is_view(self) -> bool:
        """Whether it is a view."""
        return bool(self.fields.get("view"))


@dataclass(slots=True, kw_only=True)
class Dataset:
    """A dataset: the fields of the client, and its tables."""

    project: str
    name: str
    created_at: float
    fields: dict[str, Any]
    tables: dict[str, Table] = field(default_factory=dict)
