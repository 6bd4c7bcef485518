from __future__ import annotations

import pytest
import sqlglot
from google.cloud.bigquery import DatasetReference

from airflow_provider_llmbeam.pipeline.sinks.merge import MergeColumn, merge_statement, quoted

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


def test_json_and_arrays_are_compared_as_text() -> None:
    assert MergeColumn("c", "ARRAY<FLOAT64>", "ARRAY<FLOAT64>").differs == (
        "TO_JSON_STRING(T.`c`) IS DISTINCT FROM TO_JSON_STRING(S.`c`)"
    )
    assert MergeColumn("c", "INT64", "JSON").differs == (
        "TO_JSON_STRING(T.`c`) IS DISTINCT FROM TO_JSON_STRING(TO_JSON(S.`c`))"
    )


def test_a_name_cannot_break_out_of_its_quotes() -> None:
    assert quoted("a`b\\c") == "`a\\`b\\\\c`"
