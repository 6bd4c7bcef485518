"""A row, or an answer, that cannot be processed fails alone, whatever its format."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.sources.lines import MAX_ROW_SIZE

pytestmark = [pytest.mark.promise(1), pytest.mark.slow]


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def good(count: int) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"row {number}"} for number in range(count)]


@pytest.mark.parametrize("levels", [700, *(pytest.param(each, marks=pytest.mark.full) for each in (150, 980))])
def test_a_row_that_is_nested_too_deep_fails_without_its_neighbours(echo_job, levels):
    """Beam parsed rows of 700 to 980 levels, and failed to pickle them with the others of their bundle."""
    line = f'{{"id": 99, "text": "t", "deep": {nested(levels)}}}'
    echo_job.write([*good(20), line])
    ended = echo_job.run()
    assert len(ended.answers) == 20
    assert ended.kinds == {"unreadable_row": 1}
    assert ended.dead_letter[0]["llmbeam_raw"] == line


@pytest.mark.full
def test_a_nested_value_of_parquet_fails_alone(echo_job):
    kind: Any = pa.int64()
    value: Any = 1
    for _ in range(101):
        kind, value = pa.list_(kind), [value]
    table = pa.table({"id": [1, 2], "text": ["a", "b"], "deep": pa.array([value, None], kind)})
    path = echo_job.directory / "rows.parquet"
    pq.write_table(table, path)
    ended = echo_job.run(source={"uri": str(path), "key": ["id"]})
    assert [answer["id"] for answer in ended.answers] == [2]
    assert ended.kinds == {"unreadable_row": 1}
    assert json.loads(ended.dead_letter[0]["llmbeam_raw"])["id"] == 1


@pytest.mark.full
def test_a_nested_value_of_avro_fails_alone(echo_job):
    node = {"type": "record", "name": "node", "fields": [{"name": "next", "type": ["null", "node"]}]}
    schema = {
        "type": "record",
        "name": "row",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "text", "type": "string"},
            {"name": "deep", "type": ["null", node]},
        ],
    }
    deep: Any = None
    for _ in range(150):
        deep = {"next": deep}
    path = echo_job.directory / "rows.avro"
    with path.open("wb") as file:
        fastavro.writer(file, schema, [{"id": 1, "text": "a", "deep": deep}, {"id": 2, "text": "b", "deep": None}])
    ended = echo_job.run(source={"uri": str(path), "key": ["id"]})
    assert [answer["id"] for answer in ended.answers] == [2]
    assert ended.kinds == {"unreadable_row": 1}


@pytest.mark.parametrize("levels", [101, pytest.param(900, marks=pytest.mark.full)])
def test_an_answer_that_is_nested_too_deep_fails_alone_and_is_not_recorded(echo_job, levels):
    rows = [*good(3), {"id": 9, "text": nested(levels)}]
    for row in rows[:3]:
        row["text"] = "[1]"
    prompt = {"template": "{{ row.text }}", "output_schema": {}, "max_repairs": 0}
    for _ in range(2):
        ended = echo_job.run(rows, prompt=prompt)
        assert len(ended.answers) == 3
        assert ended.kinds == {"invalid_output": 1}


def test_an_answer_that_a_pattern_cannot_decide_fails_alone(echo_job):
    rows = [*({**row, "text": '"aaa"'} for row in good(3)), {"id": 9, "text": json.dumps("a" * 60 + "!")}]
    ended = echo_job.run(
        rows, prompt={"template": "{{ row.text }}", "output_schema": {"pattern": "^(a|aa)+$"}, "max_repairs": 0}
    )
    assert len(ended.answers) == 3
    assert ended.kinds == {"invalid_output": 1}


def test_a_prompt_that_is_too_large_or_takes_too_long_fails_alone(echo_job):
    rows = [{"id": number, "text": "t", "n": 3} for number in range(3)]
    rows += [{"id": 8, "text": "t", "n": 10**10}, {"id": 9, "text": "t", "n": 10**100}]
    ended = echo_job.run(rows, prompt={"template": "{{ row.text * row.n }}"})
    assert {answer["answer"] for answer in ended.answers} == {"ttt"}
    assert ended.kinds == {"template_error": 2}


@pytest.mark.full
def test_a_compressed_line_of_a_gigabyte_fails_alone(echo_job):
    path = echo_job.directory / "rows.jsonl.gz"
    first, last = (json.dumps(row).encode() + b"\n" for row in good(2))
    block = gzip.compress(b"x" * 2**24)
    path.write_bytes(gzip.compress(first) + block * 64 + gzip.compress(b"\n" + last))
    ended = echo_job.run(source={"uri": str(path), "key": ["id"]})
    assert sorted(answer["id"] for answer in ended.answers) == [0, 1]
    (failed,) = ended.dead_letter
    assert failed["llmbeam_error"]["message"] == f"a line of {2**30:,} bytes; at most {MAX_ROW_SIZE:,} are read"
    assert failed["llmbeam_raw"] == "x" * 1000


@pytest.mark.parametrize("sink_format", ["jsonl", "parquet"])
def test_half_an_emoji_in_a_row_or_a_template_becomes_a_character_that_can_be_written(echo_job, sink_format):
    echo_job.write(
        [b'{"id": "cut \\ud83d", "text": "\\ud83d"}', b'{"id": "b", "text": "\\ud83d\\ude00"}', b'"\\ud83d']
    )
    ended = echo_job.run(
        prompt={"template": "{{ row.text }}{{ '\\ud83d' }}"},
        sink={"uri": str(echo_job.out), "format": sink_format},
    )
    assert {answer["id"]: answer["answer"] for answer in ended.answers} == {
        "cut \ufffd": "\ufffd\ufffd",
        "b": "\N{GRINNING FACE}\ufffd",
    }
    for path in echo_job.out.glob("*.jsonl"):
        assert path.read_bytes().decode()


@pytest.mark.full
def test_half_an_emoji_in_an_answer_is_written_as_a_character_that_others_can_read(echo_job):
    ended = echo_job.run(
        [{"id": 1, "text": '"\\ud83d"'}], prompt={"template": "{{ row.text }}", "output_schema": {}}
    )
    assert ended.answers[0]["answer"] == "\ufffd"
    assert Path(ended.manifest["answers_uris"][0]).read_bytes().decode()


@pytest.mark.full
def test_half_an_emoji_in_a_row_of_the_spec_is_replaced(echo_job):
    rows = [{"id": "\ud83d", "text": ["\ud83d"]}]
    ended = echo_job.run(source={"type": "rows", "key": ["id"], "rows": rows})
    assert [answer["id"] for answer in ended.answers] == ["\ufffd"]


def test_a_key_that_equals_no_key_fails_its_row(echo_job):
    path = echo_job.directory / "rows.parquet"
    keys = [1.5, float("nan"), float("nan"), float("inf")]
    pq.write_table(pa.table({"id": keys, "text": list("abcd")}), path)
    ended = echo_job.run(source={"uri": str(path), "key": ["id"]})
    assert [answer["id"] for answer in ended.answers] == [1.5]
    assert ended.kinds == {"missing_key": 3}
    assert "no number in key column 'id' but nan" in {row["llmbeam_error"]["message"] for row in ended.dead_letter}


def test_a_text_of_parquet_that_is_not_utf_8_fails_its_row(echo_job):
    path = echo_job.directory / "rows.parquet"
    text = pa.array([b"a", b"\xff\xfe", b"c"]).view(pa.string())
    pq.write_table(pa.table({"id": [1, 2, 3], "text": text}), path)
    ended = echo_job.run(source={"uri": str(path), "key": ["id"]})
    assert sorted(answer["id"] for answer in ended.answers) == [1, 3]
    (failed,) = ended.dead_letter
    assert failed["llmbeam_error"]["message"].startswith("column 'text' cannot be read: 'utf-8' codec")
    assert json.loads(failed["llmbeam_raw"]) == {"id": 2}


@pytest.mark.full
def test_a_date_of_parquet_that_python_does_not_know_fails_its_row(echo_job):
    path = echo_job.directory / "rows.parquet"
    days = pa.array([0, 10**7], pa.int32()).view(pa.date32())
    pq.write_table(pa.table({"id": [1, 2], "text": ["a", "b"], "day": days}), path)
    ended = echo_job.run(
        source={"uri": str(path), "key": ["id"]}, prompt={"template": "{{ row.text }} {{ row.day }}"}
    )
    assert [answer["id"] for answer in ended.answers] == [1]
    assert ended.kinds == {"unreadable_row": 1}


@pytest.mark.full
@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_a_file_without_a_byte_is_no_parquet_file_and_stops_the_job(echo_job, file_format):
    path = echo_job.directory / f"rows.{file_format}"
    path.touch()
    with pytest.raises(JobSpecError, match=rf"rows\.{file_format}' has 0 bytes.* Nothing was sent or billed\."):
        echo_job.run(source={"uri": str(echo_job.directory / f"*.{file_format}"), "key": ["id"]})


@pytest.mark.full
def test_an_empty_marker_beside_parquet_files_is_ignored(echo_job):
    folder = echo_job.directory / "written"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1], "text": ["a"]}), folder / "part-0")
    for name in ("_SUCCESS", ".part-0.crc"):
        (folder / name).touch()
    ended = echo_job.run(source={"uri": f"{folder}/*", "format": "parquet", "key": ["id"]})
    assert [answer["id"] for answer in ended.answers] == [1]


@pytest.mark.full
def test_a_file_name_with_a_backslash_is_read(echo_job):
    (echo_job.directory / "a.csv").write_text("id,text\n1,a\n")
    (echo_job.directory / "b\\c.csv").write_text("id,text\n2,b\n")
    ended = echo_job.run(source={"uri": str(echo_job.directory / "*.csv"), "key": ["id"]})
    assert sorted(answer["id"] for answer in ended.answers) == ["1", "2"]


def test_the_row_of_a_quote_that_is_never_closed_keeps_its_text(echo_job):
    path = echo_job.directory / "rows.csv"
    path.write_text('id,text\n1,a\n2,"b\n3,c\n4,d\n')
    ended = echo_job.run(source={"uri": str(path), "key": ["id"]})
    assert [answer["id"] for answer in ended.answers] == ["1"]
    (failed,) = ended.dead_letter
    assert failed["llmbeam_raw"] == '2,"b\n3,c\n4,d\n'
    assert failed["llmbeam_error"]["message"] == "not CSV near line 3 (up to line 5): unexpected end of data"


@pytest.mark.parametrize("file_format", ["jsonl", "csv"])
def test_a_compressed_file_that_was_cut_off_stops_the_job_before_anything_is_sent(job, sandbox, file_format):
    lines = [json.dumps(row) if file_format == "jsonl" else f"{row['id']},{row['text']}" for row in good(1000)]
    path = job.directory / f"rows.{file_format}.gz"
    content = gzip.compress("\n".join(["id,text", *lines] if file_format == "csv" else lines).encode())
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(JobFailedError, match=r"`source\.uri`: .*gz' ends within its compressed data"):
        job.run(source={"uri": str(path), "key": ["id"]})
    assert len(sandbox.requests) == 0


@pytest.mark.full
@pytest.mark.parametrize(
    ("schema", "values", "kind"),
    [("string", ["a"], "string"), (["null", {"type": "map", "values": "string"}], [None, {"id": "1"}], "null")],
)
def test_an_avro_file_without_records_is_refused_and_names_what_it_has(echo_job, schema, values, kind):
    path = echo_job.directory / "rows.avro"
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), values)
    with pytest.raises(JobSpecError, match=rf"rows\.avro' has Avro values of type '{kind}'\. Expected records"):
        echo_job.run(source={"uri": str(path), "key": ["id"]})
    path.write_text("id,text\n")
    with pytest.raises(JobSpecError, match=r"rows\.avro': cannot read header - is it an avro file\?"):
        echo_job.run(source={"uri": str(path), "key": ["id"]})


@pytest.mark.full
@pytest.mark.parametrize(
    ("content", "is_packed"),
    [
        ('[{"id": 1, "text": "a"}]', False),
        ('[\n  {"id": 1},\n  {"id": 2}\n]', True),
        ("\ufeff[ {", False),
        ('{\n  "id": 1,\n  "text": "a"\n}\n', True),
    ],
)
def test_a_json_array_or_an_object_of_several_lines_is_refused_with_a_way_to_make_lines_of_it(
    echo_job, content, is_packed
):
    path = echo_job.directory / ("rows.json.gz" if is_packed else "rows.json")
    path.write_bytes(gzip.compress(content.encode()) if is_packed else content.encode())
    with pytest.raises(
        JobSpecError, match=r"Expected JSON lines, with one object per line: `jq -c '\.\[\]'` writes"
    ):
        echo_job.run(source={"uri": str(path), "format": "jsonl", "key": ["id"]})


@pytest.mark.parametrize("line", ["[WARNING] a log line", pytest.param("{", marks=pytest.mark.full)])
def test_a_first_line_that_is_no_row_does_not_stop_the_others(echo_job, line):
    path = echo_job.directory / "rows.jsonl"
    path.write_text("\n".join([line, *(json.dumps(row) for row in good(20))]))
    ended = echo_job.run(source={"uri": str(path), "key": ["id"]})
    assert ended.kinds == {"unreadable_row": 1}
    assert len(ended.answers) == 20


@pytest.mark.full
def test_a_directory_is_refused_and_the_error_names_a_glob(echo_job):
    source = {"uri": str(echo_job.directory), "format": "csv", "key": ["id"]}
    with pytest.raises(
        JobSpecError, match=rf"is a directory\. Expected its files, e\.g\. '{echo_job.directory}/\*\.csv'"
    ):
        echo_job.run(source=source)


@pytest.mark.full
@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_a_parquet_or_avro_file_that_is_compressed_as_a_whole_is_refused(echo_job, file_format):
    path = echo_job.directory / f"rows.{file_format}.gz"
    path.write_bytes(gzip.compress(b"any"))
    with pytest.raises(JobSpecError, match=rf"rows\.{file_format}\.gz' is compressed as a whole.* Expand it"):
        echo_job.run(source={"uri": str(path), "key": ["id"]})


@pytest.mark.full
def test_two_columns_of_parquet_with_one_name_stop_the_job(echo_job):
    path = echo_job.directory / "rows.parquet"
    pq.write_table(pa.table([pa.array([1]), pa.array(["a"]), pa.array(["b"])], names=["id", "text", "text"]), path)
    with pytest.raises(JobSpecError, match="two columns 'text'; one would hide the other"):
        echo_job.run(source={"uri": str(path), "key": ["id"]})


def test_a_column_of_parquet_that_nobody_uses_may_be_unreadable(echo_job):
    path = echo_job.directory / "rows.parquet"
    vectors = pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"id": [1, 2], "text": ["a", "b"], "lang": ["de", "en"], "vector": vectors}), path)
    ended = echo_job.run(source={"uri": str(path), "key": ["id"]})
    assert sorted(answer["id"] for answer in ended.answers) == [1, 2]
    with pytest.raises(
        JobSpecError, match=r"column 'vector' of a Parquet file cannot be read: Expected all lists"
    ):
        echo_job.run(source={"uri": str(path), "key": ["id"]}, prompt={"template": "{{ row }}"})
