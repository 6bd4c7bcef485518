"""A systematic failure costs dozens of requests, once; a refused answer is not paid for again."""

from __future__ import annotations

import socket
import threading

import pytest
from llmbeam_sandbox import Fault, Sandbox

from airflow_provider_llmbeam.engine.pacing.outage import Outage
from airflow_provider_llmbeam.exceptions import (
    JobSpecError,
    ModelUnavailableError,
    NothingAnsweredError,
    PermanentFailureError,
)
from tests.pipeline.conftest import read_lines

pytestmark = pytest.mark.promise(2)

TEXT = {"type": "string"}
SCHEMA = {"type": "object", "properties": {"mood": TEXT, "why": TEXT}, "required": ["mood", "why"]}


def rows(count: int) -> list[dict]:
    return [{"id": number, "text": f"row number {number}"} for number in range(count)]


@pytest.fixture
def cut_job(job):
    """A job whose every answer is cut at `max_output_tokens`."""
    job.spec["prompt"] |= {"output_schema": SCHEMA}
    job.spec["generation"] = {"max_output_tokens": 5}
    return job


def test_a_limit_that_cuts_every_answer_costs_32_requests_and_names_the_limit(cut_job, sandbox):
    with pytest.raises(PermanentFailureError) as caught:
        cut_job.run(rows(500))
    assert str(caught.value).startswith(
        "32 of 32 answers were cut at `generation.max_output_tokens` = 5: raise it. Nothing more was sent. "
    )
    assert not caught.value.retryable
    assert len(sandbox.requests) == 32
    dead_letter = read_lines(cut_job.out / ".llmbeam/job/failed_rows.jsonl")
    kinds = [row["llmbeam_error"]["kind"] for row in dead_letter]
    assert (kinds.count("truncated"), kinds.count("not_sent")) == (32, 468)


def test_refused_answers_are_not_paid_for_again(cut_job, sandbox):
    with pytest.raises(PermanentFailureError, match="20 of 20 answers were cut at") as first:
        cut_job.run(rows(20))
    assert len(sandbox.requests) == 20
    with pytest.raises(PermanentFailureError) as second:
        cut_job.run(rows(20))
    assert len(sandbox.requests) == 20
    assert str(second.value) == str(first.value)


@pytest.mark.full
def test_a_higher_limit_sends_refused_rows_again(cut_job, sandbox):
    with pytest.raises(PermanentFailureError):
        cut_job.run(rows(20))
    ended = cut_job.run(generation={"max_output_tokens": 200})
    assert len(ended.answers) == 20
    assert len(sandbox.requests) == 40


@pytest.mark.full
@pytest.mark.parametrize(
    "change",
    [
        {"limits": {"retry_refused": True}},
        {"prompt": {"template": "Say: {{ row.text }}", "output_schema": SCHEMA}},
        {"prompt": {"template": "Say it: {{ row.text }}", "output_schema": {**SCHEMA, "title": "Answer"}}},
    ],
    ids=["retry_refused", "prompt", "schema"],
)
def test_refused_rows_are_sent_again_on_request_or_if_the_prompt_changes(cut_job, sandbox, change):
    for changes in ({}, change):
        with pytest.raises(PermanentFailureError):
            cut_job.run(rows(5), **changes)
    assert len(sandbox.requests) == 10


@pytest.mark.full
def test_one_repair_more_sends_invalid_answers_again(job, sandbox):
    # The sandbox ignores `pattern`, like a server without guided decoding.
    schema = {"type": "object", "properties": {"n": {"type": "string", "pattern": "^$"}}, "required": ["n"]}
    for max_repairs, requests in ((1, 10), (1, 10), (0, 10), (2, 25)):
        with pytest.raises(PermanentFailureError, match="5 of 5 answers cannot be used"):
            job.run(rows(5), prompt={**job.spec["prompt"], "output_schema": schema, "max_repairs": max_repairs})
        assert len(sandbox.requests) == requests


def test_a_known_refusal_is_in_the_dead_letter_with_its_message_and_costs_nothing(job, sandbox):
    source = [*rows(18), {"id": 98, "text": "[[block]] a"}, {"id": 99, "text": "[[block]] b"}]
    first, second = job.run(source), job.run(source)
    assert len(sandbox.requests) == 20
    errors = [{row["id"]: row["llmbeam_error"] for row in ended.dead_letter} for ended in (first, second)]
    assert {error["origin"] for error in errors[0].values()} == {"fresh"}
    assert errors[1] == {number: {**error, "origin": "resumed"} for number, error in errors[0].items()}
    assert second.manifest["requests"]["sent"] == 0
    assert second.report["tokens"]["input"] == second.report["tokens"]["output"] == 0


