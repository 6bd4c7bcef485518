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

from airflow_provider_llmbeam.pipeline.measure.forget.keys import NamedKeys
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
    return NamedKeys(named, spec.source.key).statement(spec.sink)


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


@pytest.mark.parametrize(("named", "kept"), [("17", "007"), ("007", 17), ("a 'b\"", 17)])
def test_a_collection_of_milvus_is_deleted_from_whatever_the_type_of_its_key(
    tmp_path: Path, named: str, kept: Any
) -> None:
    sink = MilvusSink(type="milvus", uri=f"{tmp_path}/notes.db", collection="notes")
    spec = JobSpec.parse(spec_of(SINKS["bigquery"]).model_dump() | {"sink": sink.model_dump(), "task": "embed"})
    staged = tmp_path / "staged.jsonl"
    rows = [{"id": key, "answer": [1.0], "model": "m", "fingerprint": "f"} for key in (named, kept)]
    staged.write_text("".join(json.dumps(row) + "\n" for row in rows))
    milvus.publish(sink, ("id",), {0: str(staged)})
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


@given(st.lists(st.integers() | st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=3))
def test_a_key_is_named_by_its_value_or_by_the_json_of_its_values(values: list[int | str]) -> None:
    columns = tuple(f"c{number}" for number in range(len(values)))
    row = dict(zip(columns, values, strict=True))
    named = str(values[0]) if len(values) == 1 else json.dumps(values)
    assert NamedKeys([named], columns).of_row(row) == named
    assert dict(zip(columns, values, strict=True)) in list(NamedKeys([named], columns).rows())
    assert NamedKeys([named], (*columns, "missing")).of_row(row) is None


def test_a_key_that_lacks_columns_names_no_row() -> None:
    keys = NamedKeys(["17"], ("a", "b"))
    assert keys.of_row({"a": 17, "b": 1}) is None
    assert keys.statement(spec_of(SINKS["postgres"], "a", "b").sink) is None


def test_a_whole_number_names_an_integer_and_a_float_and_no_other_text() -> None:
    for named in ("1", "1.0"):
        assert {NamedKeys([named], ("a",)).of_row({"a": value}) for value in (1, 1.0)} == {named}
        assert NamedKeys([named], ("a",)).of_row({"a": named}) == named
    for other in ("1.0", True, 1.5, 10, float("nan"), None):
        assert NamedKeys(["1"], ("a",)).of_row({"a": other}) is None
    assert NamedKeys(["1.0"], ("a",)).of_row({"a": "1"}) is None
    assert {"a": 1.0} in [row for row in NamedKeys(["1"], ("a",)).rows_and_floats() if type(row["a"]) is float]


def test_a_number_in_a_list_names_its_text() -> None:
    for value in (1, 1.0, "1"):
        assert NamedKeys(['["a", 1]'], ("k", "id")).of_row({"k": "a", "id": value}) == '["a", 1]'
    assert NamedKeys(['["a", null]'], ("k", "id")).of_row({"k": "a", "id": "None"}) is None


@pytest.mark.parametrize(
    ("named", "row"),
    [
        ('{"id": 4}', {"id": 4.0}),
        ('{"id": "a b"}', {"id": "a b"}),
        ('{"id": "{}"}', {"id": "{}"}),
        ('{"id": 4, "k": "a"}', {"k": "a", "id": 4}),
    ],
)
def test_a_key_is_also_named_by_the_object_of_its_columns(named, row):
    keys = NamedKeys([named, "other"], tuple(row))
    assert keys.unfound == (named, "other")
    assert keys.of_row(row) == named
    assert keys.unfound == ("other",)
    assert row in list(keys.rows())


def test_an_object_of_other_columns_or_of_null_names_no_row():
    for named in ('{"k": 4}', '{"id": 4, "k": 4}', '{"id": null}'):
        assert NamedKeys([named], ("id",)).of_row({"id": 4}) is None


def test_two_keys_of_one_row_are_both_found():
    keys = NamedKeys(["1", "1.0", '{"id": 1}'], ("id",))
    assert keys.of_row({"id": 1}) is not None
    assert keys.unfound == ()
