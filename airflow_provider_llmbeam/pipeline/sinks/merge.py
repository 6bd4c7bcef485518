"""The MERGE statement of the BigQuery sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.cloud.bigquery import TableReference

#: Columns that differ between runs; a difference in them alone does not update a row.
_NOT_COMPARED = frozenset({"origin"})


@dataclass(frozen=True, slots=True)
class MergeColumn:
    """One column of the answers.

    Attributes:
        name: Name in both tables.
        staged_type: Type in the staging table: `STRING`, `BYTES`, `INT64`, `FLOAT64`, `BOOL`, ARRAY or STRUCT.
        target_type: Type in the target table.
        is_key: Whether it is a column of the key, which is never NULL.
    """

    name: str
    staged_type: str
    target_type: str
    is_key: bool = False

    @property
    def value(self) -> str:
        """The staged value, as an expression of the target type."""
        column, staged_type = f"S.{quoted(self.name)}", self.staged_type
        if staged_type == "BYTES" != self.target_type:
            staged_type = "STRING"
            column = f"COALESCE(SAFE_CONVERT_BYTES_TO_STRING({column}), TO_BASE64({column}))"
        match staged_type, self.target_type:
            case staged, target if staged == target:
                return column
            case "STRING", "BYTES":
                return f"FROM_BASE64({column})"  # As the BigQuery source encodes BYTES.
            case "STRING", "JSON":  # a text that is no JSON becomes a JSON string
                parsed = f"SAFE.PARSE_JSON({column}, wide_number_mode=>'round')"
                return f"COALESCE({parsed}, IF({column} IS NULL, NULL, TO_JSON({column})))"
            case _, "JSON":
                return f"TO_JSON({column})"
            case "STRING", target if not self.is_key:  # an empty text is what CSV has for no value
                return f"CAST(NULLIF({column}, '') AS {target})"
            case _, target:
                return f"CAST({column} AS {target})"

    @property
    def does_not_fit(self) -> str:
        """The condition that a staged value is not NULL and has no equal of the target type, other than BYTES."""
        column = f"S.{quoted(self.name)}"
        fitting = f"SAFE_CAST({column} AS {self.target_type})"
        if (self.staged_type, self.target_type) == ("FLOAT64", "INT64"):  # CAST rounds to the nearest integer.
            fitting = f"NULLIF({fitting} = {column}, FALSE)"
        return f"{column} IS NOT NULL AND {fitting} IS NULL"

    @property
    def differs(self) -> str:
        """The condition that the target has another value."""
        mine, other = self.value, f"T.{quoted(self.name)}"
        if self.target_type.startswith(("JSON", "ARRAY", "STRUCT")):  # These types cannot be compared.
            mine, other = f"TO_JSON_STRING({mine})", f"TO_JSON_STRING({other})"
        return f"{other} IS DISTINCT FROM {mine}"


def merge_statement(
    target: TableReference, staging: str, key: Sequence[str], columns: Sequence[MergeColumn]
) -> str:
    """Returns the MERGE: inserts rows with new keys, updates rows that differ, and keeps all others.

    Args:
        target: The target table.
        staging: The staging table or a query, as SQL.
        key: Key columns; never NULL.
        columns: All columns, including the key.
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


def misfits_statement(staging: str, column: MergeColumn, limit: int) -> str:
    """Returns the query of some staged values of a column that have no equal of the target type."""
    name = quoted(column.name)
    return (
        f"SELECT DISTINCT S.{name} FROM {staging} AS S WHERE {column.does_not_fit} ORDER BY S.{name} LIMIT {limit}"
    )


def same_keys_statement(staging: str, keys: Sequence[MergeColumn], limit: int) -> str:
    """Returns the query of some keys of the target types that several staged rows have."""
    values = ", ".join(f"{column.value} AS {quoted(column.name)}" for column in keys)
    numbers = ", ".join(str(number) for number, _ in enumerate(keys, 1))
    return (
        f"SELECT {values} FROM {staging} AS S GROUP BY {numbers} HAVING COUNT(*) > 1 "
        f"ORDER BY {numbers} LIMIT {limit}"
    )


def quoted(name: str) -> str:
    """Returns a name as an identifier of GoogleSQL."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def quoted_table(table: TableReference) -> str:
    """Returns the full name of a table as an identifier of GoogleSQL."""
    return quoted(f"{table.project}.{table.dataset_id}.{table.table_id}")
