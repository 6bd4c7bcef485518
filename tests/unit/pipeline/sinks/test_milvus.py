from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from milvus_lite.server_manager import server_manager_instance
from pymilvus import DataType, MilvusClient

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, RowsLostError
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.sinks import milvus
from airflow_provider_llmbeam.pipeline.sinks.milvus import check, entity_id
from airflow_provider_llmbeam.spec import MilvusSink

KEY = ("id",)


@pytest.fixture
def sink(tmp_path: Path) -> MilvusSink:
    return MilvusSink(type="milvus", uri=f"{tmp_path}/vectors/notes.db", collection="notes")


@contextlib.contextmanager
def opened(sink: MilvusSink) -> Iterator[MilvusClient]:
    Path(sink.uri).parent.mkdir(exist_ok=True)
    client = MilvusClient(sink.uri)
    if client.has_collection(sink.collection):
        client.load_collection(sink.collection)
    yield client
    client.close()
    server_manager_instance.release_server(sink.uri)


def entities(sink: MilvusSink) -> list[dict[str, Any]]:
    with opened(sink) as client:
        return list(client.query(sink.collection, filter="llmbeam_id != ''", output_fields=["*"]))


def stage(directory: Path, *rows: dict[str, Any]) -> dict[int, str]:
    path = directory / "staged.jsonl"
    filled = [{"answer": [1.0, 0.5], "llmbeam_model": "m", "llmbeam_fingerprint": "f", **row} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in filled))
    return {0: str(path)}


def publish(sink: MilvusSink, found: tuple[str, ...] | OutputColumns, staged: dict[int, str]) -> list[str]:
    """Publishes rows, none of which the collection refuses; a key alone stands for columns without others."""
    columns = found if isinstance(found, OutputColumns) else OutputColumns(found)
    return milvus.publish(sink, columns, staged, lambda number, reason: pytest.fail(f"{number}: {reason}"))


def refusals(sink: MilvusSink, staged: dict[int, str]) -> dict[int, str]:
    """Publishes rows; returns why some were refused, by their positions."""
    reasons: dict[int, str] = {}
    milvus.publish(sink, OutputColumns(KEY), staged, reasons.__setitem__)
    return reasons


def test_a_row_becomes_an_entity(sink: MilvusSink, tmp_path: Path) -> None:
    address = publish(sink, KEY, stage(tmp_path, {"id": 7, "answer": [0.25, -1.0]}))
    assert address == [f"{sink.uri}/notes"]
    (entity,) = entities(sink)
    assert entity == {
        "llmbeam_id": entity_id({"id": 7}, KEY),
        "id": 7,
        "vector": [0.25, -1.0],
        "llmbeam_model": "m",
        "llmbeam_fingerprint": "f",
    }


def test_columns_of_the_source_are_passed_through_also_where_a_row_has_none(
    sink: MilvusSink, tmp_path: Path
) -> None:
    columns = OutputColumns(KEY, passthrough=("text", "stars", "model", "tags"), after_answer=())
    rows = [
        {"id": 1, "text": "flat tyre", "stars": 2, "model": "city", "tags": ["a", "b"]},
        {"id": 2, "text": None, "stars": None, "model": None, "tags": None},
    ]
    publish(sink, columns, stage(tmp_path, *rows))
    found = entities(sink)
    assert found == [
        {"llmbeam_id": entity_id(row, KEY), "vector": [1.0, 0.5]} | row | {"tags": tags}
        for row, tags in zip(rows, ('["a", "b"]', None), strict=True)
    ]
    publish(sink, columns, stage(tmp_path, *rows))
    assert entities(sink) == found
    with pytest.raises(JobSpecError, match=r"has no field \['shop'\]: .*another key or `sink\.passthrough`"):
        check(sink, OutputColumns(KEY, passthrough=("shop",), after_answer=(), dimensions=2))


