"""Columns of the answers: those passed through, and those of a schema; and how CSV files are written."""

from __future__ import annotations

import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.spec import JobSpec
from tests.pipeline.conftest import Job, read_lines
from tests.replying import Received, Replying, chat_reply, raw

SCHEMA = {
    "type": "object",
    "properties": {"mood": {"type": "string", "enum": ["good", "bad"]}, "score": {"type": "integer"}},
    "required": ["mood", "score"],
    "additionalProperties": False,
}
ROWS = [{"id": 1, "text": "a", "lang": "en", "n": 1}, {"id": 2, "text": "b", "lang": None}]


def table_of(job) -> pa.Table:
    return pq.read_table(job.out / "answers-00000-of-00001.parquet")


def test_columns_of_the_source_are_passed_through(echo_job):
    echo_job.run(ROWS, sink={"uri": str(echo_job.out), "passthrough": ["lang", "n"]})
    found = read_lines(echo_job.out / "answers-00000-of-00001.jsonl")
    assert {row["id"]: (row["lang"], row["n"]) for row in found} == {1: ("en", 1), 2: (None, None)}
    assert [*found[0]][:4] == ["id", "lang", "n", "answer"]


def test_passed_columns_have_their_types_in_parquet(echo_job):
    echo_job.run(ROWS, sink={"uri": str(echo_job.out), "format": "parquet", "passthrough": ["lang", "n"]})
    table = table_of(echo_job)
    assert (table.schema.field("lang").type, table.schema.field("n").type) == (pa.string(), pa.int64())
    assert sorted(table["n"].to_pylist(), key=str) == [1, None]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (["n/a", *range(1, 9)], ["n/a", *map(str, range(1, 9))]),
        ([7, *[None] * 8], [7, *[None] * 8]),
        ([0.5, *range(1, 9)], [0.5, *range(1, 9)]),
        ([0.5, *range(2**60, 2**60 + 8)], ["0.5", *map(str, range(2**60, 2**60 + 8))]),
    ],
)
def test_all_parquet_files_of_a_run_have_the_same_types(echo_job, scores, expected):
    rows = [{"id": number, "text": "a", "score": score} for number, score in enumerate(scores)]
    sink = {"uri": str(echo_job.out), "format": "parquet", "shards": 12, "passthrough": ["score"]}
    echo_job.run(rows, sink=sink)
    found = pq.read_table([*echo_job.out.glob("answers-*")])
    assert [row["score"] for row in found.sort_by("id").to_pylist()] == expected


def test_an_answer_that_does_not_fit_is_json_text_in_all_parquet_files(echo_job):
    rows = [{"id": number, "text": json.dumps({"n": number or 10**25})} for number in range(9)]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    echo_job.spec["prompt"] = {"template": "{{ row.text }}", "output_schema": schema}
    echo_job.run(rows, sink={"uri": str(echo_job.out), "format": "parquet", "shards": 4})
    found = pq.read_table([*echo_job.out.glob("answers-*")]).sort_by("id").to_pylist()
    assert [json.loads(row["answer"])["n"] for row in found] == [10**25, *range(1, 9)]


@pytest.mark.parametrize(
    ("schema", "answers", "expected"),
    [
        ({"type": "integer"}, ["5", str(10**25)], ["5", str(10**25)]),
        ({"type": ["integer", "null"]}, ["5", "null"], [5, None]),
        ({"type": ["integer", "null"]}, [str(10**25), "null", "5"], [str(10**25), None, "5"]),
        ({"type": "number"}, ["0.5", str(10**25)], [0.5, 1e25]),
        ({"type": ["boolean", "null"]}, ["true", "null"], [True, None]),
        (
            {"type": ["object", "null"], "properties": {"n": {"type": "integer"}}},
            ['{"n": 1}', "null"],
            [{"n": 1}, None],
        ),
    ],
)
def test_an_answer_that_is_one_value_is_published_in_parquet_whatever_its_size(
    echo_job, schema, answers, expected
):
    rows = [{"id": number, "text": text} for number, text in enumerate(answers)]
    echo_job.spec["prompt"] = {"template": "{{ row.text }}", "output_schema": schema}
    echo_job.run(rows, sink={"uri": str(echo_job.out), "format": "parquet", "shards": 2})
    found = pq.read_table([*echo_job.out.glob("answers-*")]).sort_by("id").to_pylist()
    assert [row["answer"] for row in found] == expected


