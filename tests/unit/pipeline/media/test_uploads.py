"""Uploads of large files: each content once, found again, waited for, and swept."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.endpoints.sweep import BatchInferenceJobs, sweep
from airflow_provider_llmbeam.engine.media.file import MediaFile
from airflow_provider_llmbeam.pipeline.media import uploads as module
from airflow_provider_llmbeam.pipeline.media.uploads import UploadedMedia, open_uploads
from airflow_provider_llmbeam.providers import rest as http
from airflow_provider_llmbeam.providers.batch import open_provider
from airflow_provider_llmbeam.providers.gemini.files import GeminiFile, GeminiFiles
from airflow_provider_llmbeam.providers.rest import open_client
from airflow_provider_llmbeam.spec.identity import deployment_prefix
from airflow_provider_llmbeam.spec.model import EchoModel, GeminiModel
from airflow_provider_llmbeam.spec.model.media import MediaError, MediaUnavailableError

PREFIX = f"{deployment_prefix('tests')}job-"
UPLOAD = "gemini.files.upload"


class Time:
    """A clock that sleeping sets forward."""

    def __init__(self):
        self.seconds = time.time()
        self.slept = []

    def now(self):
        return self.seconds

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.seconds += seconds


def media_file(content):
    return MediaFile(len(content), lambda: f"sha256:{sha256(content).hexdigest()}", lambda: content)


@pytest.fixture
def clock():
    return Time()


@pytest.fixture
def files(sandbox, monkeypatch):
    monkeypatch.setattr(http, "_RETRY_SECONDS", 0.0)
    model = GeminiModel(base_url=sandbox.gemini_url)
    return GeminiFiles(model, open_client(model))


@pytest.fixture
def uploads(files, clock):
    return UploadedMedia(files, PREFIX, clock.sleep, clock.now)


def stored(sandbox):
    return sorted(file.data for file in sandbox.gemini_files.all.values())


def started(sandbox):
    """Number of uploads, each of two requests."""
    return sum(record.method == UPLOAD and record.http_status == 200 for record in sandbox.requests) // 2


def test_each_content_is_uploaded_once_by_all_threads_and_found_by_another_worker(sandbox, files, uploads):
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: uploads.address(media_file(b"video"), "video/mp4"), range(8)))
    assert len(found) == 1
    other = UploadedMedia(files, PREFIX)
    assert other.address(media_file(b"video"), "video/mp4") in found
    assert other.address(media_file(b"another"), "video/mp4") not in found
    assert other.address(media_file(b"video"), "video/webm") not in found
    assert stored(sandbox) == [b"another", b"video", b"video"]
    assert started(sandbox) == 3
    assert {file.content_type for file in sandbox.gemini_files.all.values()} == {"video/mp4", "video/webm"}


@pytest.mark.parametrize(
    "fault", [Fault(kind="rate-limit"), Fault(kind="error", http_status=503), Fault(kind="disconnect")]
)
def test_an_upload_that_is_refused_for_now_is_tried_again(sandbox, uploads, clock, fault):
    sandbox.faults.queue(UPLOAD, fault)
    uploads.address(media_file(b"video"), "video/mp4")
    assert clock.slept == [module.POLL_SECONDS]
    assert stored(sandbox) == [b"video"]


def test_an_upload_whose_reply_is_lost_is_not_made_again(sandbox, uploads, clock):
    sandbox.faults.every(UPLOAD, 2, Fault(kind="disconnect"))  # the second request of each upload has the file
    uploads.address(media_file(b"video"), "video/mp4")
    assert len(clock.slept) == 1
    assert sum(record.method == UPLOAD for record in sandbox.requests) == 2


def test_a_server_that_stays_down_fails_the_row_after_a_time(sandbox, uploads, clock):
    sandbox.faults.every(UPLOAD, 1, Fault(kind="error", http_status=503))
    with pytest.raises(MediaUnavailableError, match="an upload failed for 300 s"):
        uploads.address(media_file(b"video"), "video/mp4")
    assert sum(clock.slept) == module.RETRY_SECONDS


def test_a_file_that_the_server_refuses_fails_its_row(sandbox, uploads):
    sandbox.faults.queue(UPLOAD, *[Fault(kind="error", http_status=400, message="Unsupported type.")] * 2)
    with pytest.raises(MediaError, match=r"the upload was refused: .*Unsupported type"):
        uploads.address(media_file(b"video"), "video/mp4")


def test_a_name_that_another_project_has_is_not_needed(sandbox, uploads):
    sandbox.faults.queue(UPLOAD, Fault(kind="error", http_status=409))
    address = uploads.address(media_file(b"video"), "video/mp4")
    assert stored(sandbox) == [b"video"]
    assert uploads.address(media_file(b"video"), "video/mp4") == address


def test_a_video_is_named_by_no_request_before_it_has_been_processed(sandbox, uploads, monkeypatch):
    sandbox.gemini_files.processing_seconds = 0.2
    monkeypatch.setattr(module, "POLL_SECONDS", 0.1)
    uploads._sleep = time.sleep
    uploads.address(media_file(b"video"), "video/mp4")
    (file,) = sandbox.gemini_files.all.values()
    assert sandbox.gemini_files.find_upload(file.name).is_active
    uploads.address(media_file(b"image"), "image/png")


def test_a_file_that_expires_soon_is_uploaded_again(sandbox, files, uploads, clock):
    uploads.address(media_file(b"video"), "video/mp4")
    clock.seconds += 47.5 * 3600
    uploads.address(media_file(b"video"), "video/mp4")
    assert started(sandbox) == 2
    assert stored(sandbox) == [b"video"]


class Processed:
    """A Files API whose uploads end in the given states."""

    def __init__(self, *states):
        self.states = list(states)
        self.deleted = []

    def find(self, name):
        return self._next() if len(self.states) < 2 else None

    def upload(self, display_name, mime_type, open_file, size, name):
        return self._next()

    def delete(self, name):
        self.deleted.append(name)

    def _next(self):
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if state is None:
            return None
        return GeminiFile(name="files/a", display_name="a", created_at=0.0, state=state, error="13: bad codec")


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (("FAILED", "FAILED"), "the server cannot process the file: 13: bad codec."),
        (("PROCESSING", "PROCESSING"), "the server has not processed an upload within 900 s."),
        (("PROCESSING", None), "an upload was deleted while the server processed it."),
    ],
)
def test_a_file_that_is_never_active_fails_its_row(clock, states, message):
    with pytest.raises(MediaError, match=message):
        UploadedMedia(Processed(*states), PREFIX, clock.sleep, clock.now).address(media_file(b"v"), "video/mp4")


def test_what_a_killed_run_leaves_behind_is_swept(sandbox, uploads, monkeypatch):
    uploads.address(media_file(b"video"), "video/mp4")
    provider = open_provider(GeminiModel(base_url=sandbox.gemini_url), output_uri="")

    def deleted(made_before):
        files = BatchInferenceJobs(provider=provider, deployment="tests", made_before=made_before)
        return sweep([files], deployments=["tests"], dry_run=False, log=logging.getLogger("test")).deleted

    assert not deleted(time.time() - 3600)
    assert len(deleted(time.time() + 3600)) == 1
    assert stored(sandbox) == []


def test_only_the_developer_api_takes_uploads_and_only_of_a_job_that_deletes_them():
    assert open_uploads(GeminiModel(), PREFIX) is not None
    assert open_uploads(GeminiModel(), None) is None
    assert open_uploads(GeminiModel(project="p"), PREFIX) is None
    assert open_uploads(EchoModel(type="echo"), PREFIX) is None
