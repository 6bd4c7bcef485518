from __future__ import annotations

import pytest
import sqlglot
from google.cloud.bigquery import DatasetReference

from airflow_provider_llmbeam.pipeline.sinks.bigquery import (
    MergeColumn,
    Staging,
    merge_statement,
    quote,
)

TARGET = DatasetReference("p", "d").table("answers")


def test_a_merge_inserts_new_rows_and_updates_only_differing_ones() -> None:
    columns = [
        MergeColumn("day", "STRING", "DATE", is_key=True),
        MergeColumn("answer", "STRING", "STRING"),
        MergeColumn("llmbeam_origin", "STRING", "STRING"),
    ]
    statement = merge_statement(TARGET, "`p.d.staging`", ["day"], columns)
    assert statement == (
        "MERGE `p.d.answers` AS T\n"
        "USING `p.d.staging` AS S\n"
        "ON T.`day` = CAST(S.`day` AS DATE)\n"
        "WHEN MATCHED AND (T.`answer` IS DISTINCT FROM S.`answer`) THEN\n"
        "  UPDATE SET `answer` = S.`answer`, `llmbeam_origin` = S.`llmbeam_origin`\n"
        "WHEN NOT MATCHED THEN\n"
        "  INSERT (`day`, `answer`, `llmbeam_origin`) "
        "VALUES (CAST(S.`day` AS DATE), S.`answer`, S.`llmbeam_origin`)"
    )
    assert sqlglot.parse_one(statement, read="bigquery").key == "merge"


@pytest.mark.parametrize(
    ("staged", "target", "value"),
    [
        ("INT64", "INT64", "S.`c`"),
        ("INT64", "STRING", "CAST(S.`c` AS STRING)"),
        ("STRING", "NUMERIC", "CAST(NULLIF(S.`c`, '') AS NUMERIC)"),
        ("STRING", "BYTES", "FROM_BASE64(S.`c`)"),
        (
            "STRING",
            "JSON",
            "COALESCE(SAFE.PARSE_JSON(S.`c`, wide_number_mode=>'round'), IF(S.`c` IS NULL, NULL, TO_JSON(S.`c`)))",
        ),
        ("INT64", "JSON", "TO_JSON(S.`c`)"),
    ],
)
def test_a_value_takes_the_type_of_its_column(staged: str, target: str, value: str) -> None:
    assert MergeColumn("c", staged, target).value == value


def staging(*columns: MergeColumn, may_share_keys: bool = False) -> Staging:
    return Staging("`p.d.staging`", ("k",), columns, may_share_keys)


@pytest.mark.parametrize(
    ("column", "condition"),
    [
        (
            MergeColumn("c", "STRING", "INT64", is_key=True),
            "S.`c` IS NOT NULL AND SAFE_CAST(S.`c` AS INT64) IS NULL",
        ),
        (
            MergeColumn("c", "STRING", "INT64"),
            "S.`c` != '' AND S.`c` IS NOT NULL AND SAFE_CAST(S.`c` AS INT64) IS NULL",
        ),
        (
            MergeColumn("c", "FLOAT64", "INT64"),
            "S.`c` IS NOT NULL AND NULLIF(SAFE_CAST(S.`c` AS INT64) = S.`c`, FALSE) IS NULL",
        ),
        (MergeColumn("c", "STRING", "STRING", max_length=10), "S.`c` IS NOT NULL AND CHAR_LENGTH(S.`c`) > 10"),
        (MergeColumn("c", "INT64", "INT64", is_required=True), "S.`c` IS NULL"),
    ],
)
def test_values_that_a_column_does_not_hold_are_queried_and_left_out(column: MergeColumn, condition: str) -> None:
    rows = staging(MergeColumn("k", "INT64", "INT64", is_key=True), column)
    query = rows.misfits(column)
    assert query == f"SELECT S.`k`, S.`c` FROM `p.d.staging` AS S WHERE ({condition})"
    assert rows.fitting() == f"(SELECT S.* FROM `p.d.staging` AS S WHERE NOT (({condition})))"
    for statement in (query, merge_statement(TARGET, rows.fitting(), ["k"], rows.columns)):
        assert sqlglot.parse_one(statement, read="bigquery").key in ("select", "merge")


def test_a_table_that_holds_every_value_is_merged_as_it_is_staged() -> None:
    rows = staging(MergeColumn("k", "INT64", "INT64", is_key=True), MergeColumn("c", "INT64", "JSON"))
    assert rows.fitting() == "`p.d.staging`"
    assert [rows.misfits(column) for column in rows.columns] == [None, None]
    assert rows.same_keys() is None


def test_keys_that_are_one_key_of_the_table_are_queried_and_left_out() -> None:
    key = MergeColumn("k", "STRING", "INT64", is_key=True)
    rows = staging(key, may_share_keys=True)
    fitting = f"`p.d.staging` AS S WHERE NOT ({key.does_not_fit})"
    number = "COUNT(*) OVER (PARTITION BY TO_JSON_STRING(CAST(S.`k` AS INT64)))"
    assert rows.same_keys() == f"SELECT S.`k`, {number} FROM {fitting} QUALIFY {number} > 1"
    assert rows.fitting() == f"(SELECT S.* FROM {fitting} QUALIFY {number} = 1)"


def test_json_and_arrays_are_compared_as_text() -> None:
    assert MergeColumn("c", "ARRAY<FLOAT64>", "ARRAY<FLOAT64>").differs == (
        "TO_JSON_STRING(T.`c`) IS DISTINCT FROM TO_JSON_STRING(S.`c`)"
    )
    assert MergeColumn("c", "INT64", "JSON").differs == (
        "TO_JSON_STRING(T.`c`) IS DISTINCT FROM TO_JSON_STRING(TO_JSON(S.`c`))"
    )


def test_a_name_cannot_break_out_of_its_quotes() -> None:
    assert quote("a`b\\c") == "`a\\`b\\\\c`"
