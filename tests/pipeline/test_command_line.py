"""The command line `python -m airflow_provider_llmbeam.pipeline`: its output, exit codes and result file."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys

import pytest

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.__main__ import main
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.spec import JobSpec


def run_command(*arguments, **kwargs):
    command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)


@pytest.fixture
def spec_path(echo_job):
    echo_job.write([{"id": number, "text": "t"} for number in range(5)])
    path = echo_job.directory / "job.json"
    path.write_text(json.dumps(echo_job.spec))
    return path


def test_a_job_runs_where_airflow_cannot_be_imported(spec_path):
    code = (
        "import sys, runpy; sys.modules['airflow'] = None; sys.argv[0] = 'pipeline';"
        "runpy.run_module('airflow_provider_llmbeam.pipeline', run_name='__main__')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "--spec", str(spec_path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["rows"] == {"read": 5, "answered": 5, "dead_letter": 0, "skipped": 0}


def test_a_process_that_runs_several_jobs_keeps_the_garbage_of_none(spec_path):
    spec = JobSpec.parse(json.loads(spec_path.read_text()))
    run(spec)
    excluded = gc.get_freeze_count()
    run(spec)
    assert gc.get_freeze_count() <= excluded


def test_the_log_has_progress_lines_and_none_of_beam(spec_path):
    ended = run_command("--spec", spec_path)
    lines = ended.stderr.splitlines()
    assert [line.split(" ", 1)[1] for line in lines if "rows" in line][-1].startswith("rows 5/5 (100%)")
    assert len(lines) <= 4, ended.stderr


def test_the_outcome_is_written_to_the_result_file(spec_path, tmp_path):
    result = tmp_path / "result.json"
    assert run_command("--spec", spec_path, "--result", result).returncode == 0
    assert json.loads(result.read_text())["report"]["rows"]["answered"] == 5


def test_an_invalid_spec_exits_with_2_and_one_sentence(echo_job, tmp_path):
    path, result = tmp_path / "job.json", tmp_path / "result.json"
    path.write_text(json.dumps(echo_job.spec | {"limits": {"max_in_flight": 0}}))
    ended = run_command("--spec", path, "--result", result)
    assert ended.returncode == 2
    sentence = "`limits.max_in_flight`: must be greater than or equal to 1; got 0."
    assert sentence in ended.stderr
    assert json.loads(result.read_text())["error"]["type"] == "JobSpecError"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_spec_that_is_not_on_cloud_storage_exits_with_2_and_one_sentence(google, caplog):
    assert main(["--spec=gs://no-bucket/missing.json"]) == 2
    (message,) = caplog.messages
    assert message.startswith("`--spec` 'gs://no-bucket/missing.json' cannot be read: 404 ")
    assert message.endswith(" Nothing was sent or billed.")


def test_requests_go_where_the_variables_of_the_banner_say(echo_job, sandbox, tmp_path):
    """The sandbox prints `export GOOGLE_GEMINI_BASE_URL=…`, which its own command ignored."""
    path = tmp_path / "job.json"
    echo_job.write([{"id": number, "text": f"t{number}"} for number in range(5)])
    path.write_text(json.dumps(echo_job.spec | {"model": "gemini-2.5-flash"}))
    ended = run_command("--spec", path, env=os.environ | sandbox.environment())
    assert ended.returncode == 0, ended.stderr
    assert len(sandbox.requests) == 5
    assert f"Requests go to {sandbox.url}, as `GOOGLE_GEMINI_BASE_URL` is set" in ended.stderr
    assert f"server loopback ({sandbox.url})" in ended.stderr


def test_a_source_that_matches_nothing_fails_before_anything_is_sent(job, sandbox):
    with pytest.raises(JobSpecError, match=r"matches no file. Nothing was sent or billed"):
        job.run(source={"uri": str(job.directory / "no-*.jsonl"), "key": ["id"]})
    assert len(sandbox.requests) == 0


def test_a_missing_key_fails_before_a_row_is_read(job, sandbox, monkeypatch):
    monkeypatch.delenv("GOOGLE_API_KEY")
    with pytest.raises(JobSpecError, match="The Gemini Developer API needs a key: found neither"):
        job.run([{"id": 1, "text": "t"}])


def test_missing_google_credentials_fail_before_a_row_is_read(job, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent.json")
    with pytest.raises(JobSpecError, match=r"needs Google credentials: .*nonexistent\.json"):
        job.run([{"id": 1, "text": "t"}], model={**job.spec["model"], "project": "p"})


def test_a_broken_source_fails_the_job_and_keeps_the_previous_output(echo_job):
    before = echo_job.run([{"id": 1, "text": "t"}]).answers
    broken = echo_job.directory / "broken.parquet"
    broken.write_bytes(b"PAR1 this is no parquet file PAR1")
    with pytest.raises(JobFailedError, match=r"Job 'job' failed: .*a retry sends only the rest"):
        echo_job.run(source={"uri": str(broken), "key": ["id"]})
    (answers,) = echo_job.out.glob("answers-*")
    assert [json.loads(line) for line in answers.read_text().splitlines()] == before


def test_other_options_are_passed_to_beam(spec_path):
    ended = run_command("--spec", spec_path, "--direct_num_workers=2", "--direct_running_mode=multi_threading")
    assert ended.returncode == 0, ended.stderr


def test_a_closed_standard_output_does_not_make_a_failure_of_a_complete_job(spec_path):
    command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--spec", str(spec_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        running.stdout.close()
        log = running.stderr.read()
    assert running.returncode == 0, log
    assert "The result could not be printed" in log
