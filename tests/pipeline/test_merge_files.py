"""Merging into a files sink by key, and jobs that read their own dead letter."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date
from decimal import Decimal
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event
from uuid import UUID

import fastavro
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError, PermanentFailureError, TooManyFailedRowsError
from airflow_provider_llmbeam.operators.retry_failed_rows import RetryFailedRowsOperator
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.sinks import files, merge_files
from airflow_provider_llmbeam.pipeline.transforms import publish
from airflow_provider_llmbeam.spec import JobSpec
from tests.pipeline.conftest import read_lines

pytestmark = pytest.mark.promise(1)

ROWS = [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}, {"id": 3}]
MENDED = {"prompt": {"template": "Say it: {{ row.text | default('nothing') }}"}}


@pytest.fixture(params=["jsonl", pytest.param("parquet", marks=pytest.mark.full)])
def failed(request, echo_job):
    """A job with two answers and one failed row, and the field to change so that this row is answered."""
    sink = {"uri": str(echo_job.out), "format": request.param}
    echo_job.run(ROWS, sink=sink)
    echo_job.spec["source"] = {"uri": str(dead_letter(echo_job)), "key": ["id"]}
    echo_job.spec["sink"] = sink
    return echo_job


def dead_letter(job) -> Path:
    return job.out / "dead_letter-00000-of-00001.jsonl"


def answers(job) -> list[dict]:
    found = []
    for path in sorted(job.out.glob("answers-*")):
        found += pq.read_table(path).to_pylist() if path.suffix == ".parquet" else read_lines(path)
    return found


def ids(job) -> list:
    return sorted(row["id"] for row in answers(job))


def merged(job, **sink):
    return {"sink": job.spec["sink"] | {"on_existing": "merge", **sink}}


def test_a_job_that_reads_the_dead_letter_of_its_own_sink_is_refused_at_parse(failed):
    with pytest.raises(JobSpecError) as refused:
        JobSpec.parse(failed.spec | MENDED)
    assert (
        f"reads the dead letter of its own `sink.uri` '{failed.out}/', and would replace all answers there by the "
        "new ones: set `sink.on_existing` to 'merge', or name another sink"
    ) in str(refused.value)
    assert ids(failed) == [1, 2]


@pytest.mark.full
def test_the_dead_letter_is_recognised_by_a_relative_path_and_by_a_glob(failed, monkeypatch):
    monkeypatch.chdir(failed.directory)
    for uri in ("out/dead_letter-*.jsonl", "./out/../out/dead_letter-00000-of-00001.jsonl", "ou?/dead_*.jsonl"):
        with pytest.raises(JobSpecError, match="reads the dead letter of its own"):
            JobSpec.parse(failed.spec | MENDED | {"source": {"uri": uri, "key": ["id"]}})


def test_a_job_that_would_read_its_own_answers_is_refused(failed):
    source = {"uri": f"{failed.out}/*.{failed.spec['sink']['format']}", "key": ["id"]}
    with pytest.raises(JobSpecError, match=r"would read its own answers: `source\.uri` .* matches the files"):
        JobSpec.parse(failed.spec | {"source": source} | merged(failed))


def test_another_job_that_reads_the_dead_letter_is_refused_by_the_owner(failed, tmp_path):
    copied = tmp_path / "copied.jsonl"
    copied.write_text(dead_letter(failed).read_text())
    with pytest.raises(JobSpecError, match="belongs to 'job'; 'mender' would replace its answers"):
        run(
            JobSpec.parse(failed.spec | MENDED | {"name": "mender", "source": {"uri": str(copied), "key": ["id"]}})
        )
    assert ids(failed) == [1, 2]


def test_the_mended_rows_are_merged_and_leave_the_dead_letter(failed):
    run(JobSpec.parse(failed.spec | MENDED | merged(failed)))
    assert ids(failed) == [1, 2, 3]
    assert read_lines(dead_letter(failed)) == []


def test_merging_again_changes_nothing(failed):
    source = {"source": {"uri": str(failed.source), "key": ["id"]}}
    run(JobSpec.parse(failed.spec | MENDED | source | merged(failed)))
    once = answers(failed)
    run(JobSpec.parse(failed.spec | MENDED | source | merged(failed)))
    assert len(answers(failed)) == 3
    assert {row["id"]: row["answer"] for row in answers(failed)} == {row["id"]: row["answer"] for row in once}


@pytest.mark.full
def test_rows_that_fail_again_stay_in_the_dead_letter_once(failed):
    for _ in range(2):
        with pytest.raises(JobSpecError):
            run(JobSpec.parse(failed.spec | merged(failed)))
    assert [row["id"] for row in read_lines(dead_letter(failed))] == [3]
    assert ids(failed) == [1, 2]


@pytest.mark.full
def test_rows_without_a_key_stay_in_the_dead_letter_once(echo_job):
    echo_job.run(["{", {"text": "no key"}, {"id": 1, "text": "a"}])
    spec = echo_job.spec | merged(echo_job) | {"source": {"uri": str(dead_letter(echo_job)), "key": ["id"]}}
    for _ in range(2):
        with pytest.raises(JobSpecError):
            run(JobSpec.parse(spec))
    assert len(read_lines(dead_letter(echo_job))) == 2


def test_rows_with_a_fault_of_the_source_neither_fail_the_retry_of_others_nor_replace_an_answer(echo_job):
    echo_job.spec["source"] = {**echo_job.spec["source"], "on_duplicate_key": "dead_letter"}
    first, second = {"id": 1, "text": "a"}, {"id": 1, "text": "b"}
    echo_job.run(["{", {"text": "no key"}, first, second, {"id": 2}])
    out = {"sink": {"uri": str(echo_job.out)}, "dead_letter_uri": str(dead_letter(echo_job)), "key": ["id"]}
    retry = RetryFailedRowsOperator(task_id="retry", **out, **MENDED, model={"type": "echo"})
    spec = echo_job.spec | MENDED | {"source": retry.source, "sink": retry.sink, "limits": {}}
    assert run(JobSpec.parse(spec))["rows"] == {"read": 1, "answered": 1, "dead_letter": 0, "skipped": 0}
    assert {row["id"]: row["answer"] for row in answers(echo_job)} == {1: "Say it: a", 2: "Say it: nothing"}
    kinds = sorted(row["llmbeam_error"]["kind"] for row in read_lines(dead_letter(echo_job)))
    assert kinds == ["duplicate_key", "missing_key", "unreadable_row"]


@pytest.mark.full
@pytest.mark.parametrize(("source_format", "sink_format"), [("parquet", "jsonl"), ("avro", "parquet")])
def test_a_retry_renders_the_dates_and_decimals_of_its_first_source(echo_job, source_format, sink_format):
    rows = [
        {
            "day": date(2026, 1, day),
            "price": Decimal(f"{day}.50"),
            "days": [date(2026, 2, day)],
            "raw": b"\xff",
            "tag": UUID(int=day),
            "at": pd.Timestamp(f"2026-03-0{day} 04:05:06", tz="Europe/Berlin"),
        }
        for day in (1, 2)
    ]
    path = echo_job.directory / f"rows.{source_format}"
    if source_format == "parquet":
        schema = pa.Table.from_pylist([{name: row[name] for name in row if name != "tag"} for row in rows]).schema
        schema = schema.append(pa.field("tag", pa.uuid()))
        pq.write_table(pa.Table.from_pylist(rows, schema), path)
    else:
        day = {"type": "int", "logicalType": "date"}
        price = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
        types = {"day": day, "price": price, "days": {"type": "array", "items": day}, "raw": "bytes"}
        types["tag"] = {"type": "string", "logicalType": "uuid"}
        types["at"] = {"type": "long", "logicalType": "timestamp-micros"}
        fields = [{"name": name, "type": kind} for name, kind in types.items()]
        with path.open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "row", "fields": fields}, rows)
    template = "{{ row.day.year }} {{ row.price * 2 }} {{ row.days }} {{ row.raw.hex() }} {{ row.tag.int }}"
    template += "{{ row.at.strftime(' at %H %Z') }}"
    fails = "{% if row.day.day == 2 %}{{ row.nothing }}{% endif %}"
    sink = {"uri": str(echo_job.out), "format": sink_format}
    spec = echo_job.spec | {"source": {"uri": str(path), "key": ["day"]}, "sink": sink}
    run(JobSpec.parse(spec | {"prompt": {"template": fails + template}}))
    out = {"sink": sink, "dead_letter_uri": str(dead_letter(echo_job)), "key": ["day"]}
    prompt = {"template": template}
    retry = RetryFailedRowsOperator(task_id="retry", **out, prompt=prompt, model={"type": "echo"})
    run(JobSpec.parse(spec | {"source": retry.source, "sink": retry.sink, "prompt": prompt}))
    at = "04 CET" if source_format == "parquet" else "03 UTC"
    assert {row["day"]: row["answer"] for row in answers(echo_job)} == {
        "2026-01-01": f"2026 3.00 [datetime.date(2026, 2, 1)] ff 1 at {at}",
        "2026-01-02": f"2026 5.00 [datetime.date(2026, 2, 2)] ff 2 at {at}",
    }
    assert read_lines(dead_letter(echo_job)) == []


@pytest.mark.full
def test_a_job_that_reads_its_dead_letter_leaves_rows_whose_answers_would_replace_others(echo_job):
    source = {**echo_job.spec["source"], "on_duplicate_key": "dead_letter"}
    echo_job.run([{"id": 1, "text": "a"}, {"id": 1, "text": "b"}, {"id": 2}], source=source)
    spec = echo_job.spec | MENDED | {"sink": {"uri": str(echo_job.out), "on_existing": "merge"}}
    run(JobSpec.parse(spec | {"source": {"uri": f"{echo_job.out}/dead*.jsonl", "key": ["id"]}}))
    assert {row["id"]: row["answer"] for row in answers(echo_job)} == {1: "Say it: a", 2: "Say it: nothing"}
    assert [row["text"] for row in read_lines(dead_letter(echo_job))] == ["b"]


@pytest.mark.full
def test_rows_that_share_a_key_stay_in_the_dead_letter_when_rows_of_other_keys_are_merged(echo_job):
    echo_job.spec["source"] = {**echo_job.spec["source"], "on_duplicate_key": "dead_letter"}
    rows = [{"id": 1, "text": text} for text in "abcc"]
    echo_job.write(rows)
    run(JobSpec.parse(echo_job.spec | merged(echo_job)))
    for number in (2, 3):
        echo_job.write([{"id": number, "text": "d"}])
        run(JobSpec.parse(echo_job.spec | merged(echo_job)))
    assert [row["text"] for row in read_lines(dead_letter(echo_job))] == ["b", "c"]
    echo_job.write(rows)
    run(JobSpec.parse(echo_job.spec | merged(echo_job)))
    assert [row["text"] for row in read_lines(dead_letter(echo_job))] == ["b", "c"]


def test_answers_that_are_not_published_leave_their_rows_in_the_dead_letter(echo_job):
    echo_job.run([{"id": 1, "text": "a"}, {"id": 2}, {"id": 3}, {"id": 4, "b": 1}])
    spec = (
        echo_job.spec
        | merged(echo_job)
        | {
            "source": {"uri": str(dead_letter(echo_job)), "key": ["id"]},
            "prompt": {"template": "{{ row.b }}"},
            "limits": {"max_dead_letter_ratio": 0.1},
        }
    )
    with pytest.raises(TooManyFailedRowsError):
        run(JobSpec.parse(spec))
    assert sorted(row["id"] for row in read_lines(dead_letter(echo_job))) == [2, 3, 4]
    assert ids(echo_job) == [1]


def test_a_row_that_fails_now_keeps_its_answer(echo_job):
    echo_job.run([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}])
    echo_job.write([{"id": 1}, {"id": 2, "text": "c"}])
    run(JobSpec.parse(echo_job.spec | merged(echo_job)))
    assert ids(echo_job) == [1, 2]
    assert [row["id"] for row in read_lines(dead_letter(echo_job))] == [1]


@pytest.mark.parametrize("shards", [(1, 3), pytest.param((3, 1), marks=pytest.mark.full)])
def test_another_number_of_files_keeps_every_row_once(echo_job, shards):
    before, after = shards
    sink = {"uri": str(echo_job.out), "shards": before}
    echo_job.run([{"id": number, "text": f"{number}"} for number in range(20)], sink=sink)
    echo_job.write([{"id": number, "text": f"new {number}"} for number in range(15, 30)])
    echo_job.spec["sink"] = sink
    run(JobSpec.parse(echo_job.spec | merged(echo_job, shards=after)))
    assert ids(echo_job) == list(range(30))
    assert len([*echo_job.out.glob("answers-*")]) == after


@pytest.mark.parametrize(
    ("survived", "after"),
    [(2, 3), *(pytest.param(*each, marks=pytest.mark.full) for each in ((0, 1), (1, 1), (0, 3), (3, 3)))],
)
def test_a_job_that_is_killed_while_it_publishes_loses_no_row(echo_job, monkeypatch, survived, after):
    """At each rename: the old rows are whole, and the next run has all."""
    sink = {"uri": str(echo_job.out), "shards": 3}
    echo_job.run([{"id": number, "text": f"{number}"} for number in range(20)], sink=sink)
    echo_job.write([{"id": number, "text": f"new {number}"} for number in range(15, 30)])
    echo_job.spec["sink"] = sink
    spec = JobSpec.parse(echo_job.spec | merged(echo_job, shards=after))
    renames, rename = [], storage.rename

    def kill(targets):
        for pair in targets.items():
            if len(renames) == survived:
                raise KeyboardInterrupt
            renames.append(pair)
            rename(dict([pair]))

    monkeypatch.setattr(files.storage, "rename", kill)
    monkeypatch.setattr(files.storage, "delete", lambda uris: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(BaseException):  # noqa: B017, PT011 - Beam's runner wraps it, or not
        run(spec)
    monkeypatch.undo()
    assert set(range(20)) <= set(ids(echo_job))
    run(spec)
    assert ids(echo_job) == list(range(30))


def specs_at_once(job, **limits):
    specs = []
    for number in range(3):
        path = job.directory / f"{number}.jsonl"
        path.write_text(f'{{"id": {number}, "text": "x"}}\n{{"id": {number + 10}}}\n')
        parts = {"name": f"job-{number}", "source": {"uri": str(path), "key": ["id"]}}
        specs.append(JobSpec.parse(job.spec | parts | merged(job) | {"limits": job.spec["limits"] | limits}))
    return specs


def meeting(function):
    """Returns a function whose callers wait for each other, unless only one is there."""
    barrier = Barrier(3)

    def together(*args, **options):
        found = function(*args, **options)
        with suppress(BrokenBarrierError):
            barrier.wait(2)
        return found

    return together


def test_jobs_that_merge_at_once_lose_no_row(echo_job, monkeypatch):
    """Each has read the files before one has written them, unless they take turns."""
    specs = specs_at_once(echo_job)
    monkeypatch.setattr(merge_files, "_answers", meeting(merge_files._answers))
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, specs))
    assert ids(echo_job) == [0, 1, 2]
    assert sorted(row["id"] for row in read_lines(dead_letter(echo_job))) == [10, 11, 12]


@pytest.mark.full
def test_jobs_in_which_too_many_rows_fail_at_once_keep_their_failed_rows_and_leave_the_output(echo_job):
    specs = specs_at_once(echo_job, max_dead_letter_ratio=0.0)
    with ThreadPoolExecutor(3) as pool:
        ended = [pool.submit(run, spec) for spec in specs]
    assert {type(each.exception()) for each in ended} == {PermanentFailureError}
    assert ids(echo_job) == []
    assert not dead_letter(echo_job).exists()
    assert [row["id"] for spec in specs for row in read_lines(Path(spec.paths.failed_rows_uri))] == [10, 11, 12]


@pytest.mark.full
def test_answers_with_other_columns_are_not_merged(echo_job):
    echo_job.run(ROWS)
    with pytest.raises(JobSpecError, match=r"has columns none that these answers lack, and lacks 'text'\. No"):
        run(JobSpec.parse(echo_job.spec | merged(echo_job, passthrough=["text"])))


@pytest.mark.full
def test_answers_of_another_format_are_not_merged(echo_job):
    echo_job.run(ROWS)
    with pytest.raises(JobSpecError, match=r"`sink\.format` 'parquet': .* has another format, which .* change"):
        run(JobSpec.parse(echo_job.spec | merged(echo_job, format="parquet")))


def test_a_file_with_a_name_that_no_job_writes_is_refused_and_stays(echo_job):
    echo_job.run(ROWS)
    (file,) = echo_job.out.glob("answers-*")
    renamed = file.rename(echo_job.out / "answers-2024.jsonl")
    with pytest.raises(
        JobSpecError, match=r"answers-2024\.jsonl' does not have the name .* 'answers-00000-of-00001\."
    ):
        run(JobSpec.parse(echo_job.spec | merged(echo_job)))
    assert [row["id"] for row in read_lines(renamed)] == [1, 2]


def test_a_file_that_was_added_during_the_run_is_not_deleted(echo_job, monkeypatch):
    echo_job.run(ROWS)
    added = echo_job.out / "answers-2024.jsonl"
    hold_sink = publish.hold_sink

    def add_first(spec):
        added.write_text('{"id": 9}\n')
        return hold_sink(spec)

    monkeypatch.setattr(publish, "hold_sink", add_first)
    run(JobSpec.parse(echo_job.spec | merged(echo_job)))
    assert [row["id"] for row in read_lines(added)] == [9]


@pytest.mark.full
def test_duplicate_keys_are_not_merged(echo_job):
    source = {"uri": str(echo_job.source), "key": ["id"], "on_duplicate_key": "allow"}
    with pytest.raises(JobSpecError, match=r"allows duplicate keys .* 'merge' keeps one row per key"):
        JobSpec.parse(echo_job.spec | merged(echo_job) | {"source": source})


@pytest.mark.full
def test_answers_that_share_a_key_stay_when_rows_of_other_keys_are_merged(failed):
    rows = [*ROWS, {"id": 1, "text": "c"}]
    source = {"uri": str(failed.source), "key": ["id"]}
    sink = failed.spec["sink"]
    failed.run(rows, source={**source, "on_duplicate_key": "allow"}, sink=sink)
    failed.spec["source"] = {"uri": str(dead_letter(failed)), "key": ["id"]}
    run(JobSpec.parse(failed.spec | MENDED | merged(failed)))
    assert sorted((row["id"], row["answer"]) for row in answers(failed)) == [
        (1, "Say it: a"),
        (1, "Say it: c"),
        (2, "Say it: b"),
        (3, "Say it: nothing"),
    ]


def test_a_row_that_the_retry_does_not_read_stays_in_the_dead_letter_with_the_key_of_one_that_it_answers(echo_job):
    source = {**echo_job.spec["source"], "on_duplicate_key": "dead_letter"}
    echo_job.run([{"id": 1}, {"id": 1, "number": 2}, {"id": 2, "text": "b"}], source=source)
    own = {
        "uri": str(dead_letter(echo_job)),
        "key": ["id"],
        "failed_kinds": ["template_error"],
        "on_empty": "write",
    }
    for _ in range(2):
        run(JobSpec.parse(echo_job.spec | MENDED | merged(echo_job) | {"source": own | {"on_empty": "write"}}))
        assert ids(echo_job) == [1, 2]
        assert [row["llmbeam_error"]["kind"] for row in read_lines(dead_letter(echo_job))] == ["duplicate_key"]


def test_answers_of_a_job_that_replaces_them_while_another_one_merges_are_all_there(echo_job, monkeypatch):
    """A retry of one run has read the files when the next run replaces them, unless they take turns."""
    echo_job.run(ROWS)
    source = {"uri": str(dead_letter(echo_job)), "key": ["id"]}
    retry = echo_job.spec | MENDED | {"name": "retry", "source": source}
    retry = JobSpec.parse(retry | {"sink": echo_job.spec["sink"] | {"on_existing": "merge"}})
    following = JobSpec.parse(echo_job.spec | {"name": "following", "owner": "job"})
    move, has_read, is_replaced = files.publish, Event(), Event()

    def interrupted(sink, staged, replaced=None):
        if replaced is not None:
            has_read.set()
            is_replaced.wait(3)
        return move(sink, staged, replaced)

    monkeypatch.setattr(files, "publish", interrupted)
    with ThreadPoolExecutor(1) as pool:
        retried = pool.submit(run, retry)
        assert has_read.wait(60)
        echo_job.write([{"id": 4, "text": "d"}, {"id": 5, "text": "e"}, {"id": 6}])
        run(following)
        is_replaced.set()
        retried.result()  # its report may be that of the other job already: both write to one place
    assert ids(echo_job) == [4, 5]
    assert [row["id"] for row in read_lines(dead_letter(echo_job))] == [6]