def test_a_column_that_no_row_has_is_refused_before_anything_is_sent(job, sandbox):
    job.write(ROWS)
    with pytest.raises(JobSpecError) as refused:
        run(JobSpec.parse(job.spec | {"sink": {"uri": str(job.out), "passthrough": ["lnag"]}}))
    assert str(refused.value) == (
        "`sink.passthrough`: no row has column 'lnag'; did you mean 'lang'? Nothing was sent or billed."
    )
    assert sandbox.stats()["billed_answers"] == 0


@pytest.mark.parametrize("sink", ["files", "bigquery", "postgres"])
@pytest.mark.parametrize(("column", "taken"), [("answer", "has a column of that name"), ("id", "`source.key`")])
def test_a_column_that_every_output_row_has_cannot_be_passed_through(echo_job, sink, column, taken):
    sinks = {"files": {"uri": "out"}, "bigquery": {"table": "p.d.t"}, "postgres": {"table": "t"}}
    with pytest.raises(JobSpecError) as refused:
        JobSpec.parse(
            echo_job.spec | {"sink": {"type": sink, **sinks[sink], "passthrough": [column]}, "state_uri": "state"}
        )
    assert f"`sink.passthrough`: has column {column!r}, and every output row has" in str(refused.value)
    assert taken in str(refused.value)


@pytest.mark.parametrize("form", ["flat", "struct"])
def test_without_details_a_row_has_key_passthrough_and_answer_and_their_names_are_free(job, form):
    answer = {"model": {"type": "string"}, "attempts": {"type": "integer"}}
    schema = {"type": "object", "properties": answer, "required": [*answer]}
    sink = {"uri": str(job.out), "details": False, "answer_columns": form, "passthrough": ["origin"]}
    ended = job.run(
        [{"fingerprint": 1, "origin": "Rome", "text": "a"}],
        source={"uri": job.spec["source"]["uri"], "key": "fingerprint"},
        prompt={"template": "{{ row.text }}", "output_schema": schema},
        sink=sink,
    )
    (found,) = ended.answers
    assert [*found] == ["fingerprint", "origin", *(["model", "attempts"] if form == "flat" else ["answer"])]
    assert (found["fingerprint"], found["origin"]) == (1, "Rome")


def schema_job(job, **sink):
    job.spec["prompt"] = {"template": "{{ row.text }}", "output_schema": SCHEMA}
    job.spec["sink"] = {"uri": str(job.out), "format": "parquet", **sink}
    return job


def test_a_structured_answer_has_the_types_of_its_schema_in_parquet(job):
    schema_job(job).run(ROWS)
    table = table_of(job)
    assert table.schema.field("answer").type == pa.struct([("mood", pa.string()), ("score", pa.int64())])
    assert {row["mood"] for row in table["answer"].to_pylist()} <= {"good", "bad"}


def test_a_flat_answer_has_a_column_per_property(job):
    schema_job(job, answer_columns="flat").run(ROWS)
    frame = table_of(job).to_pandas()
    assert frame["mood"].isin(["good", "bad"]).all()
    assert frame["score"].dtype == "int64"
    assert "answer" not in frame


def test_a_flat_answer_has_its_properties_in_json_lines(job):
    schema_job(job, answer_columns="flat", format="jsonl").run(ROWS)
    found = read_lines(job.out / "answers-00000-of-00001.jsonl")
    assert all(row["mood"] in ("good", "bad") and isinstance(row["score"], int) for row in found)


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_a_structured_answer_is_json_text_on_request(job, file_format):
    ended = schema_job(job, answer_columns="json", format=file_format).run(ROWS)
    assert {json.loads(row["answer"])["mood"] for row in ended.answers} <= {"good", "bad"}


