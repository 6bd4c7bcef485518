"""Jobs with `inference.mode` 'batch' against the emulated providers."""

from __future__ import annotations

import io
import json
import logging
import math
import re
import shutil
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean

import apache_beam as beam
import pytest
from anthropic import Anthropic
from google.cloud.storage import Client
from llmbeam_sandbox import Fault
from llmbeam_sandbox.batch_inference.settings import BatchSettings
from waiting import scaled, until

from airflow_provider_llmbeam.endpoints.sweep import BatchInferenceJobs, sweep
from airflow_provider_llmbeam.exceptions import (
    BudgetExceededError,
    JobFailedError,
    JobRefusedError,
    LLMBeamError,
    error_class,
)
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.__main__ import main
from airflow_provider_llmbeam.pipeline.batch_inference import adopt, decide, monitor
from airflow_provider_llmbeam.pipeline.batch_inference import run as batch_run
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import Sums, read_manifest, write_manifest
from airflow_provider_llmbeam.pipeline.batch_inference.monitor import Monitor
from airflow_provider_llmbeam.pipeline.batch_inference.run import PILOT_ROWS, BatchInference
from airflow_provider_llmbeam.pipeline.command import EXIT_FAILED, EXIT_PENDING
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.estimate.estimate import SampleUsage, read_estimate
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.pipeline.transforms.reuse import journal_entries
from airflow_provider_llmbeam.providers import rest as http
from airflow_provider_llmbeam.providers.anthropic.batch import MessageBatches
from airflow_provider_llmbeam.providers.batch import BatchLimits, BatchProvider, open_provider
from airflow_provider_llmbeam.providers.errors import BatchPendingError
from airflow_provider_llmbeam.providers.gemini import batch as gemini
from airflow_provider_llmbeam.providers.gemini.batch import GeminiBatches
from airflow_provider_llmbeam.providers.openai.batch import OpenAIBatches
from airflow_provider_llmbeam.providers.vertex_batch import VertexAIBatches
from airflow_provider_llmbeam.spec import JobSpec
from tests.clouds import trust_in_aiohttp
from tests.unit.pipeline.batch_inference.moments import KILLS

pytestmark = [pytest.mark.promise(2), pytest.mark.promise(4), pytest.mark.usefixtures("quick_batch_polls")]

ROWS = 120
NOTHING_SENT = SampleUsage(requests=0, failed=0, input_tokens=0, output_tokens=0, cost_usd=0.0)
PRICE = {"input_usd_per_million_tokens": 0.30, "output_usd_per_million_tokens": 2.50}

JOB = {
    "name": "night",
    "prompt": {"template": "Say it: {{ row.text }}"},
    "inference": {"mode": "batch"},
    "limits": {"price": PRICE},
    "sink": {"uri": "gs://rows/out/"},
}
CLAUDE = {"generation": {"max_output_tokens": 500}}


@pytest.fixture
def rows(google, sandbox):
    """The address of the rows in Cloud Storage."""
    lines = "".join(json.dumps({"id": number, "text": f"text {number}"}) + "\n" for number in range(ROWS))
    Client().bucket("rows").blob("in.jsonl").upload_from_string(lines)
    return "gs://rows/in.jsonl"


@pytest.fixture
def vertex(rows, google, sandbox):
    """A job with a Gemini model of Vertex AI."""
    model = {
        "type": "gemini",
        "name": "gemini-2.5-flash",
        "project": google.project,
        "base_url": sandbox.gemini_url,
    }
    return {**JOB, "source": {"uri": rows, "key": ["id"]}, "model": model}


@pytest.fixture
def developer(sandbox, tmp_path):
    """A job with a model of the Developer API, which takes uploads of files of this machine."""
    rows = tmp_path / "in.jsonl"
    rows.write_text("".join(json.dumps({"id": n, "text": f"text {n}"}) + "\n" for n in range(ROWS)))
    return {
        **JOB,
        "source": {"uri": str(rows), "key": ["id"]},
        "model": {"type": "gemini", "name": "gemini-2.5-flash", "base_url": sandbox.gemini_url},
        "sink": {"uri": f"{tmp_path}/out"},
    }


@pytest.fixture
def openai(developer, google, monkeypatch):
    """The same with a model of OpenAI."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    trust_in_aiohttp(google, monkeypatch)
    return developer | {"model": {"type": "openai", "name": "gpt-5-mini"}}


@pytest.fixture
def claude(developer, sandbox, monkeypatch):
    """The same with a model of Anthropic."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    return (
        developer | {"model": {"type": "anthropic", "name": "claude-haiku-5-5", "base_url": sandbox.url}} | CLAUDE
    )


@pytest.fixture
def claude_on_vertex(vertex, sandbox, google):
    """The same with a model of Claude on Vertex AI."""
    model = {"type": "anthropic", "name": "claude-haiku-4-5@20251001", "project": google.project}
    return vertex | {"model": model | {"base_url": sandbox.gemini_url}} | CLAUDE


@pytest.fixture(
    params=[
        "vertex",
        *(
            pytest.param(other, marks=pytest.mark.full)
            for other in ("developer", "openai", "claude", "claude_on_vertex")
        ),
    ]
)
def job(request):
    """A job of each provider; what differs between them is proven by tests/unit/providers/batch."""
    return request.getfixturevalue(request.param)


def report_of(manifest):
    with storage.open(manifest["report_uri"]) as file:
        return json.loads(file.read())


@pytest.mark.full
def test_labels_are_on_the_job_and_its_pilot_and_not_in_its_lines(vertex, sandbox):
    """Vertex AI returns the request of each line, by which its answer is found."""
    labels = {"llmbeam-dag": "nightly", "team": "data"}
    spec = JobSpec.parse(vertex | {"model": {**vertex["model"], "labels": labels}})
    assert run(spec)["origins"]["batch"] == ROWS - PILOT_ROWS
    assert sandbox.token_bill.by_label("team") == {"data": sandbox.token_bill.nano_usd}
    assert {request.labels for request in sandbox.requests if request.is_billed} == {tuple(labels.items())}


def test_every_row_is_answered_once_at_half_the_price(job, sandbox):
    sandbox.batches.settings = BatchSettings(reorders_echo=True)
    spec = JobSpec.parse(job)
    manifest = run(spec)
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    assert manifest["origins"]["batch"] == ROWS - PILOT_ROWS
    answers = {charge.tier: charge.answers for charge in sandbox.token_bill.charges}
    assert answers == {"batch": ROWS - PILOT_ROWS, "standard": PILOT_ROWS}
    report = report_of(manifest)
    assert report["cost_usd"] == pytest.approx(sandbox.token_bill.nano_usd / 1e9, abs=1e-6)
    assert storage.match(f"{spec.paths.home_uri}batch/**") == []


