"""The one statement that brings answers into a BigQuery table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.cloud.bigquery import TableReference

#: How an answer was come by is another matter in each run; alone it is no reason to write a row again.
_NOT_COMPARED = frozenset({"origin"})


@dataclass(frozen=True, slots=True)
class MergeColumn:
    """One column of the answers.

    Attributes:
        name: In both tables.
        staged_type: `STRING`, `INT64`, `FLOAT64`, `BOOL` or `ARRAY<FLOAT64>`.
        target_type: Of the column that takes it.
    """

    name: str
    staged_type: str
    target_type: str

    @property
    def value(self) -> str:
        """The staged value, as an expression of the target's type."""
        column = f"S.{quoted(self.name)}"
        match self.staged_type, self.target_type:
            case staged, target if staged == target:
                return column
            case "STRING", "BYTES":
                return f"FROM_BASE64({column})"  # As the source reads BYTES.
            case "STRING", "JSON":
                return f"PARSE_JSON({column}, wide_number_mode=>'round')"
            case _, "JSON":
                return f"TO_JSON({column})"
            case _, target:
                return f"CAST({column} AS {target})"

    @property
    def differs(self) -> str:
        """The condition that the target has another value."""
        mine, other = self.value, f"T.{quoted(self.name)}"
        if self.target_type.startswith(("JSON", "ARRAY")):  # Neither can be compared.
            mine, other = f"TO_JSON_STRING({mine})", f"TO_JSON_STRING({other})"
        return f"{other} IS DISTINCT FROM {mine}"


def merge_statement(
    target: TableReference, staging: str, key: Sequence[str], columns: Sequence[MergeColumn]
) -> str:
    """Writes the MERGE: rows of new keys are inserted, others updated where they differ, all others stay.

    Args:
        target: The table of the answers.
        staging: The table or query of the new ones, as SQL.
        key: Columns that name a row; never NULL.
        columns: All, with the key.
    """
    keys = [column for column in columns if column.name in key]
    others = [column for column in columns if column.name not in key]
    same = " AND ".join(f"T.{quoted(column.name)} = {column.value}" for column in keys)
    differs = " OR ".join(column.differs for column in others if column.name not in _NOT_COMPARED)
    changes = ", ".join(f"{quoted(column.name)} = {column.value}" for column in others)
    names = ", ".join(quoted(column.name) for column in columns)
    values = ", ".join(column.value for column in columns)
    return (
        f"MERGE {quoted_table(target)} AS T\nUSING {staging} AS S\nON {same}\n"
        f"WHEN MATCHED AND ({differs}) THEN\n  UPDATE SET {changes}\n"
        f"WHEN NOT MATCHED THEN\n  INSERT ({names}) VALUES ({values})"
    )


def quoted(name: str) -> str:
    """Returns a name as an identifier of GoogleSQL."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def quoted_table(table: TableReference) -> str:
    """Returns the full name of a table as an identifier of GoogleSQL."""
    return quoted(f"{table.project}.{table.dataset_id}.{table.table_id}")
