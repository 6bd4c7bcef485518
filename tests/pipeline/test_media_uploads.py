"""Files above the limit of a request: uploaded once, named by their requests, and deleted at the end."""

from __future__ import annotations

from hashlib import sha256

import pytest
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.pipeline.media.stored import StoredMedia
from airflow_provider_llmbeam.pipeline.media.uploads import open_uploads
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.identity import display_name_prefix
from airflow_provider_llmbeam.spec.model import model
from tests.pipeline.test_no_answer_is_paid_for_twice import start_command
from tests.processes import until_job

pytestmark = [pytest.mark.full, pytest.mark.promise(2)]

#: Limits of a request are in MiB; here a thousandth of that, so that a large file has 100 kB.
LARGE = {"a.mp4": b"first" * 40_000, "copy.mp4": b"first" * 40_000, "b.mp4": b"second" * 40_000}
SMALL = {"c.png": b"image" * 200, "d.mp4": b"third" * 200}


@pytest.fixture
def large_job(job, tmp_path, monkeypatch):
    """A job whose rows name small and large files, against the Developer API."""
    monkeypatch.setattr(model, "MIB", 2**10)
    folder = tmp_path / "files"
    folder.mkdir()
    for name, content in (LARGE | SMALL).items():
        (folder / name).write_bytes(content)
    job.spec["prompt"] = {
        "template": "What is in {{ row.id }}?",
        "media": [{"uri": f"{folder}/{{{{ row.id }}}}"}],
    }
    job.write([{"id": name} for name in LARGE | SMALL])
    return job


def uploads(sandbox):
    """Number of finished uploads, each of two requests."""
    return sum(record.method == "gemini.files.upload" for record in sandbox.requests) // 2


def received(sandbox):
    return sorted(found.sha256 for record in sandbox.requests if record.is_billed for found in record.media)


EXPECTED = sorted(sha256(content).hexdigest() for content in (LARGE | SMALL).values())


def test_a_large_file_is_uploaded_once_however_many_rows_name_it_and_deleted_at_the_end(large_job, sandbox):
    sandbox.faults.queue("gemini.generateContent", Fault(kind="error", http_status=503))
    ended = large_job.run()
    assert ended.manifest["rows"]["answered"] == 5
    assert received(sandbox) == EXPECTED
    assert uploads(sandbox) == 2
    assert sandbox.gemini_files.all == {}


def test_what_a_killed_try_has_uploaded_is_used_and_deleted_at_the_end(large_job, sandbox):
    spec = JobSpec.parse(large_job.spec)
    killed = open_uploads(spec.model, display_name_prefix(spec))
    path = large_job.directory / "files"
    killed.address(StoredMedia().open(str(path / "a.mp4")), "video/mp4")
    other = open_uploads(spec.model, "llmbeam-other-")
    other.address(StoredMedia().open(str(path / "d.mp4")), "video/mp4")
    assert large_job.run().manifest["rows"]["answered"] == 5
    assert received(sandbox) == EXPECTED
    assert uploads(sandbox) == 3
    (kept,) = sandbox.gemini_files.all.values()
    assert kept.label.startswith("llmbeam-other-"), "the files of another job are not touched"


def test_a_job_that_fails_deletes_its_uploads_and_its_estimate_leaves_them_to_it(large_job, sandbox):
    spec = JobSpec.parse(large_job.spec)
    make_estimate(spec, 5)
    assert len(sandbox.gemini_files.all) == 2
    large_job.spec["generation"] = {"temperature": 1.0}
    sandbox.faults.every("gemini.generateContent", 1, Fault(kind="error", http_status=400, message="No."))
    with pytest.raises(Exception, match="No"):
        large_job.run()
    assert uploads(sandbox) == 2
    assert sandbox.gemini_files.all == {}


def test_a_file_that_cannot_be_uploaded_fails_its_row_with_the_words_of_the_server(large_job, sandbox):
    fault = Fault(kind="error", http_status=400, message="No such codec.")
    sandbox.faults.every("gemini.files.upload", 1, fault)
    ended = large_job.run()
    assert ended.kinds == {"media_error": 3}
    message = ended.dead_letter[0]["llmbeam_error"]["message"]
    assert message.startswith("`prompt.media`: the upload was refused: ")
    assert "No such codec." in message
    assert message.endswith("Nothing was sent for this row.")


def test_a_job_of_a_real_size_that_is_killed_after_an_upload_makes_no_second_one_and_leaves_nothing(
    job, sandbox, tmp_path
):
    """A video of 80 MiB makes a request of 107 MiB, and a request has at most 100."""
    video = tmp_path / "large.mp4"
    with video.open("wb") as file:
        file.truncate(80 * 2**20)
    job.spec["prompt"] = {"template": "Describe video {{ row.id }}.", "media": [{"uri": str(video)}]}
    job.write([{"id": 1}])
    hold = sandbox.faults.hold("gemini.generateContent")
    child = start_command(job, tmp_path)
    until_job(child, lambda: hold.waiting)
    (uploaded,) = sandbox.gemini_files.all.values()
    child.kill()
    child.wait()
    hold.release()
    assert job.run().manifest["rows"]["answered"] == 1
    assert uploads(sandbox) == 1
    assert sandbox.gemini_files.all == {}
    assert received(sandbox)[-1] == sha256(uploaded.data).hexdigest() == sha256(video.read_bytes()).hexdigest()