def test_rows_that_the_batch_does_not_answer_are_sent_online(job, sandbox):
    sandbox.batches.settings = BatchSettings(fail_ratio=0.1, malformed_ratio=0.01, missing_ratio=0.02)
    manifest = run(JobSpec.parse(job))
    assert manifest["rows"]["answered"] == ROWS
    rest = ROWS - PILOT_ROWS - manifest["origins"]["batch"]
    assert manifest["origins"]["fresh"] == rest > 0.1 * (ROWS - PILOT_ROWS)


@pytest.mark.full
def test_answers_that_the_model_refuses_are_paid_for_once_although_those_of_earlier_runs_are_sent_again(
    developer, sandbox
):
    texts = [f"text {number}{' [[block]]' if number % 3 == 0 else ''}" for number in range(ROWS)]
    lines = "".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts))
    Path(developer["source"]["uri"]).write_text(lines)
    limits = {"price": PRICE, "retry_refused": True, "max_dead_letter_ratio": 1.0}
    spec = JobSpec.parse(developer | {"limits": limits})
    for _ in range(2):
        before = billed(sandbox)
        manifest = run(spec)
        assert manifest["rows"] == {
            "read": ROWS,
            "answered": ROWS - ROWS // 3,
            "dead_letter": ROWS // 3,
            "skipped": 0,
        }
        assert billed(sandbox) - before == (ROWS if not before else ROWS // 3)


def billed(sandbox):
    return sum(charge.answers for charge in sandbox.token_bill.charges)


@pytest.mark.parametrize(
    "outcome",
    ["stuck", *(pytest.param(other, marks=pytest.mark.full) for other in ("failed", "stuck_at", "expired"))],
)
def test_whatever_becomes_of_the_batch_all_rows_are_answered(developer, sandbox, outcome, monkeypatch):
    monkeypatch.setattr(decide, "CANCEL_SECONDS", 1.0)
    sandbox.batches.settings = BatchSettings(outcome=outcome, run_seconds=0.2)
    inference = {"mode": "batch", "max_batch_wait_seconds": 1.0}
    manifest = run(JobSpec.parse(developer | {"inference": inference}))
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}


def swept(spec):
    """Sweeps what was made until tomorrow, and returns what was cancelled."""
    provider, made_before = open_provider(spec.model, output_uri=""), time.time() + 86_400
    jobs = BatchInferenceJobs(provider=provider, deployment=spec.deployment, made_before=made_before)
    return sweep([jobs], deployments=[spec.deployment], dry_run=False, log=logging.getLogger()).cancelled


@pytest.mark.full
def test_a_run_that_waits_for_a_job_that_is_swept_sends_its_rows_online(vertex, sandbox, monkeypatch):
    sandbox.batches.settings = BatchSettings(outcome="stuck")
    spec, cancelled, wait = JobSpec.parse(vertex | {"deployment": "prod"}), [], Monitor._wait

    def sweep_first(self, seconds):
        cancelled.extend(swept(spec))
        wait(self, seconds)

    monkeypatch.setattr(Monitor, "_wait", sweep_first)
    manifest = run(spec)
    assert len(cancelled) == 1
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    assert manifest["origins"]["fresh"] == ROWS - PILOT_ROWS


@pytest.mark.full
def test_a_task_whose_job_was_swept_while_it_was_deferred_sends_its_rows_online(developer, sandbox):
    sandbox.batches.settings = BatchSettings(outcome="stuck")
    spec = JobSpec.parse(developer | {"deployment": "prod"})
    with pytest.raises(BatchPendingError):
        run(spec, waits=False)
    assert len(swept(spec)) == 1
    manifest = run(spec, waits=False)
    assert manifest["rows"]["answered"] == ROWS
    assert manifest["origins"]["fresh"] == ROWS - PILOT_ROWS


@pytest.mark.full
def test_a_refusal_by_the_provider_is_final_and_names_the_jobs_that_run(developer, sandbox, tmp_path):
    sandbox.batches.settings = BatchSettings(outcome="stuck")
    spec, result = tmp_path / "job.json", tmp_path / "result.json"
    spec.write_text(json.dumps(developer))
    arguments = [f"--spec={spec}", f"--result={result}", "--defer"]
    assert main(arguments) == EXIT_PENDING
    (job,) = read_manifest(JobSpec.parse(developer)).jobs.values()
    sandbox.faults.every("gemini.batches.list", 1, Fault(kind="error", http_status=401, message="no key"))
    assert main(arguments) == EXIT_FAILED
    error = json.loads(result.read_text())["error"]
    assert not error_class(error["type"], JobFailedError).retryable
    assert (
        f"no key. Batch-inference jobs that were submitted, and may run and bill: {job.name}." in error["message"]
    )


@pytest.mark.full
@pytest.mark.parametrize("status", [403, 404])
def test_rows_whose_results_the_provider_has_deleted_are_sent_online(
    developer, sandbox, caplog, monkeypatch, status
):
    monkeypatch.setattr(gemini, "KEPT_SECONDS", 0.0)
    sandbox.faults.every("gemini.files.download", 1, Fault(kind="error", http_status=status, message="gone"))
    manifest = run(JobSpec.parse(developer))
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    report = report_of(manifest)
    assert manifest["origins"]["fresh"] == report["requests"]["unreturned"] == ROWS - PILOT_ROWS
    assert report["full_price"]["rows"] == ROWS - PILOT_ROWS
    assert report["full_price"]["because"] == "all jobs have ended; 88 × succeeded: the job has no results"
    assert 0 < report["full_price"]["extra_usd"] < report["costs_usd"]["standard"] / 2
    assert "no longer exists, and its rows are sent online" in caplog.text


def test_the_dead_letter_quotes_what_batch_inference_said_of_its_row(developer, sandbox, monkeypatch, tmp_path):
    sandbox.batches.settings = BatchSettings(fail_ratio=0.1)
    count = BatchInference._count_unreturned

    def refuse_the_rest(batch, harvested):
        count(batch, harvested)
        sandbox.faults.every("gemini.generateContent", 1, Fault(kind="error", http_status=400, message="not now"))

    monkeypatch.setattr(BatchInference, "_count_unreturned", refuse_the_rest)
    manifest = run(JobSpec.parse(developer))
    ((said, failed),) = report_of(manifest)["batch_errors"].items()
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS - failed, "dead_letter": failed, "skipped": 0}
    rows = [
        json.loads(each) for each in (tmp_path / "out/dead_letter-00000-of-00001.jsonl").read_text().splitlines()
    ]
    assert {row["llmbeam_error"]["message"] for row in rows} == {
        f"not now Batch inference has failed it before: {said}"
    }
    assert manifest["full_price"]["rows"] == failed


