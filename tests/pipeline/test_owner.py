"""The owner of a files sink: its own next run replaces the answers, another job does not."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from google.cloud.storage import Client
from waiting import until

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.job import run
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


def test_answers_without_an_owner_are_adopted(mapped, sandbox):
    first = mapped(0)
    if first.sink.uri.startswith("gs://"):
        Client().bucket("rows").blob("out/answers-00000-of-00001.jsonl").upload_from_string('{"id": "old"}\n')
    else:
        Path(first.sink.uri).mkdir()
        Path(first.sink.uri, "answers-00000-of-00001.jsonl").write_text('{"id": "old"}\n')
    run(first)
    assert len(answers_of(first)) == 6


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
