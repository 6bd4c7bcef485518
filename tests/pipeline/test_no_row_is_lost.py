"""Rows read = rows answered + dead letter, for any rows and any server. `Job.run` checks it every time."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from llmbeam_sandbox import Fault, ModelSettings, Quota, Sandbox
from waiting import scaled

from airflow_provider_llmbeam.exceptions import JobSpecError, PermanentFailureError, TooManyFailedRowsError
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.estimate.source_sample import sample_source
from airflow_provider_llmbeam.pipeline.reporting.report import Report
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.protocol.manifest import encode_page
from tests.pipeline.conftest import read_lines

pytestmark = pytest.mark.promise(1)

GEMINI = "gemini.generateContent"
OPENAI = "openai.chatCompletions"


def rows(count: int) -> list[dict]:
    return [{"id": number, "text": f"row number {number}"} for number in range(count)]


def test_each_row_is_answered_once(job, sandbox):
    ended = job.run(rows(50))
    assert len(ended.answers) == 50
    assert len({answer["answer"] for answer in ended.answers}) == 50
    assert set(sandbox.requests.paid().values()) == {1}


SAME_KEY = [{"id": 7, "text": "a"}, {"id": 7, "text": "b"}, {"id": 7, "text": "b"}]


def test_rows_with_the_same_key_end_the_job_before_anything_is_sent(job, sandbox):
    with pytest.raises(JobSpecError, match=r'`source\.key`: 1 key belongs to several rows: {"id": 7}\.'):
        job.run([*SAME_KEY, {"id": 8, "text": "c"}])
    assert len(sandbox.requests) == 0
    assert not list(job.out.glob("answers-*"))


def test_a_whole_number_of_type_float_is_the_key_of_the_integer(job, sandbox):
    rows = [{"id": 17, "text": "a"}, {"id": 17.0, "text": "b"}, {"id": 17.5, "text": "c"}]
    with pytest.raises(JobSpecError, match=r'`source\.key`: 1 key belongs to several rows: {"id": 17}\.'):
        job.run(rows)
    assert len(sandbox.requests) == 0
    job.spec["source"]["on_duplicate_key"] = "dead_letter"
    ended = job.run(rows)
    assert sorted(answer["id"] for answer in ended.answers) == [17, 17.5]
    assert ended.kinds == {"duplicate_key": 1}


def test_of_identical_rows_one_is_answered_and_the_others_are_skipped(job, sandbox):
    rows = [{"id": 7, "text": "a"}, {"id": 8, "text": "b"}, *[{"id": 7, "text": "a"}] * 2, {"id": 9, "text": "a"}]
    ended = job.run(rows)
    assert ended.report["rows"] == {"read": 5, "answered": 3, "dead_letter": 0, "skipped": 2}
    assert sorted(answer["id"] for answer in ended.answers) == [7, 8, 9]
    sampled = sample_source(JobSpec.parse(job.spec))
    assert (len(sampled.tokens), [*sampled.repeats.values()]) == (2, [2]), "one prompt has two rows"
    with pytest.raises(JobSpecError, match=r'`source\.key`: 1 key belongs to several rows: {"id": 7}\.'):
        job.run([*rows, {"id": 7, "text": "b"}])
    assert len(sandbox.requests) == 2


def test_all_but_one_row_with_the_same_key_can_go_to_the_dead_letter(job, sandbox):
    job.spec["source"]["on_duplicate_key"] = "dead_letter"
    for _ in range(2):
        ended = job.run([*SAME_KEY, {"id": 8, "text": "c"}])
        assert sorted(answer["id"] for answer in ended.answers) == [7, 8]
        assert [row["text"] for row in ended.dead_letter] == ["b"]
        assert ended.kinds == {"duplicate_key": 1}
        assert ended.report["rows"] == {"read": 4, "answered": 2, "dead_letter": 1, "skipped": 1}
    assert len(sandbox.requests) == 2


@pytest.mark.parametrize(("policy", "texts"), [("first", ["a", "b"]), ("last", ["c", "d"])])
def test_the_first_or_the_last_row_of_a_key_is_answered_and_the_others_are_skipped(job, policy, texts):
    job.spec["source"] |= {"uri": str(job.source.parent / "part*.csv"), "on_duplicate_key": policy}
    for name, lines in (("part1", "7,a\n8,b\n7,e\n7,a\n"), ("part2", "8,b\n7,c\n8,d\n")):
        (job.source.parent / f"{name}.csv").write_text(f"id,text\n{lines}")
    ended = job.run(model={"type": "echo"})
    answers = [row["answer"] for row in sorted(ended.answers, key=lambda row: row["id"])]
    assert answers == [f"Say it: {text}" for text in texts]
    assert ended.report["rows"] == {"read": 7, "answered": 2, "dead_letter": 0, "skipped": 5}
    assert ended.report["skipped_by_reason"] == {"duplicate_key": 5}


EMPTY = [{"id": 1, "text": ""}, {"id": 2, "text": None}, {"id": 3}, {"id": 4, "text": " \t\n"}]


@pytest.mark.parametrize("columns", ["text", ["text", "title"]])
def test_rows_without_a_text_are_skipped_and_counted_and_neither_asked_nor_failed(job, sandbox, columns, caplog):
    job.spec["source"]["skip_empty"] = columns
    with caplog.at_level("INFO", "llmbeam"), caplog.at_level("INFO", "airflow_provider_llmbeam"):
        ended = job.run([*EMPTY, {"id": 5, "text": "a"}, {"id": 6, "text": 0}, "{"])
    assert ended.report["rows"] == {"read": 7, "answered": 2, "dead_letter": 1, "skipped": 4}
    assert sorted(answer["id"] for answer in ended.answers) == [5, 6]
    assert len(sandbox.requests) == 2
    assert "4 of 7 rows were skipped: 4 without a value in `source.skip_empty`." in caplog.text
    assert ended.report["skipped_by_reason"] == {"empty": 4}
    assert "rows 3/3 (100%)" in caplog.text
    assert " failed · 4 more skipped" in caplog.text
    page = Path(ended.manifest["report_html_uri"]).read_text()
    assert "of 7 rows, 4 skipped (4 without a value in `source.skip_empty`)" in page


def test_a_row_with_a_value_in_one_of_the_columns_is_asked(job, sandbox):
    job.spec["source"]["skip_empty"] = ["title", "text"]
    ended = job.run([{"id": 1, "title": "", "text": "a"}, {"id": 2, "title": " ", "text": ""}])
    assert [answer["id"] for answer in ended.answers] == [1]


def test_an_estimate_asks_no_row_without_a_text(job, sandbox):
    job.spec["source"]["skip_empty"] = "text"
    job.write([*EMPTY, {"id": 5, "text": "a"}])
    assert sample_source(JobSpec.parse(job.spec)).rows == 1


def test_a_column_that_no_row_has_ends_the_job_before_anything_is_sent(job, sandbox):
    job.spec["source"]["skip_empty"] = ["txt"]
    sentence = r"has 2 rows, and none has a value in `source\.skip_empty`, 'txt', so .* set `source\.on_empty`"
    with pytest.raises(JobSpecError, match=sentence):
        job.run([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}])
    assert len(sandbox.requests) == 0


def test_rows_with_the_same_key_can_all_be_answered(job):
    job.spec["source"]["on_duplicate_key"] = "allow"
    ended = job.run(SAME_KEY)
    assert len(ended.answers) == 3
    assert ended.origins == Counter(fresh=2, resumed=0, duplicate=1)


def test_equal_prompts_are_sent_once_and_answered_for_every_row(job, sandbox):
    ended = job.run([{"id": number, "text": f"text {number % 10}"} for number in range(100)])
    assert len(sandbox.requests) == 10
    assert ended.origins == Counter(fresh=10, resumed=0, duplicate=90)
    assert ended.manifest["requests"]["sent"] == 10


@pytest.mark.parametrize("sink_format", ["jsonl", "parquet"])
def test_an_empty_file_gives_an_empty_answer_file_and_a_report_on_request(job, sink_format):
    source = job.spec["source"] | {"on_empty": "write"}
    ended = job.run([], source=source, sink={"uri": str(job.out), "format": sink_format})
    assert ended.answers == []
    assert ended.report["rows"] == {"read": 0, "answered": 0, "dead_letter": 0, "skipped": 0}


def test_a_row_above_the_limit_of_the_model_fails_with_the_message_of_the_server(tmp_path, make_job):

    with Sandbox(models=ModelSettings(input_token_limit=1000)) as sandbox:
        job = make_job(tmp_path, sandbox)
        ended = job.run([*rows(5), {"id": 99, "text": "x" * 8000}])
    (failed,) = ended.dead_letter
    assert failed["id"] == 99
    assert failed["llmbeam_error"]["http_status"] == 400
    assert "exceeds the maximum number of tokens allowed" in failed["llmbeam_error"]["message"]


@pytest.mark.full
def test_a_prompt_of_one_megabyte_is_answered(job):
    ended = job.run([*rows(5), {"id": 99, "text": "wide " * 200_000}])
    assert len(ended.answers) == 6


def test_unicode_survives_in_keys_prompts_and_answers(echo_job):
    texts = ["naïve café", "日本語のテキスト", "🦀🚀", "עברית", "a\u2028b\u0000c", "\u202etxet"]
    ended = echo_job.run([{"id": f"ключ {text}", "text": text} for text in texts])
    assert {row["answer"] for row in ended.answers} == {f"Say it: {text}" for text in texts}


def test_json_braces_in_a_prompt_need_no_escape(echo_job):
    ended = echo_job.run([{"id": 1, "text": "{{ row.id }} {%"}], prompt={"template": '{"q": "{{ row.text }}"}'})
    assert ended.answers[0]["answer"] == '{"q": "{{ row.id }} {%"}'


def test_a_garbage_reply_is_retried(job, sandbox):
    sandbox.faults.queue(GEMINI, *[Fault(kind=kind) for kind in ("garbage", "garbage-json", "truncated")] * 2)
    assert len(job.run(rows(20)).answers) == 20


@pytest.mark.parametrize("status", [503, pytest.param(499, marks=pytest.mark.full)])
def test_an_overload_for_every_third_call_costs_retries_and_no_row(job, sandbox, status):
    sandbox.faults.every(GEMINI, 3, Fault(kind="error", http_status=status, message="overloaded"))
    ended = job.run(rows(30), limits={"max_attempts": 12})
    assert len(ended.answers) == 30
    assert ended.manifest["requests"]["retried"] >= 10


def test_a_request_whose_connection_drops_during_the_reply_is_retried(job, sandbox):
    sandbox.faults.queue(GEMINI, *[Fault(kind="drop")] * 2, *[Fault(kind="disconnect")] * 2)
    ended = job.run(rows(20))
    assert len(ended.answers) == 20
    assert len(sandbox.requests) == 24, "the client must not re-send on its own"


def test_a_storm_of_429s_costs_time_and_no_row(job, sandbox):
    sandbox.faults.queue(GEMINI, *[Fault(kind="rate-limit", retry_delay_seconds=0.05)] * 20)
    ended = job.run(rows(30), limits={"max_attempts": 1})
    assert len(ended.answers) == 30
    assert ended.manifest["requests"]["rejected"] == 20
    assert ended.manifest["requests"]["retried"] == 0


def test_with_a_wrong_key_every_row_fails_and_most_are_not_sent(job, sandbox, monkeypatch):
    monkeypatch.setenv("GOOGLE_API_KEY", "invalid")
    with pytest.raises(PermanentFailureError, match=r"^300 of 300 rows failed .*API key not valid"):
        job.run(rows(300), limits={"max_in_flight": 8})
    assert len(sandbox.requests) < 30


@pytest.mark.full
def test_a_missing_model_fails_with_the_message_of_the_server(job):
    with pytest.raises(PermanentFailureError, match=r"Correct `model.name` or `base_url`. .*gpt-nonsense"):
        job.run(rows(5), model={**job.spec["model"], "name": "gpt-nonsense"})


@pytest.mark.full
def test_an_exhausted_daily_quota_stops_sending(tmp_path, make_job):

    with Sandbox(models=ModelSettings(quota=Quota(requests_per_day=30))) as sandbox:
        job = make_job(tmp_path, sandbox)
        ended = job.run(rows(200), limits={"max_in_flight": 4})
        assert len(sandbox.requests) < 40
    assert len(ended.answers) == 30
    assert ended.kinds == {"quota_exhausted": 170}


def test_a_structured_answer_arrives_as_a_value(job):
    schema = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}, "required": ["mood"]}
    ended = job.run(rows(10), prompt={**job.spec["prompt"], "output_schema": schema})
    assert all(row["answer"]["mood"] in ("good", "bad") for row in ended.answers)


def test_the_openai_api_loses_no_row_either(openai_job, sandbox):
    sandbox.faults.queue(
        OPENAI,
        Fault(kind="rate-limit", retry_delay_seconds=1),
        Fault(kind="error", http_status=500, message="boom"),
        Fault(kind="garbage"),
        Fault(kind="truncated"),
        Fault(kind="drop"),
        Fault(kind="error", http_status=400, message="no"),
    )
    ended = openai_job.run(rows(30))
    assert ended.kinds == {"bad_request": 1}
    assert ended.manifest["requests"]["rejected"] == 1


@pytest.mark.full
def test_requests_to_vertex_ai_use_the_credentials_of_the_environment(job, tmp_path, monkeypatch):
    credentials = {
        "type": "authorized_user",
        "client_id": "c",
        "client_secret": "s",
        "refresh_token": "r",
        "token": "t",
        "expiry": "2099-01-01T00:00:00Z",
    }
    path = tmp_path / "adc.json"
    path.write_text(json.dumps(credentials))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    ended = job.run(rows(5), model={**job.spec["model"], "project": "p", "location": "us-central1"})
    assert len(ended.answers) == 5


@pytest.mark.parametrize(
    ("source_format", "sink_format"),
    [("jsonl", "parquet"), ("csv", "jsonl"), ("parquet", "parquet"), ("avro", "jsonl")],
)
def test_every_format_is_read_and_written(echo_job, source_format, sink_format):
    table = [{"id": number, "text": f"row {number}"} for number in range(20)]
    path = echo_job.directory / f"table.{source_format}"
    match source_format:
        case "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in table))
        case "csv":
            path.write_text("id,text\n" + "".join(f"{row['id']},{row['text']}\n" for row in table))
        case "parquet":
            pq.write_table(pa.Table.from_pylist(table), path)
        case "avro":
            fields = [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}]
            with path.open("wb") as file:
                schema = {"type": "record", "name": "row", "fields": fields}
                fastavro.writer(file, schema, table, codec="snappy")  # as Spark does by default
    ended = echo_job.run(
        source={"uri": str(path), "key": ["id"]}, sink={"uri": str(echo_job.out), "format": sink_format}
    )
    assert {str(row["id"]): row["answer"] for row in ended.answers} == {
        str(row["id"]): f"Say it: {row['text']}" for row in table
    }
    if source_format != "csv":
        assert {type(row["id"]) for row in ended.answers} == {int}


def test_a_glob_reads_every_file_and_compressed_ones(echo_job):
    for number in range(3):
        line = json.dumps({"id": number, "text": "t"}) + "\n"
        with gzip.open(echo_job.directory / f"part-{number}.jsonl.gz", "wt") as file:
            file.write(line)
    ended = echo_job.run(source={"uri": str(echo_job.directory / "part-*.jsonl.gz"), "key": ["id"]})
    assert sorted(row["id"] for row in ended.answers) == [0, 1, 2]


@pytest.mark.full
def test_a_compressed_csv_file_is_read(echo_job):
    path = echo_job.directory / "rows.csv.gz"
    path.write_bytes(gzip.compress(b'id,text\n1,a\n2,"two\nlines"\n'))
    ended = echo_job.run(source={"uri": str(path), "key": ["id"]})
    assert {row["id"]: row["answer"] for row in ended.answers} == {"1": "Say it: a", "2": "Say it: two\nlines"}


def test_several_shards_hold_every_row_once_and_a_run_with_fewer_leaves_none_of_their_files(echo_job):
    ended = echo_job.run(rows(100), sink={"uri": str(echo_job.out), "shards": 4})
    assert len(ended.manifest["answers_uris"]) == 4
    assert len(ended.answers) == 100
    echo_job.run(rows(10), sink={"uri": str(echo_job.out), "shards": 1})
    assert sorted(path.name for path in echo_job.out.glob("*.jsonl")) == [
        "answers-00000-of-00001.jsonl",
        "dead_letter-00000-of-00001.jsonl",
    ]


def test_the_dead_letter_can_be_read_again_as_a_source(job, sandbox):
    sandbox.faults.queue(GEMINI, *[Fault(kind="error", http_status=400, message="no")] * 4)
    first = job.run(rows(20))
    assert len(first.dead_letter) == 4
    again = job.run(
        name="again",
        source={"uri": first.manifest["dead_letter_uri"], "key": ["id"]},
        sink={"uri": str(job.directory / "again")},
    )
    assert {row["id"] for row in again.answers} == {row["id"] for row in first.dead_letter}


@pytest.mark.full
def test_length_buckets_are_in_the_report(echo_job):
    ended = echo_job.run(
        [{"id": number, "text": "x" * 4 * number} for number in range(1, 301)],
        batching={"bucket_boundaries": [64, 256]},
    )
    buckets = {bucket["input_tokens_range"]: bucket["rows"] for bucket in ended.report["length_buckets"]}
    assert set(buckets) == {"<64", "64-255", "≥256"}
    assert sum(buckets.values()) == 300


BAD = {
    3: ("unreadable_row", lambda number: f'{{"id": {number}, "text": "cut of'),
    5: ("unreadable_row", lambda _: "[1, 2]"),
    7: ("unreadable_row", lambda _: b"\xff\xfe\x00"),
    17: ("missing_key", lambda number: {"text": f"keyless {number}"}),
    19: ("missing_key", lambda number: {"id": None, "text": f"nobody {number}"}),
    29: ("duplicate_key", lambda number: {"id": number + 1, "text": f"row {number + 1}~"}),
    37: ("template_error", lambda number: {"id": number, "txt": f"row {number}"}),
    41: ("bad_request", lambda number: {"id": number, "text": f"poison {number}"}),
    53: ("blocked", lambda number: {"id": number, "text": f"[[block]] {number}"}),
    61: ("garbage", lambda number: {"id": number, "text": f"babble {number}"}),
    73: ("server_error", lambda number: {"id": number, "text": f"crash {number}"}),
    83: ("timeout", lambda number: {"id": number, "text": f"sleep {number}"}),
    97: ("connection", lambda number: {"id": number, "text": f"hang up {number}"}),
}


def test_rows_that_fail_in_each_known_way_do_not_affect_the_others(job, tmp_path, make_job, sandbox):
    count, hundreds = 300, 3
    good = {number: {"id": number, "text": f"row {number}"} for number in range(count) if number % 100 not in BAD}
    (tmp_path / "undisturbed").mkdir()
    undisturbed = make_job(tmp_path / "undisturbed", sandbox).run(list(good.values()))
    for text, fault in (
        ("poison", Fault(kind="error", http_status=400, message="no")),
        ("babble", Fault(kind="garbage")),
        ("crash", Fault(kind="error", http_status=503)),
        ("sleep", Fault(kind="hang")),
        ("hang up", Fault(kind="disconnect")),
    ):
        sandbox.faults.when(GEMINI, text, fault)
    job.write([good.get(number) or BAD[number % 100][1](number) for number in range(count)])
    job.spec["source"]["on_duplicate_key"] = "dead_letter"
    limits = {
        "max_attempts": 2,
        "max_throttled_seconds": 1,
        "request_timeout_seconds": scaled(1),
        "max_in_flight": 256,
    }
    ended = job.run(limits=limits)
    assert ended.kinds == Counter([kind for kind, _ in BAD.values()] * hundreds), ended.dead_letter
    assert [row["llmbeam_raw"] for row in ended.dead_letter if "llmbeam_raw" in row].count("[1, 2]") == hundreds
    errors = {row["llmbeam_error"]["kind"]: row["llmbeam_error"] for row in ended.dead_letter}
    for kind, attempts, message in (
        ("template_error", 0, "no column 'text'; there are ['id', 'txt']"),
        ("bad_request", 1, "no"),
        ("blocked", 1, "SAFETY"),
        ("garbage", 2, ""),
        ("timeout", 2, "no answer within"),
    ):
        assert (errors[kind]["attempts"], message in errors[kind]["message"]) == (attempts, True), errors[kind]
    assert {row["id"]: row["answer"] for row in ended.answers} == {
        row["id"]: row["answer"] for row in undisturbed.answers
    }


def test_too_many_failed_rows_fail_the_job_and_keep_the_previous_output(job, sandbox):
    before = job.run(rows(20)).answers
    sandbox.faults.when(GEMINI, "Say it: new", Fault(kind="error", http_status=400, message="no"))
    job.write([{"id": number, "text": f"{'new' if number < 5 else 'other'} {number}"} for number in range(20)])
    with pytest.raises(
        TooManyFailedRowsError,
        match=r"5 of 20 rows failed, and .* refused 5 requests: .*e\.g\. bad_request \(no\)",
    ) as raised:
        run(JobSpec.parse(job.spec | {"limits": {"max_dead_letter_ratio": 0.2}}))
    assert read_lines(job.out / "answers-00000-of-00001.jsonl") == before
    assert read_lines(job.out / "dead_letter-00000-of-00001.jsonl") == [], "it belongs to the answers beside it"
    rows_uri = Path(JobSpec.parse(job.spec).paths.failed_rows_uri)
    assert len(read_lines(rows_uri)) == 5
    assert str(rows_uri) in str(raised.value)
    failed = Path(JobSpec.parse(job.spec).paths.failed_html_uri)
    assert "5 of 20 rows failed" in failed.read_text()
    assert Report.model_validate_json(failed.with_suffix(".json").read_text()).rows.dead_letter == 5
    assert raised.value.page == encode_page(failed.read_text(), str(failed))
    assert raised.value.report is not None
    traced = Counter(row["error"] for row in raised.value.report["traced_rows"] if row["reason"] == "failed")
    assert traced == Counter(bad_request=5)
    paid = len(sandbox.requests)
    job.run(limits={"max_dead_letter_ratio": 0.25})
    assert len(sandbox.requests) == paid + 5, "the answered rows cost nothing now"
    assert not failed.exists(), "a job that publishes has its report beside its answers"
    assert not rows_uri.exists(), "and its failed rows"


def test_rows_can_be_part_of_the_spec(job):
    source = {"type": "rows", "key": ["id"], "rows": [{"id": number, "text": "a"} for number in range(3)]}
    ended = job.run(source=source)
    assert sorted(answer["id"] for answer in ended.answers) == [0, 1, 2]