def test_a_refused_download_fails_the_try_and_the_next_one_takes_the_paid_answers(developer, sandbox):
    fault = Fault(kind="error", http_status=403, message="billing is being updated")
    sandbox.faults.queue("gemini.files.download", fault)
    with pytest.raises(JobFailedError, match=r"billing is being updated\..* Clear the task when the access"):
        run(JobSpec.parse(developer))
    manifest = run(JobSpec.parse(developer))
    assert manifest["origins"]["batch"] == ROWS - PILOT_ROWS
    answers = {charge.tier: charge.answers for charge in sandbox.token_bill.charges}
    assert answers == {"batch": ROWS - PILOT_ROWS, "standard": PILOT_ROWS}


@pytest.mark.full
def test_answers_beside_a_deleted_file_of_errors_are_used(openai, sandbox, caplog):
    sandbox.batches.settings = BatchSettings(fail_ratio=0.1)
    sandbox.faults.every("openai.files.content", 2, Fault(kind="error", http_status=404, message="gone"))
    manifest = run(JobSpec.parse(openai))
    assert caplog.text.count("no longer exists") == 1
    assert manifest["rows"]["answered"] == ROWS
    assert 0 < manifest["origins"]["fresh"] < 0.2 * ROWS


@pytest.mark.full
def test_a_job_whose_state_was_deleted_runs_again_as_a_new_batch(openai, sandbox):
    """OpenAI still lists the first batch, whose files are deleted."""
    for runs in (1, 2, 3):
        manifest = run(JobSpec.parse(openai))
        assert manifest["origins"]["batch"] == ROWS - PILOT_ROWS
        assert sum(request.method == "openai.batches.create" for request in sandbox.requests) == runs
        shutil.rmtree(Path(openai["sink"]["uri"]) / ".llmbeam" / openai["name"])
        second = int(time.time())
        # OpenAI's times are whole seconds: a batch of the same one may be that of this run.
        until(lambda: int(time.time()) > second, "the next second")  # noqa: B023


@pytest.mark.full
def test_an_unread_batch_whose_state_was_deleted_is_used(openai, sandbox):
    with pytest.raises(BatchPendingError):
        run(JobSpec.parse(openai), waits=False)
    shutil.rmtree(Path(openai["sink"]["uri"]) / ".llmbeam")
    manifest = run(JobSpec.parse(openai))
    assert manifest["origins"]["batch"] == ROWS - PILOT_ROWS
    assert sum(request.method == "openai.batches.create" for request in sandbox.requests) == 1


@pytest.mark.full
def test_a_deletion_that_the_provider_refuses_keeps_no_later_run_back(developer, sandbox, caplog):
    sandbox.faults.every("gemini.batches.delete", 1, Fault(kind="error", http_status=403, message="no delete"))
    for origin in ("batch", "resumed"):
        caplog.clear()
        assert run(JobSpec.parse(developer))["origins"][origin] >= ROWS - PILOT_ROWS
        assert "could not be deleted" in caplog.text


def end_when_submitted(monkeypatch, sandbox):
    """Lets the last moment of batch inference come as soon as there is a job."""
    created = ("gemini.batches.create", "vertex.batchPredictionJobs.create", "anthropic.batches.create")

    def switch_at(plan, unanswered_ratio):
        return 0.0 if any(request.method in created for request in sandbox.requests) else math.inf

    monkeypatch.setattr(decide.BatchPlan, "switch_at", switch_at)


#: Calls at which a try ends, one for each moment of docs/reference/batch-cases.md: whose, its name, and whether it
#: was done.
KILLED_AT = {
    "request files are written": (batch_run, "read_prepared", False),
    "the intent is written": (batch_run, "write_manifest", False),
    "the job is submitted": (BatchProvider, "submit", False),
    "the job exists, and is not recorded": (BatchProvider, "submit", True),
    "the task is deferred": (Monitor, "_wait", False),
    "the job is polled": (Monitor, "_poll", True),
    "the job is cancelled": (BatchProvider, "cancel", True),
    "results are read": (batch_run, "result_files", False),
    "answers are in the journal, and not counted": (Sums, "model_dump_json", False),
    "the harvest is recorded": (BatchInference, "_save", False),
    "the rest is sent online": (BatchInference, "fill_journal", True),
    "the job is deleted": (BatchProvider, "delete", False),
}


class Killed(BaseException):
    """The end of a process, which no part of it handles."""


def run_until_killed(spec, moment, api, monkeypatch):
    """Runs a job until a moment of `KILLED_AT`, at an API whose provider is a class."""
    owner, name, is_done = KILLED_AT[moment]
    owner = api if owner is BatchProvider else owner
    call = getattr(owner, name)

    def killed(*args, **options):
        if is_done:
            call(*args, **options)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, killed)
        # Beam's runner wraps what ends one of its workers.
        with pytest.raises(JobFailedError if owner is Sums else Killed):
            run(spec)


IN_THE_LOOP = ("the job exists, and is not recorded", "results are read", "the job is deleted")


#: The API that a provider's job calls, by the fixture of the job.
APIS = {
    "vertex": (VertexAIBatches, "vertex.batchPredictionJobs.create"),
    "claude": (MessageBatches, "anthropic.batches.create"),
}


@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        (kind, name)
        if (kind == "vertex" and name in IN_THE_LOOP) or (kind, name) == ("claude", IN_THE_LOOP[0])
        else pytest.param(kind, name, marks=pytest.mark.full)
        for kind in APIS
        for name in KILLS
    ],
)
def test_a_try_that_ends_at_any_moment_is_continued_by_the_next_one_which_pays_for_nothing_again(
    request, sandbox, monkeypatch, kind, moment
):
    monkeypatch.setattr(adopt, "LISTED_SECONDS", 1.0)
    job, (api, create) = request.getfixturevalue(kind), APIS[kind]
    sandbox.batches.settings = BatchSettings(run_seconds=0.5)
    if is_cancelled := moment == "the job is cancelled":
        sandbox.batches.settings = BatchSettings(outcome="stuck")
        end_when_submitted(monkeypatch, sandbox)
    spec = JobSpec.parse(job)
    run_until_killed(spec, moment, api, monkeypatch)
    manifest = run(spec)
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    answers = {charge.tier: charge.answers for charge in sandbox.token_bill.charges}
    batch = 0 if is_cancelled else ROWS - PILOT_ROWS
    assert answers == {"standard": ROWS - batch} | ({"batch": batch} if batch else {})
    assert sum(request.method == create for request in sandbox.requests) == 1
    assert storage.match(f"{spec.paths.home_uri}batch/**") == []


