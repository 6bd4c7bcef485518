"""A small file that several jobs change, one after the other."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.api_core.exceptions import NotFound, PreconditionFailed

from airflow_provider_llmbeam.pipeline import storage

#: Number of attempts to replace an object that other jobs replace at the same time.
_ATTEMPTS = 5


def change(uri: str, changed: Callable[[bytes | None], bytes]) -> None:
    """Replaces the content of a file; changes that other jobs make at the same time are all made.

    Other filesystems than this machine's and Cloud Storage have neither locks nor preconditions: there the last
    one of two changes at the same time counts.

    Args:
        uri: Its address.
        changed: Returns the new content for the old one, `None` if there is no such file. It may be called again.

    Raises:
        PreconditionFailed: Other jobs have changed an object five times meanwhile.
    """
    if (bucket_and_name := storage.cloud_object(uri)) is not None:
        _change_object(*bucket_and_name, changed)
        return
    storage.make_private(uri.rpartition("/")[0] + "/")
    if not storage.is_local(uri):
        storage.replace(uri, changed(content_of(uri)))
        return
    with Path(f"{uri}.lock").open("a") as lock:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        storage.replace(uri, changed(content_of(uri)))


def content_of(uri: str) -> bytes | None:
    """Returns the content of a file; `None` if there is no such file."""
    return storage.read(uri) if storage.exists(uri) else None


def _change_object(bucket: Any, name: str, changed: Callable[[bytes | None], bytes]) -> None:
    for attempt in range(_ATTEMPTS):
        blob = bucket.blob(name)
        try:
            blob.reload()
            content = blob.download_as_bytes(if_generation_match=blob.generation)
            generation = blob.generation
        except NotFound:
            content, generation = None, 0
        try:
            blob.upload_from_string(changed(content), "application/json", if_generation_match=generation)
        except PreconditionFailed:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return