def test_an_entity_is_found_by_its_vector_and_by_its_key(sink: MilvusSink, tmp_path: Path) -> None:
    rows = [{"id": number, "answer": [1.0, number / 10]} for number in range(10)]
    publish(sink, KEY, stage(tmp_path, *rows))
    with opened(sink) as client:
        ((nearest, *_),) = client.search("notes", [[1.0, 0.3]], limit=1, output_fields=["id"])
        assert nearest["entity"]["id"] == 3
        assert len(client.query("notes", filter="id >= 8", output_fields=["id"])) == 2


def test_a_second_run_changes_nothing_and_a_new_vector_replaces_the_old_one(
    sink: MilvusSink, tmp_path: Path
) -> None:
    rows = [{"id": number} for number in range(20)]
    for _ in range(2):
        publish(sink, KEY, stage(tmp_path, *rows))
        assert len(entities(sink)) == 20
    publish(sink, KEY, stage(tmp_path, {"id": 3, "answer": [9.0, 9.0]}, {"id": 20}))
    found = {entity["id"]: entity["vector"] for entity in entities(sink)}
    assert len(found) == 21
    assert found[3] == [9.0, 9.0]
    assert found[4] == [1.0, 0.5]


def test_more_rows_than_one_upsert_takes_are_all_written(
    sink: MilvusSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milvus, "_UPSERT_BYTES", 8 * 7)
    publish(sink, KEY, stage(tmp_path, *({"id": number} for number in range(23))))
    assert sorted(entity["id"] for entity in entities(sink)) == list(range(23))


@pytest.mark.parametrize(
    ("keys", "kind", "stored"),
    [
        ([1, 2], DataType.INT64, [1, 2]),
        ([1, 2.5], DataType.DOUBLE, [1.0, 2.5]),
        ([True, False], DataType.BOOL, [True, False]),
        (["a", "ä漢😀"], DataType.VARCHAR, ["a", "ä漢😀"]),
        ([1, "a"], DataType.VARCHAR, ["1", "a"]),
        ([2**70, 1], DataType.VARCHAR, [str(2**70), "1"]),
        ([{"a": "ä"}, [1]], DataType.VARCHAR, ['{"a": "ä"}', "[1]"]),
    ],
    ids=["int", "float", "bool", "str", "mixed", "long", "nested"],
)
def test_a_key_column_has_the_type_of_its_values_else_text(
    sink: MilvusSink, tmp_path: Path, keys: list[Any], kind: DataType, stored: list[Any]
) -> None:
    publish(sink, KEY, stage(tmp_path, *({"id": key} for key in keys)))
    assert sorted(map(str, (entity["id"] for entity in entities(sink)))) == sorted(map(str, stored))
    with opened(sink) as client:
        fields = {field["name"]: field["type"] for field in client.describe_collection("notes")["fields"]}
    assert fields["id"] == kind


def test_several_key_columns_identify_a_row_together(sink: MilvusSink, tmp_path: Path) -> None:
    rows = [{"part": part, "id": number} for part in "ab" for number in range(2)]
    for _ in range(2):
        publish(sink, ("part", "id"), stage(tmp_path, *rows))
    assert len(entities(sink)) == 4


def test_whole_numbers_of_type_float_find_the_entities_of_a_field_of_integers(
    sink: MilvusSink, tmp_path: Path
) -> None:
    """As pandas writes integers of a column in which one value is missing."""
    publish(sink, KEY, stage(tmp_path, {"id": 7}, {"id": 8}))
    publish(sink, KEY, stage(tmp_path, {"id": 7.0, "llmbeam_model": "m2"}, {"id": 9.0}))
    assert sorted((found["id"], found["llmbeam_model"]) for found in entities(sink)) == [
        (7, "m2"),
        (8, "m"),
        (9, "m"),
    ]
    assert {found["llmbeam_id"] for found in entities(sink)} == {
        entity_id({"id": number}, KEY) for number in (7, 8, 9)
    }
    assert "should be a int64" in refusals(sink, stage(tmp_path, {"id": 7.5}))[0]