def test_a_batch_without_a_name_whose_creation_got_no_reply_is_adopted_among_others(claude, sandbox, caplog):
    sandbox.batches.settings = BatchSettings(run_seconds=0.5)
    spec = JobSpec.parse(claude)
    foreign = Anthropic(base_url=sandbox.url, api_key="k", max_retries=0).messages.batches
    params = {"model": "claude-haiku-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    others = [{"custom_id": f"other-{number}", "params": params} for number in range(ROWS - PILOT_ROWS)]
    theirs = foreign.create(requests=others).id
    sandbox.faults.queue("anthropic.batches.create", Fault(kind="truncated"))
    manifest = run(spec)
    assert manifest["rows"]["answered"] == ROWS
    assert manifest["origins"]["batch"] == ROWS - PILOT_ROWS
    assert sum(request.method == "anthropic.batches.create" for request in sandbox.requests) == 2
    assert not any(request.method == "anthropic.batches.cancel" for request in sandbox.requests)
    assert foreign.retrieve(theirs).processing_status == "ended"
    answers = {charge.tier: charge.answers for charge in sandbox.token_bill.charges}
    assert answers["standard"] == PILOT_ROWS


def test_past_the_deadline_a_batch_in_doubt_is_named_and_its_rows_are_sent_online(
    claude, sandbox, caplog, monkeypatch
):
    sandbox.batches.settings = BatchSettings(outcome="stuck")
    sandbox.faults.queue("anthropic.batches.create", Fault(kind="truncated"))
    end_when_submitted(monkeypatch, sandbox)
    manifest = run(JobSpec.parse(claude))
    assert manifest["rows"]["answered"] == ROWS
    assert "its creation got no reply, and it is not cancelled; it may be one of: msgbatch_" in caplog.text
    assert "may still bill: " in report_of(manifest)["full_price"]["because"]
    assert not any(request.method == "anthropic.batches.cancel" for request in sandbox.requests)


@pytest.mark.full
def test_the_estimate_of_a_job_of_claude_is_half_the_online_price(claude):
    estimate = make_estimate(JobSpec.parse(claude), PILOT_ROWS)
    online = {way.tier: way.cost_usd for way in estimate.ways}["standard"]
    assert estimate.batch_cost_usd == pytest.approx(online / 2, rel=1e-3)


@pytest.mark.full
def test_a_submission_that_created_nothing_is_sent_again_once_that_is_known(claude, sandbox, monkeypatch):
    monkeypatch.setattr(adopt, "LISTED_SECONDS", 1.0)
    sandbox.faults.queue("anthropic.batches.create", Fault(kind="error", http_status=500))
    manifest = run(JobSpec.parse(claude))
    assert manifest["origins"]["batch"] == ROWS - PILOT_ROWS
    statuses = [each.http_status for each in sandbox.requests if each.method == "anthropic.batches.create"]
    assert statuses == [500, 200]


@pytest.mark.full
def test_no_row_is_lost_or_paid_twice_with_a_tenth_errored_and_a_twentieth_expired(claude, sandbox, monkeypatch):
    monkeypatch.setattr("llmbeam_sandbox.batch_inference.state.STUCK_SHARE", 0.95)
    sandbox.batches.settings = BatchSettings(outcome="expired", run_seconds=0.5, fail_ratio=0.1)
    manifest = run(JobSpec.parse(claude))
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    answers = {charge.tier: charge.answers for charge in sandbox.token_bill.charges}
    assert sum(answers.values()) == ROWS
    assert answers["batch"] == manifest["origins"]["batch"] < 0.9 * (ROWS - PILOT_ROWS)
    assert report_of(manifest)["cost_usd"] == pytest.approx(sandbox.token_bill.nano_usd / 1e9, abs=1e-6)
    errors = report_of(manifest)["batch_errors"]
    assert any("the request was expired" in error for error in errors)
    assert any("Overloaded" in error for error in errors)


@pytest.mark.full
def test_a_deadline_cancels_a_batch_of_claude_and_sends_the_rest_online(claude, sandbox, monkeypatch):
    sandbox.batches.settings = BatchSettings(outcome="stuck_at")
    end_when_submitted(monkeypatch, sandbox)
    manifest = run(JobSpec.parse(claude))
    assert manifest["rows"]["answered"] == ROWS
    assert any(request.method == "anthropic.batches.cancel" for request in sandbox.requests)
    answers = {charge.tier: charge.answers for charge in sandbox.token_bill.charges}
    assert sum(answers.values()) == ROWS
    assert answers["batch"] > 0


@pytest.mark.full
def test_a_wrong_request_of_a_batch_is_a_row_of_the_dead_letter_that_bills_nothing(claude, sandbox, tmp_path):
    before = "batch.anthropicRow"
    sandbox.faults.when(before, "text 100", Fault(kind="error", http_status=400, message="wrong"))
    sandbox.faults.when("anthropic.messages", "text 100", Fault(kind="error", http_status=400, message="wrong"))
    manifest = run(JobSpec.parse(claude))
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS - 1, "dead_letter": 1, "skipped": 0}
    assert billed(sandbox) == ROWS - 1


@pytest.mark.full
def test_a_job_that_somebody_deletes_counts_as_cancelled(developer, sandbox, monkeypatch):
    monkeypatch.setattr(monitor, "SURE_SECONDS", 0.0)
    sandbox.batches.settings = BatchSettings(outcome="stuck")
    sandbox.faults.every("gemini.batches.get", 1, Fault(kind="error", http_status=404))
    manifest = run(JobSpec.parse(developer))
    assert manifest["origins"]["fresh"] == ROWS - PILOT_ROWS


