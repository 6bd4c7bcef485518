from __future__ import annotations

import pytest
import sqlglot
from google.cloud.bigquery import DatasetReference

from airflow_provider_llmbeam.pipeline.sinks.bigquery import (
    MergeColumn,
    merge_statement,
    misfits_statement,
    quote,
    same_keys_statement,
)

TARGET = DatasetReference("p", "d").table("answers")


def test_a_merge_inserts_new_rows_and_updates_only_differing_ones() -> None:
    columns = [
        MergeColumn("day", "STRING", "DATE", is_key=True),
        MergeColumn("answer", "STRING", "STRING"),
        MergeColumn("origin", "STRING", "STRING"),
    ]
    statement = merge_statement(TARGET, "`p.d.staging`", ["day"], columns)
    assert statement == (
        "MERGE `p.d.answers` AS T\n"
        "USING `p.d.staging` AS S\n"
        "ON T.`day` = CAST(S.`day` AS DATE)\n"
        "WHEN MATCHED AND (T.`answer` IS DISTINCT FROM S.`answer`) THEN\n"
        "  UPDATE SET `answer` = S.`answer`, `origin` = S.`origin`\n"
        "WHEN NOT MATCHED THEN\n"
        "  INSERT (`day`, `answer`, `origin`) VALUES (CAST(S.`day` AS DATE), S.`answer`, S.`origin`)"
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


@pytest.mark.parametrize(
    ("staged", "target", "condition"),
    [
        ("STRING", "INT64", "SAFE_CAST(S.`c` AS INT64) IS NULL"),
        ("FLOAT64", "INT64", "NULLIF(SAFE_CAST(S.`c` AS INT64) = S.`c`, FALSE) IS NULL"),
    ],
)
def test_keys_that_a_column_cannot_hold_are_queried(staged: str, target: str, condition: str) -> None:
    statement = misfits_statement("`p.d.staging`", MergeColumn("c", staged, target, is_key=True), 5)
    assert statement == (
        f"SELECT DISTINCT S.`c` FROM `p.d.staging` AS S WHERE S.`c` IS NOT NULL AND {condition} "
        "ORDER BY S.`c` LIMIT 5"
    )
    assert sqlglot.parse_one(statement, read="bigquery").key == "select"


def test_keys_that_are_one_key_of_the_table_are_queried() -> None:
    keys = [MergeColumn("a", "STRING", "INT64", is_key=True), MergeColumn("b", "STRING", "STRING", is_key=True)]
    assert same_keys_statement("`p.d.staging`", keys, 5) == (
        "SELECT CAST(S.`a` AS INT64) AS `a`, S.`b` AS `b` FROM `p.d.staging` AS S GROUP BY 1, 2 "
        "HAVING COUNT(*) > 1 ORDER BY 1, 2 LIMIT 5"
    )


def test_json_and_arrays_are_compared_as_text() -> None:
    assert MergeColumn("c", "ARRAY<FLOAT64>", "ARRAY<FLOAT64>").differs == (
        "TO_JSON_STRING(T.`c`) IS DISTINCT FROM TO_JSON_STRING(S.`c`)"
    )
    assert MergeColumn("c", "INT64", "JSON").differs == (
        "TO_JSON_STRING(T.`c`) IS DISTINCT FROM TO_JSON_STRING(TO_JSON(S.`c`))"
    )


def test_a_name_cannot_break_out_of_its_quotes() -> None:
    assert quote("a`b\\c") == "`a\\`b\\\\c`"