def test_the_id_of_a_row_never_changes_between_versions_and_is_that_of_its_values() -> None:
    """A different value would write every row a second time."""
    assert entity_id({"id": 7, "text": "x"}, KEY) == entity_id({"id": 7}, KEY)
    assert entity_id({"id": 7}, KEY) == "066221bae6a7c071d0540676fafd57559f0217b8a68bdfa619fe178df6b2ea5d"
    assert len({entity_id({"id": value}, KEY) for value in (7, 7.0, "7", True, [7])}) == 5


def test_a_run_without_rows_leaves_the_collection_unchanged(sink: MilvusSink, tmp_path: Path) -> None:
    publish(sink, KEY, stage(tmp_path))
    assert not Path(sink.uri).exists()
    publish(sink, KEY, stage(tmp_path, {"id": 1}))
    publish(sink, KEY, stage(tmp_path))
    assert len(entities(sink)) == 1


def test_rows_that_do_not_fit_the_collection_are_refused_and_all_others_are_stored(
    sink: MilvusSink, tmp_path: Path
) -> None:
    publish(sink, KEY, stage(tmp_path, {"id": "a"}))
    rows = [{"id": f"k{number}"} for number in range(9)]
    rows[2]["id"], rows[5]["id"] = "x" * 70_000, "é" * 70_000
    rows[7]["answer"] = [1.0]
    found = refusals(sink, stage(tmp_path, *rows))
    assert [*found] == [2, 5, 7]
    assert "exceeds max_length=65535" in found[2]
    assert "expected dim 2, got 1" in found[7]
    assert {entity["id"] for entity in entities(sink)} == {"a", *(f"k{number}" for number in (0, 1, 3, 4, 6, 8))}


def test_a_key_that_no_field_of_numbers_can_hold_is_refused_and_all_others_are_stored(
    sink: MilvusSink, tmp_path: Path
) -> None:
    publish(sink, KEY, stage(tmp_path, {"id": 0.5}))
    assert list(refusals(sink, stage(tmp_path, {"id": 1.5}, {"id": 10**400}, {"id": 2.5}))) == [1]
    assert sorted(entity["id"] for entity in entities(sink)) == [0.5, 1.5, 2.5]


def test_a_vector_of_another_length_than_most_is_refused(sink: MilvusSink, tmp_path: Path) -> None:
    assert [*refusals(sink, stage(tmp_path, {"id": 1}, {"id": 2, "answer": [1.0]}, {"id": 3}))] == [1]
    assert [entity["id"] for entity in entities(sink)] == [1, 3]


def test_another_dimension_is_rejected_before_anything_is_billed_or_when_publishing(
    sink: MilvusSink, tmp_path: Path
) -> None:
    publish(sink, KEY, stage(tmp_path, {"id": 1}))
    check(sink, OutputColumns(KEY))
    check(sink, OutputColumns(KEY, dimensions=2))
    with pytest.raises(JobSpecError, match=r"vectors of 2 dimensions.* have 3\..*Nothing was sent or billed"):
        check(sink, OutputColumns(KEY, dimensions=3))
    with pytest.raises(JobFailedError, match=r"holds vectors of 2 dimensions.* have 3\..*are in the journal"):
        publish(sink, KEY, stage(tmp_path, {"id": 1, "answer": [1.0, 2.0, 3.0]}))
    assert [entity["vector"] for entity in entities(sink)] == [[1.0, 0.5]]


def test_a_collection_of_another_kind_is_refused(sink: MilvusSink) -> None:
    with opened(sink) as client:
        client.create_collection("notes", dimension=2)
    with pytest.raises(
        JobSpecError,
        match=r"has no field \['llmbeam_id', 'llmbeam_model', 'llmbeam_fingerprint'\].* `sink\.details` False",
    ):
        check(sink, OutputColumns(KEY, dimensions=2))