@pytest.mark.parametrize("form", ["struct", "flat"])
def test_typed_answers_are_merged(job, form):
    schema_job(job, answer_columns=form).run(ROWS)
    schema = table_of(job).schema
    job.write([{"id": 3, "text": "c"}])
    run(JobSpec.parse(job.spec | {"sink": job.spec["sink"] | {"on_existing": "merge"}}))
    assert table_of(job).num_rows == 3
    assert table_of(job).schema.equals(schema)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (None, "needs a `prompt.output_schema`: set one"),
        ({"type": "array", "items": {"type": "string"}}, "needs a `prompt.output_schema` of type 'object'"),
        (
            {"type": "object", "properties": {"llmbeam_model": {"type": "string"}}},
            "`prompt.output_schema`: has column 'llmbeam_model', and every output row has a column of that name",
        ),
    ],
)
def test_an_answer_without_columns_of_its_own_cannot_be_flat(echo_job, schema, expected):
    prompt = {"template": "{{ row.text }}", "output_schema": schema}
    with pytest.raises(JobSpecError) as refused:
        JobSpec.parse(echo_job.spec | {"prompt": prompt, "sink": {"uri": "out", "answer_columns": "flat"}})
    assert expected in str(refused.value)


def test_a_csv_file_is_read_as_pandas_writes_it(echo_job):
    """Semicolons, single quotes, another encoding, no header."""
    path = echo_job.directory / "rows.csv"
    frame = pd.DataFrame({"id": [1, 2], "text": ["Grüße; 'so'", "zwei\nZeilen"]})
    how = {"quotechar": "'", "encoding": "latin-1"}
    frame.to_csv(path, sep=";", index=False, header=False, **how)
    options = {**how, "delimiter": ";", "header": None, "names": ["id", "text"]}
    spec = JobSpec.parse(echo_job.spec | {"source": {"uri": str(path), "key": ["id"], "csv": options}})
    assert run(spec)["rows"] == {"read": 2, "answered": 2, "dead_letter": 0, "skipped": 0}
    found = read_lines(echo_job.out / "answers-00000-of-00001.jsonl")
    assert "Grüße; 'so'" in next(row["answer"] for row in found if row["id"] == "1")
    assert make_estimate(spec, 0).rows == 2


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("rows.csv", "id,text\n1,Größe\n2,plain\n", "has bytes that are no utf-8: set `source.csv.encoding`"),
        ("rows.jsonl", '{"id": "1", "text": "Größe"}\n{"id": "2", "text": "plain"}\n', "not UTF-8, as JSON is"),
    ],
)
def test_a_row_in_another_encoding_fails_and_is_not_sent_with_other_characters(job, sandbox, name, text, fault):
    path = job.directory / name
    path.write_bytes(text.encode("latin-1"))
    source = {"uri": str(path), "key": ["id"]}
    spec = JobSpec.parse(job.spec | {"source": source, "limits": {"max_dead_letter_ratio": 0.5}})
    assert run(spec)["rows"] == {"read": 2, "answered": 1, "dead_letter": 1, "skipped": 0}
    (failed,) = read_lines(job.out / "dead_letter-00000-of-00001.jsonl")
    assert failed["llmbeam_error"]["kind"] == "unreadable_row"
    assert fault in failed["llmbeam_error"]["message"]
    assert sandbox.stats()["billed_answers"] == 1
    assert make_estimate(spec, 0).rows == 2


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
def test_a_file_whose_encoding_is_named_is_read_as_it_was_written(echo_job, encoding):
    path = echo_job.directory / "rows.csv"
    path.write_bytes("id,text\n1,Größe\n".encode(encoding))
    source = {"uri": str(path), "key": ["id"], "csv": {"encoding": encoding}}
    run(JobSpec.parse(echo_job.spec | {"source": source}))
    (answer,) = read_lines(echo_job.out / "answers-00000-of-00001.jsonl")
    assert "Größe" in answer["answer"]


def test_a_header_in_another_encoding_is_named_before_anything_is_sent(job, sandbox):
    path = job.directory / "rows.csv"
    path.write_bytes("id,größe\n1,a\n".encode("latin-1"))
    with pytest.raises(
        JobSpecError, match=r"the header has bytes that are no utf-8: set `source\.csv\.encoding`\."
    ):
        run(JobSpec.parse(job.spec | {"source": {"uri": str(path), "key": ["id"]}}))
    assert sandbox.stats()["billed_answers"] == 0


