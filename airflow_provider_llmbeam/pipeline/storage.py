"""Files of a job, local and in object stores: Beam's filesystems, with one client of Cloud Storage per process.

Beam makes a client for each operation on `gs://`, and so a TLS connection: 20 to 40 ms of CPU time on two cores,
and the round trips of its handshake. Threads may share a client (README of google-cloud-storage).
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import random
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import IO, Any

from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata, FileSystem
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp.gcsio import parse_gcs_path
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from google.api_core.exceptions import NotFound, PreconditionFailed, from_http_status
from google.cloud.storage.retry import DEFAULT_RETRY  # type: ignore[import-untyped]

from airflow_provider_llmbeam import local_files
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.source import glob_pattern
from airflow_provider_llmbeam.transport.object_keys import encrypt_objects
from airflow_provider_llmbeam.transport.redirects import direct

_BUFFER_BYTES = 2**20
#: Number of attempts to replace an object that other jobs replace at the same time.
_ATTEMPTS = 10


def use_key(kms_key_name: str | None) -> None:
    """Lets this process write to Cloud Storage with a key of Cloud KMS, or none, until a pipeline has options.

    Workers have the same option, the only one of Beam for a key, from the pipeline, see `launch.runner`.
    """
    FileSystems.set_options(PipelineOptions([], dataflow_kms_key=kms_key_name))


def create(uri: str, *, is_private: bool = False, mime_type: str = "application/octet-stream") -> IO[bytes]:
    """Opens a new file for writing; one in an object store exists once it is closed.

    Args:
        uri: Its address.
        is_private: Whether nobody but its owner can read it, also when it is renamed, if it is a local file.
        mime_type: Its type, which an object store keeps.

    Raises:
        PermissionError: It is a local link, see `local_files`.
    """
    filesystem = _filesystem(uri)
    if not _is_local(filesystem):
        file: IO[bytes] = filesystem.create(uri, mime_type, CompressionTypes.UNCOMPRESSED)
        return file
    path = Path(uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    return local_files.create(path, is_private=is_private)


def replace(uri: str, content: bytes, *, is_private: bool = True) -> None:
    """Writes a file; a reader finds its old content or the new one, never a part.

    Args:
        uri: Its address.
        content: Its content.
        is_private: Whether nobody but its owner can read it, if it is a local file.
    """
    if (bucket_and_name := cloud_object(uri)) is not None:
        bucket, name = bucket_and_name
        # one request, where a file that Beam opens is an upload of two
        bucket.blob(name).upload_from_string(content, "application/octet-stream", retry=DEFAULT_RETRY)
        return
    if not _is_local(_filesystem(uri)):
        with create(uri) as file:  # an object exists once it is closed
            file.write(content)
        return
    part = Path(f"{uri}.{uuid.uuid4().hex[:8]}.part")  # of this call alone, as others may replace the same file
    try:
        with create(str(part), is_private=is_private) as file:
            file.write(content)
        part.replace(uri)
    finally:
        part.unlink(missing_ok=True)


def change(uri: str, changed: Callable[[bytes | None], bytes]) -> None:
    """Replaces the content of a small file; changes that other jobs make at the same time are all made.

    Other filesystems than this machine's and Cloud Storage have neither locks nor preconditions: there the last
    one of two changes at the same time counts.

    Args:
        uri: Its address.
        changed: Returns the new content for the old one, `None` if there is no such file. It may be called again.

    Raises:
        PreconditionFailed: Other jobs have changed an object ten times meanwhile.
    """
    if (bucket_and_name := cloud_object(uri)) is not None:
        _change_object(*bucket_and_name, changed)
        return
    make_private(uri.rpartition("/")[0] + "/")
    with ExitStack() as until_end:
        if is_local(uri):
            lock = until_end.enter_context(local_files.create(Path(f"{uri}.lock"), is_private=False))
            with suppress(OSError):  # a network filesystem without locks
                fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        content = read_if_exists(uri)
        if (new := changed(content)) != content:
            replace(uri, new)


def _change_object(bucket: Any, name: str, changed: Callable[[bytes | None], bytes]) -> None:
    for attempts_left in reversed(range(_ATTEMPTS)):
        if attempts_left < _ATTEMPTS - 1:
            time.sleep(random.random())  # an object takes one write per second
        blob = bucket.blob(name)
        try:
            blob.reload()
            content = blob.download_as_bytes(if_generation_match=blob.generation)
            generation = blob.generation
        except NotFound:
            content, generation = None, 0
        if (new := changed(content)) == content:
            return
        try:
            blob.upload_from_string(new, "application/json", if_generation_match=generation)
        except PreconditionFailed:
            if not attempts_left:
                raise
        else:
            return


def open(uri: str, *, block_bytes: int | None = None) -> IO[bytes]:  # noqa: A001
    """Opens a file for reading, without decompressing it.

    Args:
        uri: Its address.
        block_bytes: Bytes that one request to Cloud Storage asks for; `None` for the 16 MiB of Beam.

    Raises:
        PermissionError: It is a pipe or a device, which may never end.
    """
    filesystem = _filesystem(uri)
    if _is_local(filesystem) and Path(uri).exists() and not Path(uri).is_file():
        raise PermissionError(errno.EPERM, "Not a regular file", uri)
    file: IO[bytes]
    if block_bytes is not None and filesystem.scheme() == "gs":
        file = filesystem._gcsIO().open(uri, "rb", read_buffer_size=block_bytes)
    else:
        file = filesystem.open(uri, compression_type=CompressionTypes.UNCOMPRESSED)
    return file


def open_buffered(uri: str) -> io.BufferedReader:
    """Opens a file for reading as `open`; files that Beam opens on Cloud Storage read lines byte by byte."""
    file: Any = open(uri)
    return io.BufferedReader(file, _BUFFER_BYTES)


def read(uri: str) -> bytes:
    """Returns the content of a file."""
    with open(uri) as file:
        return file.read()


def read_if_exists(uri: str) -> bytes | None:
    """Returns the content of a file; `None` if there is no such file."""
    return read(uri) if exists(uri) else None


def exists(uri: str) -> bool:
    """Returns whether a file exists."""
    return bool(_filesystem(uri).exists(uri))


def match(pattern: str) -> list[str]:
    """Returns the addresses of the files that match a pattern, possibly none."""
    return [metadata.path for metadata in match_metadata(pattern)]


def match_metadata(pattern: str) -> list[FileMetadata]:
    """Returns address, size and time of the files that match a pattern, possibly none."""
    (matched,) = _filesystem(pattern).match([pattern])
    return list(matched.metadata_list)


def metadata(uri: str) -> FileMetadata | None:
    """Returns address, size and time of the file of exactly this name; `None` if there is none."""
    filesystem = _filesystem(uri)
    return filesystem.metadata(uri) if filesystem.exists(uri) else None


def find(uri: str) -> list[FileMetadata]:
    """Returns the files that a user's path or glob names, possibly none, by name.

    Beam's own patterns (2.77) read a name with `[` as a pattern, find nothing by one without a folder, and need a
    folder for `**/`: so Beam lists the files, and `glob_pattern` selects.
    """
    if not uri.endswith("/") and (file := metadata(uri)) is not None:
        return [file]
    start = uri[: min((uri.find(sign) for sign in "*?[" if sign in uri), default=len(uri))]
    if start == uri:
        return match_metadata(uri)
    if "/" not in start:
        uri, start = f"./{uri}", f"./{start}"
    is_match = glob_pattern(uri).fullmatch
    found = (file for file in match_metadata(f"{start}**") if is_match(file.path))
    return sorted(found, key=lambda file: file.path)


def sizes(pattern: str) -> dict[str, int]:
    """Returns the files that match a pattern, possibly none, with their sizes in bytes."""
    return {metadata.path: metadata.size_in_bytes for metadata in match_metadata(pattern)}


def has_match(pattern: str) -> bool:
    """Returns whether a file matches a pattern."""
    (matched,) = _filesystem(pattern).match([pattern], [1])
    return bool(matched.metadata_list)


def rename(targets: Mapping[str, str]) -> None:
    """Renames files to the given addresses, replacing existing files."""
    if targets:
        _filesystem(next(iter(targets))).rename([*targets], [*targets.values()])


def delete(uris: Collection[str]) -> None:
    """Deletes files, of which others may have deleted some; in Cloud Storage a hundred with one request.

    Raises:
        GoogleAPICallError: Some could not be deleted from Cloud Storage.
    """
    if not uris:
        return
    filesystem = _filesystem(next(iter(uris)))
    if _is_local(filesystem):
        for uri in uris:
            Path(uri).unlink(missing_ok=True)
        return
    if filesystem.scheme() != "gs":
        filesystem.delete(sorted(uris))
        return
    # `filesystem.delete` sends a second request for each file, which looks for it (Beam 2.77).
    if failed := [(uri, status) for uri, status in filesystem._gcsIO().delete_batch(sorted(uris)) if status]:
        uri, status = failed[0]
        message = f"{len(failed)} of {len(uris)} objects could not be deleted, the first of them {uri!r}"
        raise from_http_status(status, message)  # type: ignore[no-untyped-call]


def is_local(uri: str) -> bool:
    """Returns whether an address is a path of this machine."""
    return _is_local(FileSystems.get_filesystem(uri))


def cloud_object(uri: str) -> tuple[Any, str] | None:
    """Returns the bucket, as an object of Google's client, and the name of an object of Cloud Storage.

    It is for requests with preconditions, which Beam does not offer; `None` for other filesystems.
    """
    filesystem = _filesystem(uri)
    if filesystem.scheme() != "gs":
        return None
    bucket, name = parse_gcs_path(uri)
    return filesystem._gcsIO().client.bucket(bucket), name


def check_scheme(field: str, uri: str | None) -> None:
    """Checks that Beam has the filesystem of an address, or that the user has added it.

    Raises:
        JobSpecError: No filesystem has the scheme.
    """
    try:
        FileSystems.get_filesystem(uri or "")
    except ValueError:
        raise JobSpecError(
            f"`{field}` {uri!r}: Beam reads no {FileSystems.get_scheme(uri)}://. Expected a local path, or an "
            "address that begins with gs://, s3://, azfs:// or hdfs://."
        ) from None
    except BeamIOError:  # the filesystem is known, and its package is not installed here
        return


def make_private(uri: str) -> None:
    """Makes a local directory that only its owner can read, before anything is sent.

    A directory that exists keeps its mode: it may be shared on purpose. Object stores have their own access rules.

    Raises:
        JobSpecError: Files cannot be read and written in it.
    """
    if not is_local(uri):
        return
    directory = Path(uri)
    try:
        local_files.make_private(directory)
        reason = None if os.access(directory, os.R_OK | os.W_OK | os.X_OK) else "Permission denied"
    except OSError as error:
        reason = error.strerror
    if reason is not None:
        raise JobSpecError(
            f"The directory {uri!r} holds the state of jobs, and this user cannot read and write in it: {reason}."
        )


def refuse_links(uri: str) -> None:
    """Checks that a local directory of this package is no link, and that none in it is.

    Raises:
        JobSpecError: One is: whoever made it could have files written and deleted where it leads.
    """
    if is_local(uri) and (fault := local_files.link_fault(Path(uri))):
        raise JobSpecError(fault)


def _is_local(filesystem: FileSystem) -> bool:
    return filesystem.scheme() is None


def _filesystem(uri: str) -> FileSystem:
    filesystem = FileSystems.get_filesystem(uri)
    if filesystem.scheme() != "gs":
        return filesystem
    return _cloud_storage(filesystem._pipeline_options, os.environ.get("STORAGE_EMULATOR_HOST"))


@lru_cache(maxsize=1)
def _cloud_storage(options: PipelineOptions | None, emulator: str | None) -> FileSystem:
    """Returns a filesystem with one client, which belongs to these options and reads the emulator once."""
    filesystem = FileSystems.get_filesystem("gs://")
    connect = filesystem._gcsIO

    @cache
    def connected() -> Any:
        gcs = connect()
        encrypt_objects(direct(gcs.client), options and options.view_as(GoogleCloudOptions).dataflow_kms_key)
        return gcs

    filesystem._gcsIO = connected
    return filesystem