def test_a_collection_with_another_key_is_refused(sink: MilvusSink, tmp_path: Path) -> None:
    publish(sink, KEY, stage(tmp_path, {"id": 1}))
    with pytest.raises(JobSpecError, match=r"has no field \['part'\]: a job of another kind, or with another key"):
        check(sink, OutputColumns(("id", "part"), dimensions=2))


def test_an_index_with_another_metric_is_refused(sink: MilvusSink, tmp_path: Path) -> None:
    publish(sink, KEY, stage(tmp_path, {"id": 1}))
    with pytest.raises(JobSpecError, match=r"has an index by \['COSINE'\], and `sink.metric_type` is 'L2'"):
        check(sink.model_copy(update={"metric_type": "L2"}), OutputColumns(KEY, dimensions=2))


def test_the_error_for_a_key_that_does_not_fit_names_its_field(sink: MilvusSink, tmp_path: Path) -> None:
    publish(sink, KEY, stage(tmp_path, {"id": 1}))
    assert "{id} field should be a int64" in refusals(sink, stage(tmp_path, {"id": "seven"}))[0]


def test_a_missing_collection_passes_the_check(sink: MilvusSink) -> None:
    check(sink, OutputColumns(KEY, dimensions=2))
    check(sink, OutputColumns(KEY))


@pytest.mark.full
def test_the_file_can_be_opened_by_others_afterwards(sink: MilvusSink, tmp_path: Path) -> None:
    publish(sink, KEY, stage(tmp_path, {"id": 1}))
    code = (
        "import sys; from pymilvus import MilvusClient; "
        "print(MilvusClient(sys.argv[1]).query('notes', filter='', output_fields=['count(*)'])[0]['count(*)'])"
    )
    ended = subprocess.run([sys.executable, "-c", code, sink.uri], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "1"


@pytest.mark.full
def test_a_file_that_another_process_has_open_is_an_error(sink: MilvusSink) -> None:
    Path(sink.uri).parent.mkdir()
    code = (
        "import sys; from pymilvus import MilvusClient; client = MilvusClient(sys.argv[1]); "
        "print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, sink.uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(JobFailedError, match=r"Another process may have the file open\. Nothing was sent"):
            check(sink, OutputColumns(KEY))
        other.communicate()


def test_an_unreachable_server_is_a_retryable_error() -> None:
    sink = MilvusSink(type="milvus", uri="http://127.0.0.1:9", collection="notes")
    with pytest.raises(JobFailedError, match=r"Milvus at 'http://127\.0\.0\.1:9': .*Nothing was sent or billed\."):
        check(sink, OutputColumns(KEY))


def test_a_server_is_used_like_a_file(sink: MilvusSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILVUS_TOKEN", "root:Milvus")
    (tmp_path / "vectors").mkdir()
    served = server_manager_instance.start_and_get_uri(sink.uri)
    remote = MilvusSink(type="milvus", uri=served, collection="notes")
    try:
        for _ in range(2):
            check(remote, OutputColumns(KEY, dimensions=2))
            assert publish(remote, KEY, stage(tmp_path, {"id": 1}, {"id": 2})) == [f"{served}/notes"]
    finally:
        server_manager_instance.release_server(sink.uri)
    assert len(entities(sink)) == 2


@pytest.mark.parametrize("module", ["pymilvus", "milvus_lite.server_manager"])
def test_the_error_for_a_missing_package_names_the_extra(
    sink: MilvusSink, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(JobSpecError, match=r"needs the extra 'milvus' where the job runs"):
        check(sink, OutputColumns(KEY))


def test_rows_that_milvus_drops_stop_the_job(
    sink: MilvusSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MilvusClient, "upsert", lambda *_: {"upsert_count": 1})
    with pytest.raises(RowsLostError, match=r"Milvus took 1 of 2 rows into 'notes'"):
        publish(sink, KEY, stage(tmp_path, {"id": 1}, {"id": 2}))