@pytest.mark.full
def test_the_report_counts_answers_that_a_cancelled_job_bills_and_does_not_return(vertex, sandbox):
    sandbox.batches.settings = BatchSettings(outcome="stuck_at", run_seconds=0.2, cancel_returns_rows=False)
    manifest = run(JobSpec.parse(vertex | {"inference": {"mode": "batch", "max_batch_wait_seconds": scaled(4.0)}}))
    assert manifest["rows"]["answered"] == manifest["origins"]["fresh"] + manifest["origins"]["resumed"] == ROWS
    answers = {charge.tier: charge.answers for charge in sandbox.token_bill.charges}
    assert report_of(manifest)["requests"]["unreturned"] == answers["batch"] > 0


def test_without_time_for_batch_inference_all_rows_are_sent_online(developer, sandbox, caplog):
    with caplog.at_level("INFO"):
        manifest = run(JobSpec.parse(developer | {"inference": {"mode": "auto", "finish_by": "PT5M"}}))
    assert manifest["origins"]["fresh"] == ROWS - PILOT_ROWS
    assert "`inference.mode` 'auto': standard is the cheapest way that is finished in time" in caplog.text
    cost_usd = report_of(manifest)["cost_usd"]
    assert cost_usd == pytest.approx(sandbox.token_bill.nano_usd / 1e9, abs=1e-6), "with the pilot"


def test_a_batch_that_threatens_the_deadline_is_cancelled_and_its_rows_are_sent_online(
    developer, sandbox, caplog, monkeypatch
):
    sandbox.batches.settings = BatchSettings(run_seconds=3600.0)
    end_when_submitted(monkeypatch, sandbox)
    with caplog.at_level("INFO"):
        manifest = run(JobSpec.parse(developer | {"inference": {"mode": "batch", "finish_by": "PT1H"}}))
    assert manifest["rows"]["answered"] == ROWS
    assert "Batch inference is cancelled" in caplog.text
    assert "answered by `inference.finish_by`" in caplog.text


def needed_in(job, **duration):
    """The job whose answers are needed after a time from now."""
    finish_by = datetime.now(UTC) + timedelta(**duration)
    return JobSpec.parse(job | {"inference": {"mode": "batch", "finish_by": finish_by.isoformat()}})


@pytest.mark.full
def test_a_later_deadline_of_a_retry_lets_the_batch_go_on(developer, sandbox, caplog):
    sandbox.batches.settings = BatchSettings(run_seconds=1.0)
    spec = needed_in(developer, hours=8)
    with pytest.raises(BatchPendingError):
        run(spec, waits=False)
    history = decide.MonitorHistory(first_cancelled_at=1.0)
    earlier = read_manifest(spec).changed(deadline_at=time.time() - 1.0, history=history)
    write_manifest(spec, earlier)
    with caplog.at_level("INFO"):
        manifest = run(spec)
    assert manifest["origins"]["batch"] == ROWS - PILOT_ROWS
    assert "`inference.finish_by` has changed since batch inference began" in caplog.text
    assert report_of(manifest)["deadline_at"] == spec.inference.finish_by.timestamp()


@pytest.mark.full
def test_an_earlier_deadline_of_a_retry_ends_the_wait_for_the_batch(developer, sandbox):
    sandbox.batches.settings = BatchSettings(outcome="stuck")
    with pytest.raises(BatchPendingError):
        run(needed_in(developer, hours=8), waits=False)
    assert run(needed_in(developer, minutes=2))["origins"]["fresh"] == ROWS - PILOT_ROWS


@pytest.mark.full
def test_a_later_deadline_gives_prompts_to_the_batch_for_which_there_was_no_time(developer, sandbox):
    spec = needed_in(developer, minutes=1)
    BatchInference(spec, beam.Pipeline, waits=False).fill_journal()
    assert read_manifest(spec).is_over
    assert run(needed_in(developer, hours=8))["origins"]["batch"] > 0


@pytest.mark.full
def test_a_duration_counts_from_the_first_try(developer, sandbox, caplog):
    sandbox.batches.settings = BatchSettings(outcome="stuck")
    spec = JobSpec.parse(developer | {"inference": {"mode": "batch", "finish_by": "PT8H"}})
    for _ in range(2):
        with pytest.raises(BatchPendingError), caplog.at_level("INFO"):
            run(spec, waits=False)
    assert "has changed" not in caplog.text


@pytest.mark.full
def test_answers_of_an_earlier_batch_do_not_shorten_the_time_online(developer, tmp_path):
    """They have no latency; of the rest, `inference.finish_by` would then be missed."""
    spec = JobSpec.parse(developer | {"cache": {"scope": "night"}, "state_uri": f"{tmp_path}/state"})
    run(spec)
    known = [entry.outcome for entry in journal_entries(spec, 0.0)]
    online = [each.latency_seconds for each in known if each.service_tier == "standard"]
    assert (len(known), len(online)) == (ROWS, PILOT_ROWS)
    assert make_estimate(spec, 0).latency_seconds == round(fmean(online), 3)


def test_the_estimate_shows_each_way_and_the_one_that_auto_takes(developer):
    spec = JobSpec.parse(developer | {"inference": {"mode": "auto", "finish_by": "PT3H"}})
    found = make_estimate(spec)
    online, flex, batch = found.ways
    assert (online.tier, flex.tier, batch.tier) == ("standard", "flex", "batch")
    assert online.cost_usd == pytest.approx(found.cost_usd, abs=1e-6)
    assert batch.cost_usd < online.cost_usd
    assert flex.cost_usd == pytest.approx(0.6 * online.cost_usd, rel=0.001)
    assert online.is_in_time
    assert batch.is_in_time
    assert found.auto.startswith("batch is the cheapest way that is finished in time")
    assert [line for line in found.lines() if line.startswith(("Way", "Auto"))] == [
        f"Way       {online}",
        f"Way       {flex}",
        f"Way       {batch}",
        f"Auto      {found.auto}",
    ]
    assert read_estimate(spec) == found


@pytest.mark.full
def test_the_report_compares_the_estimate_with_the_run_without_its_pilot(developer):
    report = json.loads(storage.read(run(JobSpec.parse(developer))["report_uri"]))
    found = report["estimate"]
    assert found["requests"] == {"estimated": ROWS - PILOT_ROWS, "actual": ROWS - PILOT_ROWS, "ratio": None}
    for name in ("input_tokens", "output_tokens", "cost_usd"):
        assert found[name]["ratio"] == pytest.approx(1.0, abs=0.02)
    assert found["cost_usd"]["actual"] < report["cost_usd"]


