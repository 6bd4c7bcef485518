"""Files of prompts, on this machine, on Cloud Storage, or on another filesystem of Beam."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from airflow_provider_llmbeam.engine.media.extent import HEAD_BYTES
from airflow_provider_llmbeam.engine.media.file import MediaFile, MediaFiles, open_media
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.launch.writable import is_final
from airflow_provider_llmbeam.spec.model.media import (
    MediaError,
    MediaRules,
    MediaUnavailableError,
    local_path,
    place_of,
    shortened,
)

#: Time in which a request to Cloud Storage is retried, in seconds.
_RETRY_SECONDS = 30.0

ResultT = TypeVar("ResultT")


class StoredMedia:
    """Opens files; threads share the client of Cloud Storage.

    A file of this machine is identified by its bytes, as its time says nothing after a copy. An object of Cloud
    Storage is identified by its MD5, which is in its metadata; a composite object has none, and is identified by
    its address and generation, as other files are by address, size and time.
    """

    def open(self, uri: str) -> MediaFile:
        """Opens a file.

        Raises:
            MediaError: It does not exist, or cannot be read.
            MediaUnavailableError: The service does not answer.
        """
        if place_of(uri) == "local":
            return _local(uri)
        return _of_service(uri, lambda: _on_cloud_storage(uri) or _elsewhere(uri))


def media_identities(
    media: Sequence[tuple[str, str | None]], rules: MediaRules, files: MediaFiles
) -> list[tuple[str, str | None]]:
    """Returns identity and type of the files of a prompt; one that cannot be read keeps its address, and fails."""
    found: list[tuple[str, str | None]] = []
    for uri, given in media:
        try:
            opened = open_media(uri, given, rules, files, is_checked=False)
            found.append((uri if opened.file is None else opened.file.identity(), opened.mime_type))
        except MediaError:
            found.append((uri, given))
    return found


def _local(uri: str) -> MediaFile:
    path = Path(local_path(uri))
    try:
        if not path.is_file():
            reason = "is no regular file" if path.exists() else "does not exist"
            raise MediaError(f"the file {shortened(uri)!r} {reason} on this machine.")
        size_bytes = path.stat().st_size
    except (OSError, ValueError) as error:  # a name with a null byte
        if isinstance(error, MediaError):
            raise
        raise _unreadable(uri, error) from None

    def identity() -> str:
        try:
            with path.open("rb") as file:
                return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        except OSError as error:
            raise _unreadable(uri, error) from None

    def read(most_bytes: int = -1) -> bytes:
        try:
            with path.open("rb") as file:
                return file.read(most_bytes)
        except OSError as error:
            raise _unreadable(uri, error) from None

    def stream() -> IO[bytes]:
        try:
            return path.open("rb")
        except OSError as error:
            raise _unreadable(uri, error) from None

    return MediaFile(size_bytes, identity, read, lambda: read(HEAD_BYTES), stream)


def _on_cloud_storage(uri: str) -> MediaFile | None:
    try:
        found = storage.cloud_object(uri)
    except ValueError:
        raise MediaError(
            f"{shortened(uri)!r} is no file that can be read here. Expected gs://bucket/name, https://…, data:… "
            "or a path of this machine."
        ) from None
    if found is None:
        return None
    bucket, name = found
    retry = _retry()
    blob: Any = bucket.get_blob(name, retry=retry)
    if blob is None:
        raise MediaError(f"the object {shortened(uri)!r} does not exist.")
    known = f"md5:{blob.md5_hash}" if blob.md5_hash else f"{uri}#{blob.generation}"

    def read() -> bytes:
        # Without the generation, a file that is replaced meanwhile would be the new one with the size of the old.
        return _of_service(
            uri, lambda: bytes(blob.download_as_bytes(retry=retry, if_generation_match=blob.generation))
        )

    return MediaFile(int(blob.size or 0), lambda: known, read, stream=lambda: _stream(uri))


def _retry() -> Any:
    from google.cloud.storage.retry import DEFAULT_RETRY  # type: ignore[import-untyped]

    return DEFAULT_RETRY.with_timeout(_RETRY_SECONDS)


def _elsewhere(uri: str) -> MediaFile:
    try:
        metadata = storage.metadata(uri)
    except Exception as error:  # noqa: BLE001 - the errors of any filesystem, or none for this scheme
        raise _unreadable(uri, error) from None
    if metadata is None:
        raise MediaError(f"the file {shortened(uri)!r} does not exist.")

    def read() -> bytes:
        try:
            return storage.read(uri)
        except Exception as error:  # noqa: BLE001 - as above
            raise _unreadable(uri, error) from None

    identity = f"{uri}#{metadata.size_in_bytes}#{metadata.last_updated_in_seconds}"
    return MediaFile(metadata.size_in_bytes, lambda: identity, read, stream=lambda: _stream(uri))


def _stream(uri: str) -> IO[bytes]:
    return _of_service(uri, lambda: storage.open(uri))


def _of_service(uri: str, action: Callable[[], ResultT]) -> ResultT:
    """Tells an object that cannot be read, which fails its row, from a service that does not answer."""
    try:
        return action()
    except MediaError:
        raise
    except Exception as error:
        code, message = getattr(error, "code", None), str(getattr(error, "message", error))
        if is_final(error) and isinstance(code, int):
            raise MediaError(f"Cloud Storage refused {shortened(uri)!r}: {code} {message[:60]}.") from None
        raise MediaUnavailableError(
            f"{shortened(uri)!r} could not be read for {_RETRY_SECONDS:g} s: {type(error).__name__}: "
            f"{message[:300]}."
        ) from error


def _unreadable(uri: str, error: Exception) -> MediaError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return MediaError(f"the file {shortened(uri)!r} cannot be read: {reason[:100].rstrip('.')}.")