def test_a_wrong_delimiter_is_named_before_anything_is_sent(job, sandbox):
    path = job.directory / "rows.csv"
    path.write_text("id;text\n1;a\n")
    with pytest.raises(JobSpecError) as refused:
        run(JobSpec.parse(job.spec | {"source": {"uri": str(path), "key": ["id"]}}))
    assert str(refused.value) == (
        f"`source.uri` '{path}': the header is the one column 'id;text': expected ',' between columns. If it "
        "is ';', set `source.csv.delimiter` to ';'. Nothing was sent or billed."
    )
    assert sandbox.stats()["billed_answers"] == 0


def test_citations_and_probabilities_are_columns_of_the_jobs_that_ask_for_them(job, sandbox):
    asked = {"google_search": True, "logprobs": True}
    found = job.run(ROWS, generation=asked).answers
    assert [*found[0]][-3:] == ["llmbeam_latency_seconds", "llmbeam_citations", "llmbeam_mean_logprob"]
    for row in found:
        first, second = row["llmbeam_citations"]
        assert first == {
            "uri": "https://example.com/first",
            "title": "example.com",
            "texts": [row["answer"].partition(" ")[0]],
        }
        assert (second["texts"], row["llmbeam_mean_logprob"]) == ([], -0.125)
    # The same job in another format takes the answers, and what is known of them, from its journal.
    again = job.run(ROWS, generation=asked, sink={"uri": str(job.out), "format": "parquet"})
    assert again.manifest["requests"]["sent"] == 0
    assert {(row["id"], row["llmbeam_mean_logprob"]) for row in again.answers} == {(1, -0.125), (2, -0.125)}
    assert {row["id"]: json.loads(row["llmbeam_citations"]) for row in again.answers} == {
        row["id"]: row["llmbeam_citations"] for row in found
    }
    without = job.run(ROWS)
    assert without.manifest["requests"]["sent"] == 2, "answers without citations are other answers"
    assert "llmbeam_citations" not in without.answers[0]


#: How servers send the reasoning "Hm." before the answer "fine".
REASONED = [
    {"content": "<think>\nHm.\n</think>\n\nfine"},
    {"content": "fine", "reasoning_content": "Hm."},
    {
        "content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
            {"type": "text", "text": "fine"},
        ]
    },
]


@pytest.mark.parametrize("message", REASONED, ids=["in the text", "in a field", "in a part"])
@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_no_part_of_an_answer_and_a_column_if_it_is_wanted(tmp_path, message, stream):
    choice = {"finish_reason": "stop", "delta" if stream else "message": message}
    body = {"model": "m", "choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 9}}
    reply = raw(f"data: {json.dumps(body)}\n\n", Content_Type="text/event-stream") if stream else raw(body)
    with Replying(lambda _: reply) as server:
        job = Job(tmp_path, {"type": "openai", "name": "m", "base_url": server.url})
        generation = {"keep_reasoning": True, "stream": stream}
        sinks = [{"uri": str(job.out), "format": each} for each in ("jsonl", "parquet")]
        runs = [job.run(ROWS, generation=generation, sink=sink) for sink in sinks]
        plain = job.run(ROWS, generation={"stream": stream}).answers
        assert len(server.received) == 2, "the journal has the reasoning, which decides no answer"
    for found in runs:
        assert [(row["answer"], row["llmbeam_reasoning"]) for row in found.answers] == [("fine", "Hm.")] * 2
    assert [row["answer"] for row in plain] == ["fine"] * 2
    assert "llmbeam_reasoning" not in plain[0]


def measured(request: Received) -> bytes:
    """Answers with the number that the user has said, or else with `null`."""
    said = json.loads(request.body)["messages"][-1]["content"].removeprefix("Say it: ")
    return chat_reply(said if said.isdigit() else "null")


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_an_answer_that_is_null_is_published_as_null(tmp_path, file_format):
    with Replying(measured) as server:
        job = Job(tmp_path, {"type": "openai", "name": "m", "base_url": server.url})
        job.spec["prompt"] |= {"output_schema": {"type": ["integer", "null"]}}
        job.run(
            [{"id": 1, "text": "7"}, {"id": 2, "text": "?"}], sink={"uri": str(job.out), "format": file_format}
        )
    path = job.out / f"answers-00000-of-00001.{file_format}"
    found = read_lines(path) if file_format == "jsonl" else table_of(job).to_pylist()
    assert {row["id"]: row["answer"] for row in found} == {1: 7, 2: None}
