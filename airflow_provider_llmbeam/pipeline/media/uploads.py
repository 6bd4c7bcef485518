"""Uploads of files that are too large for a request, to the Files API of the Gemini Developer API.

A file is named by its job and by what it holds, so that each is uploaded once: another worker, or a retry of the
task, finds it by its name. The provider deletes it after 48 hours, and then it is uploaded again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

from airflow_provider_llmbeam.engine.media.file import MediaFile
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.errors import (
    ApiConflictError,
    ApiDeniedError,
    ApiError,
    ApiRefusedError,
    ApiUnavailableError,
)
from airflow_provider_llmbeam.providers.gemini.files import GeminiFile, GeminiFiles
from airflow_provider_llmbeam.providers.registry import part_of
from airflow_provider_llmbeam.providers.rest import open_client
from airflow_provider_llmbeam.spec.identity import display_name_prefix
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model import Model
from airflow_provider_llmbeam.spec.model.media import MediaError, MediaUnavailableError
from airflow_provider_llmbeam.spec.runner import DetachedRunner

_log = logging.getLogger("llmbeam")

#: Time in which an upload is tried again while the server is down or refuses it for now, in seconds.
RETRY_SECONDS = 300.0
#: Interval between polls of a file that is processed, e.g. a video, and the longest time of it, in seconds.
POLL_SECONDS, PROCESSING_SECONDS = 5.0, 900.0
#: A file that expires earlier than this is uploaded again, in seconds: its request may wait for its quota.
EXPIRY_SECONDS = 3600.0
_PREFIX = "media-"


class UploadedMedia:
    """Uploads files, each once in all threads.

    Args:
        files: The Files API.
        prefix: Beginning of the display names of the uploads of one job.
        sleep: Waits before the next try or poll.
        now: Returns the Unix time.
    """

    def __init__(
        self,
        files: GeminiFiles,
        prefix: str,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._files = files
        self._prefix = f"{prefix}{_PREFIX}"
        self._sleep = sleep
        self._now = now
        self._known: dict[str, GeminiFile] = {}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def address(self, file: MediaFile, mime_type: str) -> str:
        """Uploads a file, unless it is there, and returns the address by which requests name it.

        Raises:
            MediaError: The server refuses it, or cannot process it.
            MediaUnavailableError: The server did not answer for `RETRY_SECONDS`.
        """
        content = hashlib.sha256(f"{mime_type}\n{file.identity()}".encode()).hexdigest()
        display_name = f"{self._prefix}{content[:32]}"
        with self._locks[display_name]:
            known = self._known.get(display_name)
            if known is None or self._expires(known):
                known = self._retried(lambda: self._active(self._stored(display_name, file, mime_type)))
                self._known[display_name] = known
        return known.uri

    def _stored(self, display_name: str, file: MediaFile, mime_type: str) -> GeminiFile:
        """Returns the upload of a file; a killed try, another worker or the job's estimate may have made it."""
        # An id has 40 characters at most (ai.google.dev/api/files).
        name = f"files/{hashlib.sha256(display_name.encode()).hexdigest()[:40]}"
        if (found := self._files.find(name)) is not None:
            if not self._expires(found):
                return found
            self._files.delete(name)
        for proposed in (name, ""):
            try:
                found = self._files.upload(display_name, mime_type, file.opened, file.size_bytes, proposed)
                _log.info("%s (%.1f MB) is uploaded until the end of the run.", mime_type, file.size_bytes / 2**20)
                return found
            except (ApiRefusedError, ApiConflictError):
                # The name may be taken: by another worker meanwhile, or by another project.
                if not proposed:
                    raise
                if (found := self._files.find(name)) is not None:
                    return found
        raise AssertionError("unreachable: the second upload returns or raises")

    def _active(self, file: GeminiFile) -> GeminiFile:
        """Waits until a file has been processed."""
        until = self._now() + PROCESSING_SECONDS
        while file.state == "PROCESSING":
            if self._now() >= until:
                raise MediaError(f"the server has not processed an upload within {PROCESSING_SECONDS:.0f} s.")
            self._sleep(POLL_SECONDS)
            if (found := self._files.find(file.name)) is None:
                raise MediaError("an upload was deleted while the server processed it.")
            file = found
        if file.state == "FAILED":
            self._files.delete(file.name)
            raise MediaError(f"the server cannot process the file: {file.error or 'no reason given'}.")
        return file

    def _retried(self, work: Callable[[], GeminiFile]) -> GeminiFile:
        until = self._now() + RETRY_SECONDS
        while True:
            try:
                return work()
            except (ApiDeniedError, ApiRefusedError) as error:
                raise MediaError(f"the upload was refused: {error}") from None
            except ApiError as error:
                if self._now() >= until:
                    raise MediaUnavailableError(f"an upload failed for {RETRY_SECONDS:.0f} s: {error}") from None
                advised = error.retry_after_seconds if isinstance(error, ApiUnavailableError) else None
                self._sleep(advised or POLL_SECONDS)

    def _expires(self, file: GeminiFile) -> bool:
        return 0 < file.expires_at < self._now() + EXPIRY_SECONDS


def open_uploads(model: Model, prefix: str | None) -> UploadedMedia | None:
    """Returns the uploads of a job; `None` if the server of its model takes none.

    Args:
        model: The model.
        prefix: Beginning of the display names of what the job makes at the provider; `None` if nobody deletes it.

    Raises:
        JobSpecError: There is no key.
    """
    if prefix is None or model.media.max_upload_bytes is None:
        return None
    return UploadedMedia(_open_files(model), prefix)


@contextlib.contextmanager
def delete_uploads_after(spec: JobSpec) -> Iterator[None]:
    """Deletes the uploads of a job at its end, and those that killed tries have left behind.

    A job on Dataflow outlives this process: its last step deletes them.
    """
    try:
        yield
    finally:
        if not isinstance(spec.runner, DetachedRunner):
            delete_uploads(spec)


def delete_uploads(spec: JobSpec) -> None:
    """Deletes the uploads of a job, which runs once at a time; what cannot be deleted expires."""
    if not spec.prompt.media or spec.model.media.max_upload_bytes is None:
        return
    try:
        files = _open_files(spec.model)
        for file in list(files.uploaded(f"{display_name_prefix(spec)}{_PREFIX}")):
            files.delete(file.name)
    except (ApiError, JobSpecError) as error:
        _log.warning("The uploads of the job could not be deleted; they expire within 48 hours: %s", error)


def _open_files(model: Model) -> GeminiFiles:
    files: GeminiFiles = part_of(model, "files").open_files(model, open_client(model))
    return files