@pytest.mark.full
def test_auto_sends_prompts_with_a_long_head_online_where_a_prefix_cache_is_cheaper(developer):
    changes = {
        "prompt": {**developer["prompt"], "system": "word " * 4_000},
        "limits": {"price": {**PRICE, "cached_input_usd_per_million_tokens": 0.03}},
        "inference": {"mode": "auto", "finish_by": "PT3H"},
    }
    found = make_estimate(JobSpec.parse(developer | changes))
    assert found.auto.startswith("standard with a prefix cache is the cheapest way")
    costs = {(way.tier, way.prefix_cache): way.cost_usd for way in found.ways}
    assert costs["standard", True] < 0.2 * costs["standard", False]
    assert found.cost_usd == found.planned_cost_usd == pytest.approx(costs["standard", True], abs=1e-6)
    budget = {**changes["limits"], "budget_usd": 0.5 * costs["standard", False]}
    found = make_estimate(JobSpec.parse(developer | changes | {"limits": budget, "inference": {"mode": "online"}}))
    assert not found.exceeds_budget
    without = {"limits": budget, "inference": {"mode": "online", "prefix_cache": False}}
    assert make_estimate(JobSpec.parse(developer | changes | without)).exceeds_budget


@pytest.mark.full
def test_auto_takes_flex_only_where_the_spec_allows_it(developer):
    inference = {"mode": "auto", "finish_by": "PT1H"}
    found = make_estimate(JobSpec.parse(developer | {"inference": inference}), sample_size=32)
    assert "flex" in [way.tier for way in found.ways]
    assert "flex" not in found.auto
    inference["service_tier"] = "flex_then_standard"
    found = make_estimate(JobSpec.parse(developer | {"inference": inference}), sample_size=32)
    assert "flex is the cheapest way" in found.auto


@pytest.mark.full
@pytest.mark.parametrize(("tier", "exceeds"), [("standard", True), ("flex_then_standard", False), ("flex", False)])
def test_a_budget_is_compared_with_the_price_of_the_tier(developer, tier, exceeds):
    full = make_estimate(JobSpec.parse(developer), sample_size=0).cost_usd
    limits = {"price": PRICE, "budget_usd": 0.7 * full}
    spec = JobSpec.parse(developer | {"limits": limits, "inference": {"service_tier": tier}})
    assert make_estimate(spec, sample_size=0).exceeds_budget is exceeds


def test_the_estimate_of_an_online_job_shows_the_other_ways_and_does_not_choose_one(developer):
    found = make_estimate(JobSpec.parse(developer | {"inference": {}}), sample_size=0)
    assert len(found.ways) == 3
    assert not any(line.startswith("Auto") for line in found.lines())


def test_the_estimate_of_a_job_that_can_only_be_run_online_shows_no_ways(developer):
    found = make_estimate(JobSpec.parse(developer | {"inference": {}, "model": {"type": "echo"}}), sample_size=0)
    assert (found.ways, found.auto) == ((), "")


@pytest.mark.full
@pytest.mark.parametrize(("ratio", "exceeds"), [(0.4, True), (0.75, False)])
def test_the_estimate_of_a_batch_compares_its_own_cost_with_the_budget(developer, ratio, exceeds):
    cost = make_estimate(JobSpec.parse(developer), sample_size=0).cost_usd
    limits = {"price": PRICE, "budget_usd": cost * ratio}
    assert make_estimate(JobSpec.parse(developer | {"limits": limits}), sample_size=0).exceeds_budget is exceeds


def test_a_batch_above_the_budget_is_not_submitted(developer, sandbox):
    limits = {"price": PRICE, "budget_usd": 0.001}
    with pytest.raises(BudgetExceededError, match="No job was submitted"):
        run(JobSpec.parse(developer | {"limits": limits}))
    assert {charge.tier for charge in sandbox.token_bill.charges} == {"standard"}


@pytest.mark.full
def test_a_batch_that_is_above_what_the_first_prompts_have_left_of_the_budget_is_not_submitted(
    developer, sandbox, tmp_path
):
    found = make_estimate(JobSpec.parse(developer | {"sink": {"uri": f"{tmp_path}/other"}}), PILOT_ROWS)
    limits = {"price": PRICE, "budget_usd": found.batch_cost_usd + found.sample_usage.cost_usd / 2}
    with pytest.raises(BudgetExceededError, match=r"the first prompts cost .*No job was submitted"):
        run(JobSpec.parse(developer | {"limits": limits}))
    assert "gemini.files.upload" not in {request.method for request in sandbox.requests}


@pytest.mark.full
def test_a_try_after_a_spent_budget_has_a_new_one_without_what_the_batch_has_cost(developer, sandbox, tmp_path):
    sandbox.batches.settings = BatchSettings(fail_ratio=0.9)
    found = make_estimate(JobSpec.parse(developer | {"sink": {"uri": f"{tmp_path}/other"}}), PILOT_ROWS)
    spent, rest = found.sample_usage.cost_usd, found.standard_cost_usd

    def with_budget(usd):
        return JobSpec.parse(developer | {"limits": {"price": PRICE, "budget_usd": usd, "max_in_flight": 2}})

    first = with_budget(spent + 0.6 * rest)
    with pytest.raises(BudgetExceededError, match="the first prompts and batch inference had cost"):
        run(first)
    assert 0 < 0.45 * rest - read_manifest(first).cost_usd < 0.1 * rest
    manifest = run(with_budget(0.45 * rest))
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    assert report_of(manifest)["budget_usd"] == pytest.approx(0.45 * rest)


@pytest.mark.full
def test_auto_refuses_no_budget_in_which_a_prefix_cache_answers_all_rows(developer):
    changes = {
        "prompt": {**developer["prompt"], "system": "word " * 4_000},
        "limits": {"price": {**PRICE, "cached_input_usd_per_million_tokens": 0.03}},
        "inference": {"mode": "auto", "finish_by": "PT3H"},
    }
    found = make_estimate(JobSpec.parse(developer | changes), PILOT_ROWS)
    budget = 0.9 * found.batch_cost_usd
    spec = JobSpec.parse(developer | changes | {"limits": {**changes["limits"], "budget_usd": budget}})
    batch = BatchInference(spec, beam.Pipeline)
    assert not batch._takes_batch(found.model_copy(update={"sample_usage": NOTHING_SENT}))
    with pytest.raises(BudgetExceededError, match="No job was submitted"):
        batch._takes_batch(found)


@pytest.mark.full
def test_a_source_without_rows_is_skipped_as_online(developer, sandbox):
    Path(developer["source"]["uri"]).write_text("")
    manifest = run(JobSpec.parse(developer | {"source": {**developer["source"], "on_empty": "skip"}}))
    assert "has no rows" in manifest["skipped_because"]