def test_a_column_that_no_row_has_ends_the_job_before_anything_is_sent(job, sandbox):
    with pytest.raises(JobSpecError) as caught:
        job.run(rows(300), prompt={"template": "Say it: {{ row.txt }}"})
    assert str(caught.value).startswith(
        "No prompt could be made of 300 of 300 rows: correct `prompt.template` or the source. "
        "no column 'txt'; there are ['id', 'text']. "
    )
    assert "Nothing was sent or billed." in str(caught.value)
    assert len(sandbox.requests) == 0


@pytest.mark.full
def test_rows_that_fail_in_each_run_do_not_end_the_second_run(job, sandbox):
    """All others are in the journal then, so these are the first rows of the run."""
    sandbox.faults.when("gemini.generateContent", "poison", Fault(kind="error", http_status=400, message="no"))
    source = [*rows(364), *({"id": 1000 + number, "text": f"poison {number}"} for number in range(36))]
    limits = {"max_dead_letter_ratio": 0.1}
    first, second = job.run(source, limits=limits), job.run(source, limits=limits)
    assert first.kinds == {"bad_request": 36}
    assert second.kinds.total() == 36
    assert len(second.answers) == second.origins["resumed"] == 364


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


@pytest.mark.full
def test_a_server_that_starts_within_the_minute_answers_every_row(tmp_path, make_job):
    server = Sandbox(port=free_port())
    started = threading.Timer(6.0, server.start)
    started.start()
    try:
        ended = make_job(tmp_path, server).run(rows(100), limits={"max_attempts": 1})
    finally:
        started.join()
        server.stop()
    assert len(ended.answers) == 100
    assert len(server.requests) == 100


def test_a_server_that_is_down_ends_the_job_and_a_retry_sends_only_the_rest(job, sandbox, monkeypatch):
    monkeypatch.setattr(Outage, "LONGEST_SECONDS", 2.0)
    job.run(rows(10))
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(
        ModelUnavailableError, match=r"The model server has not replied for \d+ s: start it"
    ) as caught:
        job.run(rows(300), model={**job.spec["model"], "base_url": address})
    assert caught.value.retryable
    ended = job.run(rows(300))
    assert ended.origins["resumed"] == 10
    assert len(sandbox.requests) == 300


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[[block]]",
            "32 of 32 answers were blocked: change `prompt.template`, the rows or the model. prompt blocked: ",
        ),
        ("poison", "The server refused 32 of 32 requests: change what it names in the spec, or the rows. "),
    ],
)
def test_the_same_failure_of_all_rows_costs_32_requests(job, sandbox, text, sentence):
    sandbox.faults.when("gemini.generateContent", "poison", Fault(kind="error", http_status=400, message="no"))
    with pytest.raises(PermanentFailureError) as caught:
        job.run([{"id": number, "text": f"{text} {number}"} for number in range(200)])
    assert str(caught.value).startswith(sentence)
    assert len(sandbox.requests) == 32


@pytest.mark.full
def test_a_key_that_no_row_has_ends_the_job_before_anything_is_sent(job, sandbox):
    job.write(rows(20))
    with pytest.raises(JobSpecError, match=r"^20 of 20 rows have no key: correct `source\.key` or the rows\. "):
        job.run(source={**job.spec["source"], "key": ["nr"]})
    assert len(sandbox.requests) == 0


@pytest.mark.full
def test_a_file_without_rows_of_its_format_ends_the_job_before_anything_is_sent(job, sandbox):
    with pytest.raises(
        JobSpecError, match=r"^20 of 20 lines are no rows: correct `source\.format` or the file\. "
    ):
        job.run(["id;text"] * 20)
    assert len(sandbox.requests) == 0


def test_a_server_that_replies_503_to_all_rows_ends_the_job_and_can_be_retried(job, sandbox):
    sandbox.faults.when("gemini.generateContent", "row", Fault(kind="error", http_status=503))
    with pytest.raises(NothingAnsweredError, match=r"^300 of 300 rows failed by errors of the server") as caught:
        job.run(rows(300), limits={"max_outage_seconds": 2})
    assert caught.value.retryable
    assert len(sandbox.requests) <= 64
