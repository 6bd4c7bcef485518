from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st
from milvus_lite.server_manager import server_manager_instance
from pymilvus import MilvusClient
from sqlglot import expressions

from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.measure.forget import run
from airflow_provider_llmbeam.pipeline.measure.named_keys import NamedKeys
from airflow_provider_llmbeam.pipeline.records import encode_key
from airflow_provider_llmbeam.pipeline.sinks import milvus
from airflow_provider_llmbeam.spec import JobSpec, MilvusSink

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


def statement(spec: JobSpec, named: list[str]) -> str | None:
    return run.statement(spec, NamedKeys(named, spec.source.key))


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
    assert statement(spec_of(SINKS["postgres"], "a", "b"), ["17"]) is None, "it names no row"


@pytest.mark.parametrize(("named", "kept"), [("17", "007"), ("007", 17), ("a 'b\"", 17)])
def test_a_collection_of_milvus_is_deleted_from_whatever_the_type_of_its_key(
    tmp_path: Path, named: str, kept: Any
) -> None:
    sink = MilvusSink(type="milvus", uri=f"{tmp_path}/notes.db", collection="notes")
    spec = JobSpec.parse(spec_of(SINKS["bigquery"]).model_dump() | {"sink": sink.model_dump(), "task": "embed"})
    staged = tmp_path / "staged.jsonl"
    rows = [
        {"id": key, "answer": [1.0], "llmbeam_model": "m", "llmbeam_fingerprint": "f"} for key in (named, kept)
    ]
    staged.write_text("".join(json.dumps(row) + "\n" for row in rows))
    milvus.publish(sink, OutputColumns(("id",)), {0: str(staged)}, lambda *refused: pytest.fail(str(refused)))
    client = MilvusClient(sink.uri)
    try:
        client.load_collection("notes")
        text = statement(spec, [named])
        assert text is not None
        eval(text, {"MilvusClient": {sink.uri: client}.__getitem__})
        (left,) = client.query("notes", filter="llmbeam_id != ''", output_fields=["id"])
    finally:
        client.close()
        server_manager_instance.release_server(sink.uri)
    assert left["id"] == str(kept)


@pytest.mark.parametrize("dialect", ["bigquery", "postgres"])
@given(key=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1))
def test_no_key_changes_the_statement(dialect: str, key: str) -> None:
    text = statement(spec_of(SINKS[dialect]), [key])
    assert text is not None
    (found,) = sqlglot.parse(text, dialect=dialect)
    assert isinstance(found, expressions.Delete)
    (literal,) = found.find_all(expressions.Literal)
    assert literal.this == key


@pytest.mark.parametrize(
    ("named", "keys"), [("123", ["123", 123]), ("007", ["007"]), ("1.5", ["1.5", 1.5]), ("ä\n", ["ä\n"])]
)
def test_a_message_is_removed_whatever_the_type_of_its_key(named: str, keys: list[Any]) -> None:
    kafka = {"type": "kafka", "topic": "labels", "bootstrap_servers": "k1:9092"}
    text = statement(spec_of(kafka), [named])
    assert text is not None
    tombstones = ast.literal_eval(text.removeprefix("for key in ").partition(": Producer")[0])
    assert [each.encode() + b"\n" for each in tombstones] == [encode_key({"id": key}, ("id",)) for key in keys]


def test_a_message_is_removed_by_one_without_a_value_or_by_time() -> None:
    kafka = {"type": "kafka", "topic": "labels", "bootstrap_servers": "k1:9092"}
    found = statement(spec_of(kafka, "a", "b"), ['["x", 5]'])
    assert found == """for key in ['{"a": "x", "b": 5}']: Producer({…}).produce('labels', None, key)"""
    found = statement(spec_of(kafka, "a", "b"), ['["007", "2"]'])
    assert found == """for key in ['{"a": "007", "b": "2"}']: Producer({…}).produce('labels', None, key)"""
    pubsub = {"type": "pubsub", "topic": "projects/p/topics/t"}
    found = statement(spec_of(pubsub), ["17"])
    assert found is not None
    assert found.endswith("for each subscription of projects/p/topics/t")