@pytest.mark.full
def test_a_provider_that_cannot_be_polled_for_a_while_is_polled_again(developer, sandbox, monkeypatch):
    monkeypatch.setattr(http, "_RETRY_SECONDS", 0.0)
    sandbox.batches.settings = BatchSettings(run_seconds=0.5)
    spec = JobSpec.parse(developer)
    with pytest.raises(BatchPendingError):
        run(spec, waits=False)
    sandbox.faults.queue("gemini.batches.list", Fault(kind="error", http_status=503))
    with pytest.raises(BatchPendingError):
        run(spec, waits=False)
    assert run(spec)["origins"]["batch"] == ROWS - PILOT_ROWS


@pytest.mark.full
@pytest.mark.parametrize("is_found", [True, False])
def test_a_job_that_no_list_shows_yet_is_not_submitted_again(developer, sandbox, monkeypatch, is_found):
    sandbox.batches.settings = BatchSettings(run_seconds=1.0)
    spec = JobSpec.parse(developer)
    with pytest.raises(BatchPendingError):
        run(spec, waits=False)
    if not is_found:
        sandbox.faults.queue("gemini.batches.get", Fault(kind="error", http_status=404))
    with monkeypatch.context() as patched:
        patched.setattr(GeminiBatches, "find", lambda self, prefix: [])
        with pytest.raises(BatchPendingError):
            run(spec, waits=False)
    assert run(spec)["origins"]["batch"] == ROWS - PILOT_ROWS
    assert sum(request.method == "gemini.batches.create" for request in sandbox.requests) == 1


@pytest.mark.full
def test_rows_of_a_job_that_was_deleted_between_two_tries_are_sent_online(developer, sandbox, monkeypatch):
    monkeypatch.setattr(monitor, "SURE_SECONDS", 0.0)
    spec = JobSpec.parse(developer)
    with pytest.raises(BatchPendingError):
        run(spec, waits=False)
    provider = open_provider(spec.model, output_uri="")
    (job,) = provider.find("llmbeam-")
    provider.delete(job)
    assert run(spec)["origins"]["fresh"] == ROWS - PILOT_ROWS
    assert sum(request.method == "gemini.batches.create" for request in sandbox.requests) == 1


def test_a_changed_prompt_cancels_the_batch_of_the_earlier_try(developer, sandbox):
    sandbox.batches.settings = BatchSettings(outcome="stuck")
    with pytest.raises(BatchPendingError):
        run(JobSpec.parse(developer), waits=False)
    sandbox.batches.settings = BatchSettings()
    changed = developer | {"prompt": {"template": "Repeat: {{ row.text }}"}}
    assert run(JobSpec.parse(changed), waits=True)["origins"]["batch"] == ROWS - PILOT_ROWS
    cancelled = [each for each in sandbox.requests if each.method == "gemini.batches.cancel"]
    assert len(cancelled) == 1


@pytest.mark.full
def test_a_changed_masking_makes_another_batch_as_the_prompts_are_others(developer, sandbox, monkeypatch):
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "a secret of enough characters")
    with pytest.raises(BatchPendingError):
        run(JobSpec.parse(developer), waits=False)
    numbers = {"type": "custom", "name": "NUMBER", "pattern": r"\d+"}
    manifest = run(JobSpec.parse(developer | {"safety": {"privacy": {"detectors": [numbers]}}}), waits=True)
    assert manifest["origins"]["batch"] == ROWS - PILOT_ROWS
    assert sum(each.method == "gemini.batches.create" for each in sandbox.requests) == 2


@pytest.mark.full
@pytest.mark.parametrize("is_online", [False, True])
def test_a_changed_provider_cancels_the_batch_of_the_earlier_try_at_the_earlier_provider(
    openai, developer, sandbox, caplog, is_online
):
    sandbox.batches.settings = BatchSettings(outcome="stuck")
    spec = JobSpec.parse(openai)
    with pytest.raises(BatchPendingError):
        run(spec, waits=False)
    (job,) = read_manifest(spec).jobs.values()
    sandbox.batches.settings = BatchSettings()
    changes = {"inference": {"mode": "online"}, "model": "echo"} if is_online else {}
    with caplog.at_level("INFO"):
        manifest = run(JobSpec.parse(developer | changes))
    assert manifest["rows"]["answered"] == ROWS
    assert open_provider(spec.model, output_uri="").get(job.name).state == "cancelled"
    assert f"Batch-inference job {job.name} ({job.display_name}) was cancelled." in caplog.text
    assert storage.match(f"{spec.paths.home_uri}batch/**") == []


@pytest.mark.parametrize(("outcome", "from_batch"), [("succeeded", ROWS - PILOT_ROWS), ("stuck", 0)])
def test_a_job_that_is_online_now_ends_the_batch_of_the_earlier_try_and_sends_only_the_rest(
    openai, sandbox, caplog, outcome, from_batch
):
    sandbox.batches.settings = BatchSettings(outcome=outcome)
    with pytest.raises(BatchPendingError):
        run(JobSpec.parse(openai), waits=False)
    spec = JobSpec.parse(openai | {"inference": {"mode": "online"}})
    (job,) = read_manifest(spec).jobs.values()
    with caplog.at_level("INFO"):
        manifest = run(spec)
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    assert manifest["origins"]["batch"] == from_batch
    assert Counter(charge.tier for charge in sandbox.token_bill.charges for _ in range(charge.answers)) == Counter(
        batch=from_batch, standard=ROWS - from_batch
    )
    bill = sandbox.token_bill.nano_usd / 1e9
    assert report_of(manifest)["cost_usd"] == pytest.approx(bill, abs=1e-6), "with that of the earlier try"
    assert open_provider(spec.model, output_uri="").get(job.name).has_ended
    used, cancelled = (job.name, "none") if from_batch else ("none", job.name)
    assert f"answers are used: {used}. Jobs that run, and are to be cancelled: {cancelled}." in caplog.text
    assert storage.match(f"{spec.paths.home_uri}batch/**") == []


