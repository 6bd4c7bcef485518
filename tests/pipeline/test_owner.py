"""The owner of a files sink: its own next run replaces the answers, another job does not."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
from google.cloud.storage import Client
from waiting import until

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError, RowsLostError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.sinks import files, publish
from airflow_provider_llmbeam.pipeline.sinks.ownership import claim
from airflow_provider_llmbeam.spec import JobSpec
from tests.pipeline.conftest import read_lines

pytestmark = pytest.mark.promise(1)

ROWS = [{"id": number, "text": f"row {number}"} for number in range(6)]
GEMINI = "gemini.generateContent"


@pytest.fixture(params=["local", pytest.param("gs", marks=pytest.mark.full)])
def mapped(request, job, sandbox, tmp_path):
    """Returns the job of a mapped task of five, each with six rows of its own and all with one sink."""
    if request.param == "gs":
        request.getfixturevalue("google")
    sink = str(job.out) if request.param == "local" else "gs://rows/out"

    def spec(index: int, night: int = 1, **sink_options) -> JobSpec:
        source = tmp_path / f"{index}.jsonl"
        source.write_text(
            "".join(
                json.dumps({"id": f"{index}-{row['id']}", "text": f"{index} {row['id']}"}) + "\n" for row in ROWS
            )
        )
        return JobSpec.parse(
            job.spec
            | {"name": f"etl-judge-{index}-{night}", "owner": f"etl.judge[{index}]", "deployment": "tests"}
            | {"source": {"uri": str(source), "key": ["id"]}, "sink": {"uri": sink, **sink_options}}
        )

    return spec


def answers_of(spec: JobSpec) -> list[str]:
    name = f"{spec.sink.uri}answers-00000-of-00001.jsonl"
    if name.startswith("gs://"):
        text = Client().bucket("rows").blob(name.removeprefix("gs://rows/")).download_as_text()
        return [json.loads(line)["id"] for line in text.splitlines()]
    return [row["id"] for row in read_lines(Path(name))]


def test_a_publication_reads_the_owner_once_besides_its_two_changes(mapped, monkeypatch):
    spec, reads, read = mapped(0), [], storage.read_if_exists
    run(spec)
    staged = {0: f"{spec.paths.staging_uri}0.jsonl"}
    storage.replace(staged[0], b"{}\n")
    monkeypatch.setattr(storage, "read_if_exists", lambda uri: reads.append(uri) or read(uri))
    publish(spec, staged, print)
    # On this machine a change reads the file as well; an object has a precondition.
    is_local = not spec.sink.uri.startswith("gs://")
    assert reads == [spec.paths.owner_uri] * (3 if is_local else 1)


def test_the_sink_of_another_mapped_task_is_refused_with_both_names_and_the_way_out(mapped, sandbox):
    run(mapped(0))
    sent = sandbox.stats()["billed_answers"]
    for index in range(1, 5):
        with pytest.raises(JobSpecError) as refused:
            run(mapped(index))
        uri = mapped(0).sink.uri
        assert str(refused.value) == (
            f"`sink.uri` {uri!r} belongs to 'etl.judge[0]'; 'etl.judge[{index}]' would replace its answers. Put "
            "`{{ ti.map_index }}` into it, or set `sink.on_existing` to 'merge' or 'take_over'. Nothing was sent "
            "or billed."
        )
        assert len(str(refused.value).replace(uri, "out/")) <= 240
    assert sandbox.stats()["billed_answers"] == sent == 6
    assert Counter(answers_of(mapped(0))) == Counter(f"0-{number}" for number in range(6))


@pytest.mark.parametrize("mapped", ["local"], indirect=True)
def test_the_next_run_of_the_same_task_replaces_its_own_answers(mapped, sandbox):
    run(mapped(0, night=1))
    assert run(mapped(0, night=2))["rows"]["answered"] == 6
    assert sandbox.stats()["billed_answers"] == 12


def test_of_five_that_start_at_once_one_owns_the_sink(mapped):
    specs = [mapped(index) for index in range(5)]

    def claimed(spec: JobSpec) -> bool:
        try:
            claim(spec)
        except JobSpecError:
            return False
        return True

    with ThreadPoolExecutor(5) as pool:
        assert sum(pool.map(claimed, specs)) == 1
        assert sum(pool.map(claimed, specs)) == 1  # the same one, again


@pytest.mark.parametrize(
    "name", ["answers-00000-of-00001.jsonl", "report.json", "report.html", "dead_letter-00000-of-00001.jsonl"]
)
def test_a_file_that_no_job_has_published_is_refused_before_anything_is_sent(mapped, sandbox, name):
    first, content = mapped(0), '{"id": "old"}\n'
    in_cloud = first.sink.uri.startswith("gs://")
    if in_cloud:
        Client().bucket("rows").blob(f"out/{name}").upload_from_string(content)
    else:
        Path(first.sink.uri).mkdir()
        Path(first.sink.uri, name).write_text(content)
    for on_existing in ("replace", "take_over"):
        with pytest.raises(JobSpecError, match=rf"has a file '{name}' that no job has published there"):
            run(mapped(0, on_existing=on_existing))
    assert sandbox.stats()["billed_answers"] == 0
    blob = Client().bucket("rows").blob(f"out/{name}") if in_cloud else None
    assert (blob.download_as_text() if blob else Path(first.sink.uri, name).read_text()) == content


def test_the_report_of_a_retry_replaces_only_that_of_another_retry(echo_job):
    echo_job.run([*ROWS, {"id": "untold"}])
    retry = {
        "source": {"uri": str(echo_job.out / "dead_letter-00000-of-00001.jsonl"), "key": ["id"]},
        "sink": echo_job.spec["sink"] | {"on_existing": "merge"},
        "prompt": {"template": "{{ row.id }}"},
    }
    report = echo_job.out / "report-retry.json"
    report.write_text("mine")
    with pytest.raises(JobSpecError, match=r"has a file 'report-retry\.json' that no job has published"):
        run(JobSpec.parse(echo_job.spec | retry))
    assert report.read_text() == "mine"
    report.unlink()
    for _ in range(2):
        run(JobSpec.parse(echo_job.spec | retry))
        assert report.exists()
        echo_job.run([*ROWS, {"id": "untold"}])


def test_files_of_others_beside_the_answers_outlive_every_run(echo_job):
    echo_job.run(ROWS, sink=echo_job.spec["sink"] | {"shards": 3})
    others = ["answers-2025-final.jsonl", "answers-00007-of-00099.jsonl", "report-2024.json", "dead_letter.jsonl"]
    for name in others:
        (echo_job.out / name).write_text("mine")
    echo_job.run(ROWS)
    assert [(echo_job.out / name).read_text() for name in others] == ["mine"] * 4
    assert [path.name for path in echo_job.out.glob("answers-*-of-00003.jsonl")] == []


def test_a_file_that_appears_while_the_job_runs_is_not_replaced_and_the_answers_are_kept(job, sandbox):
    hold = sandbox.faults.hold(GEMINI, "row 0", after=0)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(job.run, ROWS)
        until(lambda: hold.waiting, "requests are held")
        (job.out / "report.json").write_text("mine")
        hold.release()
        with pytest.raises(JobFailedError, match=r"has a file 'report\.json' that no job has published"):
            slow.result()
    assert (job.out / "report.json").read_text() == "mine"
    (job.out / "report.json").rename(job.out / "mine.json")
    assert job.run(ROWS).origins["resumed"] == len(ROWS)


def test_the_answers_of_an_earlier_release_which_has_no_list_are_replaced(echo_job):
    echo_job.run(ROWS, sink=echo_job.spec["sink"] | {"shards": 2})
    owner = echo_job.out / ".llmbeam" / "_owner.json"
    owner.write_text(json.dumps({"job": "job", "deployment": ""}))
    echo_job.run(ROWS)
    assert [path.name for path in echo_job.out.glob("answers-*")] == ["answers-00000-of-00001.jsonl"]


def test_a_run_that_is_killed_between_two_files_leaves_no_file_that_the_next_one_refuses(echo_job, monkeypatch):
    echo_job.run(ROWS, sink=echo_job.spec["sink"] | {"shards": 3})
    with monkeypatch.context() as patched:
        patched.setattr(files, "move_in", mock.Mock(side_effect=RowsLostError("killed")))
        with pytest.raises(RowsLostError):
            echo_job.run(ROWS, sink=echo_job.spec["sink"] | {"shards": 2})
    echo_job.run(ROWS)
    assert [path.name for path in echo_job.out.glob("answers-*")] == ["answers-00000-of-00001.jsonl"]


@pytest.mark.parametrize("mapped", ["local"], indirect=True)
def test_a_sink_is_taken_over_on_request(mapped):
    run(mapped(0))
    run(mapped(1, on_existing="take_over"))
    assert all(id_.startswith("1-") for id_ in answers_of(mapped(0)))
    with pytest.raises(JobSpecError, match=r"belongs to 'etl\.judge\[1\]'; 'etl\.judge\[0\]' would replace"):
        run(mapped(0))


@pytest.mark.parametrize("mapped", ["local"], indirect=True)
def test_a_job_whose_sink_is_taken_over_while_it_runs_leaves_it_as_it_is(mapped, sandbox):
    run(mapped(0))
    hold = sandbox.faults.hold(GEMINI, "1 ", after=0)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(run, mapped(1, on_existing="take_over"))
        until(lambda: hold.waiting, "requests are held")
        run(mapped(2, on_existing="take_over"))
        hold.release()
        with pytest.raises(JobFailedError, match=r"belongs to 'etl\.judge\[2\]'.*taken over while this job ran"):
            slow.result()
    assert all(id_.startswith("2-") for id_ in answers_of(mapped(0)))


def test_five_mapped_tasks_that_merge_leave_all_rows(mapped):
    specs = [mapped(index, on_existing="merge") for index in range(5)]
    for spec in specs:
        run(spec)
    assert sorted(answers_of(specs[0])) == sorted(f"{index}-{row}" for index in range(5) for row in range(6))


def test_a_job_without_airflow_is_known_by_its_name(echo_job):
    echo_job.run(ROWS)
    echo_job.run(ROWS)
    with pytest.raises(JobSpecError, match=r"belongs to 'job'; 'other' would .*\. Name a sink per job"):
        echo_job.run(ROWS, name="other")
    assert len(read_lines(echo_job.out / "answers-00000-of-00001.jsonl")) == 6


def test_a_job_of_the_same_name_in_another_deployment_is_another_job(echo_job):
    echo_job.run(ROWS, deployment="production")
    with pytest.raises(JobSpecError, match=r"belongs to 'job of production'; 'job of staging' would"):
        echo_job.run(ROWS, deployment="staging")


def test_the_file_of_the_owner_says_since_when_and_cannot_be_a_job_of_that_name(echo_job):
    echo_job.run(ROWS)
    found = json.loads((echo_job.out / ".llmbeam" / "_owner.json").read_text())
    assert (found["job"], found["deployment"]) == ("job", "")
    assert "since" in found


@pytest.mark.parametrize("text", ["", "{", "[]", '{"job": "x"}'])
def test_a_file_that_names_no_owner_is_replaced(echo_job, text):
    path = echo_job.out / ".llmbeam" / "_owner.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    echo_job.run(ROWS)
    assert json.loads(path.read_text())["job"] == "job"


def test_a_job_that_had_nothing_to_publish_owns_nothing(echo_job):
    source = echo_job.spec["source"] | {"on_empty": "skip"}
    echo_job.write([])
    run(JobSpec.parse(echo_job.spec | {"source": source}))
    echo_job.run(ROWS, name="other")
    echo_job.write([])
    run(JobSpec.parse(echo_job.spec | {"source": source, "name": "other"}))
    with pytest.raises(JobSpecError, match="belongs to 'other'"):
        echo_job.run(ROWS)
