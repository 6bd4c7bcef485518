"""Jobs with batch inference on a server with OpenAI's API, which keeps less than OpenAI does."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner
from llmbeam_sandbox.batch_inference.settings import BatchSettings

from airflow_provider_llmbeam.cli import llmbeam
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.batch_inference import decide
from airflow_provider_llmbeam.pipeline.batch_inference.run import PILOT_ROWS
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.providers.openai.batch import OpenAIBatches
from airflow_provider_llmbeam.spec import JobSpec
from tests.pipeline.test_batch_inference import report_of, run_until_killed
from tests.unit.pipeline.batch_inference.moments import KILLS

pytestmark = [pytest.mark.promise(2), pytest.mark.promise(4), pytest.mark.usefixtures("quick_batch_polls")]

ROWS = 60
FROM_BATCH = ROWS - PILOT_ROWS
IN_THE_LOOP = ("the job exists, and is not recorded",)


@pytest.fixture
def job(sandbox, google, tmp_path):
    """A job with a model of a server on this machine, whose price nobody knows."""
    rows = tmp_path / "in.jsonl"
    rows.write_text("".join(f"{json.dumps({'id': n, 'text': f'text {n}'})}\n" for n in range(ROWS)))
    return {
        "name": "night",
        "source": {"uri": str(rows), "key": ["id"]},
        "prompt": {"template": "Say it: {{ row.text }}"},
        "model": {"type": "openai", "name": "gemma", "base_url": sandbox.openai_url},
        "inference": {"mode": "batch"},
        "sink": {"uri": f"{tmp_path}/out"},
    }


def sent(sandbox, method):
    return sum(request.method == method for request in sandbox.requests)


def answers(sandbox):
    return {charge.tier: charge.answers for charge in sandbox.token_bill.charges}


def test_a_server_that_keeps_little_answers_each_row_once_and_the_report_counts_tokens_alone(job, sandbox):
    sandbox.batches.settings = BatchSettings(without=["metadata", "error_file"], fail_ratio=0.1)
    manifest = run(JobSpec.parse(job))
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    failed = math.ceil(FROM_BATCH * 0.1)
    assert answers(sandbox) == {"batch": FROM_BATCH - failed, "standard": PILOT_ROWS + failed}
    report = report_of(manifest)
    assert report["cost_usd"] is None
    assert report["service_tiers"] == {"batch": FROM_BATCH - failed, "standard": PILOT_ROWS + failed}
    assert report["tokens"]["input"] > 0


@pytest.mark.parametrize(
    "moment", [name if name in IN_THE_LOOP else pytest.param(name, marks=pytest.mark.full) for name in KILLS]
)
def test_a_try_that_ends_at_any_moment_is_continued_where_batches_have_no_metadata(
    job, sandbox, monkeypatch, moment
):
    """The batch is known by the name of its request file, and one that was created without a reply as well."""
    sandbox.batches.settings = BatchSettings(run_seconds=0.5, without=["metadata"])
    if is_cancelled := moment == "the job is cancelled":
        sandbox.batches.settings = BatchSettings(outcome="stuck", without=["metadata"])
        end_when_submitted(monkeypatch, sandbox)
    spec = JobSpec.parse(job)
    run_until_killed(spec, moment, OpenAIBatches, monkeypatch)
    manifest = run(spec)
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    batch = 0 if is_cancelled else FROM_BATCH
    assert answers(sandbox) == {"standard": ROWS - batch} | ({"batch": batch} if batch else {})
    assert sent(sandbox, "openai.batches.create") == 1
    assert storage.match(f"{spec.paths.home_uri}batch/**") == []


def end_when_submitted(monkeypatch, sandbox):
    def switch_at(plan, unanswered_ratio):
        return 0.0 if sent(sandbox, "openai.batches.create") else math.inf

    monkeypatch.setattr(decide.BatchPlan, "switch_at", switch_at)


def test_a_server_that_cannot_cancel_is_named_and_the_rows_are_online_in_time(job, sandbox, monkeypatch, caplog):
    monkeypatch.setattr(decide, "CANCEL_SECONDS", 0.5)
    sandbox.batches.settings = BatchSettings(run_seconds=3600.0, without=["cancel"])
    end_when_submitted(monkeypatch, sandbox)
    with caplog.at_level("INFO"):
        manifest = run(JobSpec.parse(job | {"inference": {"mode": "auto", "finish_by": "PT1H"}}))
    assert manifest["rows"]["answered"] == ROWS
    assert "Batch inference of the server: It cancels no batch" in caplog.text
    assert "These batch-inference jobs have not ended and may still bill" in caplog.text


@pytest.mark.parametrize("mode", ["batch", "auto"])
def test_a_server_without_batches_is_refused_before_anything_is_sent(job, sandbox, mode):
    sandbox.batches.settings = BatchSettings(without=["batches"])
    with pytest.raises(JobSpecError, match=r"`inference.mode`: must be 'online' with the server at http://127"):
        run(JobSpec.parse(job | {"inference": {"mode": mode, "finish_by": "PT6H"}}))
    assert answers(sandbox) == {}


def test_the_check_says_what_the_batches_of_a_server_lack(job, sandbox, tmp_path, caplog):
    (tmp_path / "job.json").write_text(json.dumps(job))
    command = ["check", str(tmp_path / "job.json")]
    sandbox.batches.settings = BatchSettings(without=["cancel"])
    checked = CliRunner().invoke(llmbeam, command)
    assert checked.exit_code == 0, checked.output
    assert "\nBatches   It cancels no batch, so that one that is not finished in time" in checked.output
    sandbox.batches.settings = BatchSettings(without=["files"])
    checked = CliRunner().invoke(llmbeam, command)
    assert (checked.exit_code, answers(sandbox)) == (2, {})
    assert f"batch inference needs a list at {sandbox.openai_url}/files." in caplog.text


def test_the_estimate_of_an_online_job_asks_no_server_for_its_batches(job, sandbox):
    assert make_estimate(JobSpec.parse(job | {"inference": "online"}), 0).ways == ()
    assert make_estimate(JobSpec.parse(job), 0).ways != ()