@pytest.mark.full
def test_a_provider_that_refuses_to_end_an_earlier_batch_names_the_way_to_an_online_run(developer, sandbox):
    sandbox.batches.settings = BatchSettings(outcome="stuck")
    with pytest.raises(BatchPendingError):
        run(JobSpec.parse(developer), waits=False)
    sandbox.faults.every("gemini.batches.list", 1, Fault(kind="error", http_status=401, message="no key"))
    spec = JobSpec.parse(developer | {"inference": {"mode": "online"}})
    with pytest.raises(
        JobFailedError, match=r"no key\..*To send every row online instead, delete '(.+)'\."
    ) as error:
        run(spec)
    shutil.rmtree(re.search(r"delete '(.+)'", str(error.value))[1])
    assert run(spec)["origins"]["fresh"] == ROWS - PILOT_ROWS


def test_a_wrong_model_is_found_before_anything_is_submitted(developer, sandbox):
    with pytest.raises(LLMBeamError, match="no such model"):
        run(JobSpec.parse(developer | {"model": {**developer["model"], "name": "llama"}}))
    assert sandbox.token_bill.nano_usd == 0


def test_a_batch_that_the_provider_refuses_fails_the_job_and_bills_nothing_more(developer, sandbox):
    sandbox.faults.queue("gemini.batches.create", Fault(kind="error", http_status=400, message="no"))
    with pytest.raises(JobRefusedError, match=r"no\. No job was created\. Only the pilot was sent"):
        run(JobSpec.parse(developer))
    assert {charge.tier: charge.answers for charge in sandbox.token_bill.charges} == {"standard": PILOT_ROWS}


@pytest.mark.full
def test_the_rows_of_a_file_that_the_provider_refuses_beside_another_job_are_sent_online(
    developer, sandbox, monkeypatch
):
    monkeypatch.setattr(GeminiBatches, "limits", BatchLimits(max_rows=30, max_bytes=10**8))
    sandbox.batches.settings = BatchSettings(run_seconds=0.5)
    sandbox.faults.every("gemini.batches.create", 2, Fault(kind="error", http_status=403, message="no"))
    manifest = run(JobSpec.parse(developer))
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    assert sum(request.method == "gemini.batches.create" for request in sandbox.requests) == 4
    answers = {charge.tier: charge.answers for charge in sandbox.token_bill.charges}
    assert answers["batch"] == manifest["origins"]["batch"] > 0
    assert answers["standard"] == ROWS - answers["batch"] > PILOT_ROWS


def run_deferred(spec):
    """Runs a job as a deferred task that is resumed again and again."""
    while True:
        try:
            return run(spec, waits=False)
        except BatchPendingError:
            time.sleep(0.3)


@pytest.mark.full
def test_files_of_a_deferred_task_wait_for_the_token_limit_of_openai_until_others_have_ended(
    openai, sandbox, monkeypatch, caplog
):
    monkeypatch.setattr(OpenAIBatches, "limits", BatchLimits(max_rows=30, max_bytes=10**8))
    sandbox.batches.settings = BatchSettings(run_seconds=1.0, max_enqueued_tokens=200)
    with caplog.at_level("INFO"):
        manifest = run_deferred(JobSpec.parse(openai))
    assert manifest["origins"]["batch"] == ROWS - PILOT_ROWS
    assert "The token limit of the provider is reached" in caplog.text
    assert "token_limit_exceeded" in caplog.text


@pytest.mark.full
def test_a_batch_waits_for_tokens_that_somebody_else_holds(openai, sandbox):
    sandbox.batches.settings = BatchSettings(run_seconds=2.0, max_enqueued_tokens=400)
    spec = JobSpec.parse(openai)
    message = {"role": "user", "content": "Say it: text 1"}
    line = {
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "gpt-5-mini", "messages": [message]},
    }
    body = b"".join(json.dumps({"custom_id": f"{number}", **line}).encode() + b"\n" for number in range(60))
    open_provider(spec.model, output_uri="").submit("another team", "/f", lambda uri: io.BytesIO(body), len(body))
    assert run(spec)["origins"]["batch"] == ROWS - PILOT_ROWS


@pytest.mark.full
def test_a_file_with_more_tokens_than_the_limit_is_sent_online_after_two_submissions(openai, sandbox, caplog):
    sandbox.batches.settings = BatchSettings(max_enqueued_tokens=20)
    manifest = run(JobSpec.parse(openai))
    assert manifest["origins"]["fresh"] == ROWS - PILOT_ROWS
    assert sum(request.method == "openai.batches.create" for request in sandbox.requests) == 2
    assert "more than the limit allows" in caplog.text


@pytest.mark.parametrize("echoes_input", [False, True])
def test_no_request_file_is_left_at_the_provider_whether_or_not_its_jobs_name_them(
    developer, sandbox, echoes_input
):
    sandbox.batches.settings = BatchSettings(echoes_input=echoes_input)
    sandbox.faults.queue("gemini.files.upload", Fault(kind="disconnect"))  # one upload is made twice
    run(JobSpec.parse(developer))
    assert [file.name for file in sandbox.gemini_files.all.values() if not file.is_result] == []


def test_a_request_file_that_cannot_be_deleted_is_named(developer, sandbox, caplog):
    denied = Fault(kind="error", http_status=403, message="no delete")
    sandbox.faults.every("gemini.files.delete", 1, denied)
    run(JobSpec.parse(developer))
    assert "with all its prompts: The Gemini Developer API answered HTTP 403: no delete." in caplog.text


@pytest.mark.parametrize(
    "job",
    ["vertex", *(pytest.param(other, marks=pytest.mark.full) for other in ("developer", "openai"))],
    indirect=True,
)
def test_a_manifest_that_somebody_has_changed_cancels_no_job_of_others(job, sandbox, tmp_path):
    sandbox.batches.settings = BatchSettings(outcome="stuck")
    sink = "gs://rows/of-others/" if job["sink"]["uri"].startswith("gs://") else f"{tmp_path}/of-others"
    spec, other = JobSpec.parse(job), JobSpec.parse(job | {"sink": {"uri": sink}})
    for each in (other, spec):
        with pytest.raises(BatchPendingError):
            run(each, waits=False)
    # Batches of Anthropic have no name, by which a forged record would be found out.
    (victim,) = read_manifest(other).jobs.values()
    manifest = read_manifest(spec)
    (name,) = manifest.files
    write_manifest(spec, manifest.changed(jobs={name: replace(victim, display_name=name)}))
    with pytest.raises(BatchPendingError):  # other prompts: the jobs of the earlier try are cancelled
        run(JobSpec.parse(job | {"prompt": {"template": "Other: {{ row.text }}"}}), waits=False)
    provider = open_provider(other.model, output_uri="")
    assert provider.get(victim.name).phase in ("queued", "running")
    assert [each.phase for each in provider.find(name)] in (["cancelling"], ["cancelled"])
