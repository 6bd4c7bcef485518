from __future__ import annotations

from typing import Any

import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import expressions

from airflow_provider_llmbeam.pipeline.forget.statements import statement
from airflow_provider_llmbeam.spec import JobSpec

SINKS: dict[str, dict[str, Any]] = {
    "bigquery": {"type": "bigquery", "table": "p.d.t"},
    "postgres": {"type": "postgres", "table": "public.answers"},
}


def spec_of(sink: dict[str, Any], *key: str) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": "rows.jsonl", "key": key or ["id"]},
            "prompt": {"template": "{{ row.text }}"},
            "model": {"type": "echo"},
            "sink": sink,
            "state_uri": "state",
        }
    )


def test_the_statement_names_each_column_of_the_key() -> None:
    found = statement(spec_of(SINKS["bigquery"], "a", "b"), ['["x", 5]', '["y", 6]'])
    assert found == (
        "DELETE FROM `p.d.t` WHERE (CAST(`a` AS STRING) = 'x' AND CAST(`b` AS STRING) = '5') OR "
        "(CAST(`a` AS STRING) = 'y' AND CAST(`b` AS STRING) = '6');"
    )
    assert statement(spec_of(SINKS["postgres"]), ["17"]) == (
        'DELETE FROM "public"."answers" WHERE ("id"::text = \'17\');'
    )
    assert statement(spec_of({"uri": "out"}), ["17"]) is None


def test_a_collection_of_milvus_is_deleted_from_by_a_filter() -> None:
    sink = {"type": "milvus", "uri": "http://milvus:19530", "collection": "texts"}
    spec = JobSpec.parse(spec_of(SINKS["bigquery"]).model_dump() | {"sink": sink, "task": "embed"})
    found = statement(spec, ["17", 'a "b"'])
    assert found is not None
    assert "id in [17]" in found
    assert 'a \\\\"b\\\\"' in found


@pytest.mark.parametrize("dialect", ["bigquery", "postgres"])
@given(key=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1))
def test_no_key_changes_the_statement(dialect: str, key: str) -> None:
    text = statement(spec_of(SINKS[dialect]), [key])
    assert text is not None
    (found,) = sqlglot.parse(text, dialect=dialect)
    assert isinstance(found, expressions.Delete)
    (literal,) = found.find_all(expressions.Literal)
    assert literal.this == key


def test_a_message_is_removed_by_one_without_a_value_or_by_time() -> None:
    kafka = {"type": "kafka", "topic": "labels", "bootstrap_servers": "k1:9092"}
    found = statement(spec_of(kafka, "a", "b"), ['["x", 5]'])
    assert found == """for key in ['{"a": "x", "b": 5}']: Producer({…}).produce('labels', None, key)"""
    pubsub = {"type": "pubsub", "topic": "projects/p/topics/t"}
    found = statement(spec_of(pubsub), ["17"])
    assert found is not None
    assert found.endswith("for each subscription of projects/p/topics/t")
