"""The process of a job, on the sandbox."""

from __future__ import annotations

import json
import logging
import threading

import pytest
from waiting import until

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.jobs import process as module
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.spec import JobSpec

GEMINI = "gemini.generateContent"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The temporary directory of the worker."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(module.tempfile, "tempdir", str(directory))
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.delenv("LLMBEAM_TESTS_FORK_SERVER")  # a fork has the temporary directory of its server
    return directory


@pytest.fixture
def job(tmp_path, sandbox):
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"id": number, "text": f"word {number}"}) + "\n" for number in range(20)))
    spec = JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": str(source), "key": "id"},
            "prompt": "Say {{ row.text }}",
            "model": {"type": "gemini", "name": "gemini-3.5-flash-lite", "base_url": sandbox.url},
            "sink": str(tmp_path / "out"),
        }
    )
    return JobProcess(spec, {"GOOGLE_API_KEY": "k"}, logging.getLogger(__name__))


def test_a_job_that_is_stopped_leaves_no_temporary_files_but_the_pace_that_the_jobs_of_a_machine_share(
    job, sandbox, temporary
):
    hold = sandbox.faults.hold(GEMINI, "Say ", after=3)
    ended = []

    def run():
        with pytest.raises(JobFailedError, match=r"was interrupted \(exit code 130\)\. What was answered is kept"):
            job.run()
        ended.append(True)

    running = threading.Thread(target=run)
    running.start()
    until(lambda: hold.waiting, "the job sends")
    job.stop()
    running.join()
    hold.release()
    assert ended == [True]
    (shared,) = temporary.iterdir()
    assert [path.name.partition("-")[0] for path in shared.iterdir()] == ["governor"]


def test_a_job_whose_caller_raises_as_at_an_execution_timeout_records_the_answers_to_its_requests_in_flight(
    job, sandbox, temporary
):
    hold = sandbox.faults.hold(GEMINI, "Say ", after=3)

    class Log(logging.Logger):
        def info(self, *_):
            until(lambda: hold.waiting == 17, "all others are in flight")
            raise TimeoutError

        def warning(self, message, *arguments):
            super().warning(message, *arguments)
            hold.release()

    log, job._log = job._log, Log(__name__)
    try:
        with pytest.raises(TimeoutError):
            job.run()
    finally:
        hold.release()
    job._log = log
    job.run()
    assert len(sandbox.requests) == 20


def test_a_process_that_ends_without_a_result_says_its_last_exception(job, monkeypatch, tmp_path):
    script = tmp_path / "python"
    script.write_text(
        "#!/bin/sh\necho Traceback\necho 'ValueError: first'\n"
        "echo 'FileNotFoundError: The file /nope.txt cannot be found.'\necho end\nexit 1\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(job, "_python", str(script))
    sentence = (
        r"ended with exit code 1: FileNotFoundError: The file /nope\.txt cannot be found\. What was answered"
    )
    with pytest.raises(JobFailedError, match=sentence):
        job.run()


def test_a_process_that_says_no_exception_left_no_result(job, monkeypatch):
    monkeypatch.setattr(job, "_python", "/bin/false")
    with pytest.raises(JobFailedError, match=r"ended with exit code 1 and left no result\. What was answered"):
        job.run()


def test_a_page_is_given_to_the_task_each_time_that_it_has_changed(job, monkeypatch, tmp_path):
    script = tmp_path / "python"
    write = 'echo "{\\"html_gzip\\": \\"$1\\"}" > "$page.part"; mv "$page.part" "$page"; echo "a line"'
    steps = "\n".join(["show first", "sleep 0.2", "echo unchanged", "sleep 0.2", "show second"])
    script.write_text(
        "#!/bin/sh\n"
        'for each in "$@"; do case $each in --page=*) page=${each#--page=};; esac; done\n'
        f"show() {{ {write}; }}\n{steps}\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(job, "_python", str(script))
    pages = []
    monkeypatch.setattr(job, "_on_page", pages.append)
    with pytest.raises(JobFailedError):  # it leaves no result
        job.run()
    assert pages == [{"html_gzip": "first"}, {"html_gzip": "second"}]
