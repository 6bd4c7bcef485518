"""Places that cannot be written are found before anything is paid; a disk that fills up hides no lost answer."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys

import pytest
from google.auth.exceptions import RefreshError, TransportError
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.launch import reachable
from airflow_provider_llmbeam.pipeline.launch.writable import is_final
from airflow_provider_llmbeam.spec import JobSpec
from tests.pipeline.conftest import estimate

pytestmark = [pytest.mark.full, pytest.mark.promise(2)]

ROWS = [{"id": number, "text": f"row {number}"} for number in range(60)]


@pytest.mark.parametrize("changes", [{"sink": {"uri": "{file}/out"}}, {"state_uri": "{file}/state"}])
@pytest.mark.parametrize("starts", [run, lambda spec: estimate(spec, 4)], ids=["run", "estimate"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_sent(job, sandbox, changes, starts):
    job.write(ROWS)
    plain = json.loads(json.dumps(changes).replace("{file}", str(job.source)))
    with pytest.raises(JobSpecError, match=r"rows\.jsonl.*Nothing was sent or billed\."):
        starts(JobSpec.parse({**job.spec, **plain}))
    assert len(sandbox.requests) == 0


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("storage.objects.insert", r"`sink\.uri` 'gs://rows/out/'.*403"),
        ("storage.objects.delete", "1 of 1 objects could not be deleted"),
    ],
)
def test_a_bucket_that_cannot_be_written_is_refused_before_anything_is_sent(job, sandbox, google, method, message):
    job.write(ROWS)
    sandbox.faults.queue(method, Fault(kind="error", http_status=403))
    spec = JobSpec.parse({**job.spec, "sink": {"uri": "gs://rows/out"}})
    with pytest.raises(JobSpecError, match=rf"{message}.*Nothing was sent or billed\."):
        run(spec)
    assert sandbox.requests.paid("gemini.generateContent").total() == 0


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        (
            "s3://b/x",
            "needs the package 'boto3', which is not installed here. Install it with `pip install 'apa",
        ),
        ("azfs://a/b/x", "needs the package 'azure.storage.blob', which is not installed here."),
        ("hdfs://n/x", "`pip install 'apache-beam[hadoop]'`"),
        (
            "abfs://b/x",
            "Beam reads no abfs://. Expected azfs://account/container/…, with `pip install 'apache-b",
        ),
        (
            "nope://b/x",
            "Beam reads no nope://. Expected a local path, or an address that begins with gs://, s3://, azfs://",
        ),
        ("GS://b/x", "Beam reads no GS://."),
    ],
)
@pytest.mark.parametrize("field", ["source", "sink", "state_uri", "audit"])
def test_a_filesystem_that_beam_lacks_or_whose_package_is_not_installed_is_no_passing_failure(
    job, sandbox, monkeypatch, uri, message, field
):
    starts = run if field in ("sink", "audit") else lambda spec: estimate(spec, 4)
    monkeypatch.setattr(reachable, "find_spec", lambda name: None)
    job.write(ROWS)
    changes = {
        "source": {"source": {"uri": f"{uri}.jsonl", "key": ["id"]}},
        "sink": {"sink": {"uri": uri}},
        "state_uri": {"state_uri": uri},
        "audit": {"safety": {"audit": {"type": "files", "uri": uri}}},
    }
    with pytest.raises(JobSpecError) as refused:
        starts(JobSpec.parse({**job.spec, **changes[field]}))
    assert message in str(refused.value)
    assert str(refused.value).count("Nothing was sent or billed.") == 1
    assert len(sandbox.requests) == 0


def test_the_probe_leaves_nothing(job, sandbox):
    job.run(ROWS)
    assert [path for path in job.out.rglob("*") if "probe" in path.name] == []


def run_limited(job, limit: int, value: int, most: int | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the job in a process with a limit of the operating system, which it may raise to `most`."""
    spec, result = job.directory / "job.json", job.directory / "result.json"
    spec.write_text(json.dumps(job.spec))
    code = (
        "import resource, runpy, sys; import apache_beam;"
        f"resource.setrlimit({limit}, ({value}, {most or value})); sys.argv[0] = 'pipeline';"
        "runpy.run_module('airflow_provider_llmbeam.pipeline', run_name='__main__')"
    )
    command = [sys.executable, "-c", code, "--spec", str(spec), "--result", str(result)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    ended.result = json.loads(result.read_text())
    ended.error = ended.result.get("error")
    return ended


def test_a_journal_that_cannot_grow_ends_the_job_with_its_cause_and_records_what_fits(job, sandbox):
    """As on a full disk: `ulimit -f` ends writes in the middle of a line."""
    job.write([{"id": number, "text": f"row {number} {'x' * 2_000}"} for number in range(120)])
    job.spec["limits"]["max_in_flight"] = 8
    ended = run_limited(job, resource.RLIMIT_FSIZE, 70_000)
    assert ended.returncode == 1
    assert ended.error["type"] == "JobFailedError"
    assert "File too large" in ended.error["message"]
    assert "ExceptionGroup" not in ended.stderr + ended.error["message"]
    paid = len(sandbox.requests)
    assert paid < 120
    job.run()
    assert len(sandbox.requests) - 120 <= 8


def test_a_limit_of_open_files_that_can_be_raised_is_raised(job, sandbox):
    job.write(ROWS)
    job.spec["limits"]["max_in_flight"] = 64
    ended = run_limited(job, resource.RLIMIT_NOFILE, 64, 256)
    assert (ended.returncode, ended.error) == (0, None)
    assert len(sandbox.requests) == len(ROWS)


def test_too_few_open_files_are_found_before_anything_is_sent_and_a_job_needs_no_more_than_it_reserves(
    job, sandbox
):
    """The second limit is exactly what the process reserves; all rows are answered, and none is paid twice."""
    job.write(ROWS)
    job.spec |= {"limits": {"max_in_flight": 16}, "batching": {"max_batch_size": 5}}
    refused = run_limited(job, resource.RLIMIT_NOFILE, 48)
    assert (refused.returncode, refused.error["type"]) == (2, "JobSpecError")
    found = re.search(r"16 requests at once need (\d+) open files, .* may have 48\. ", refused.error["message"])
    assert "Traceback" not in refused.stderr
    assert len(sandbox.requests) == 0
    needed = int(found[1])
    ended = run_limited(job, resource.RLIMIT_NOFILE, needed)
    assert (ended.returncode, ended.error) == (0, None)
    assert sandbox.requests.paid("gemini.generateContent").total() == len(ROWS)


def test_a_full_disk_at_the_start_is_no_final_error(job, monkeypatch):
    from airflow_provider_llmbeam.pipeline import storage

    def full(uri):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "create", full)
    job.write(ROWS)
    with pytest.raises(JobFailedError, match=r"No space left on device.*Nothing was sent or billed\."):
        run(JobSpec.parse(job.spec))


def silent_metadata_server():
    error = RefreshError("metadata server unavailable")
    error.__cause__ = TransportError("timed out")
    return error


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (RefreshError("no such account"), True),
        (RefreshError("timed out", retryable=True), False),
        (TransportError("no route"), False),
        (silent_metadata_server(), False),
        (PermissionError(13, "Permission denied"), True),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_only_an_error_that_a_retry_would_repeat_is_final(error, final):
    assert is_final(error) is final
