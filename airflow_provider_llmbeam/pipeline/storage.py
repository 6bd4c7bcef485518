"""Files of a job, local and in object stores: Beam's filesystems, with one client of Cloud Storage per process.

Beam makes a client for each operation on `gs://`, and so a TLS connection: 20 to 40 ms of CPU time on two cores,
and the round trips of its handshake. Threads may share a client (README of google-cloud-storage).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import cache, lru_cache
from typing import IO

from apache_beam.io.filesystem import CompressionTypes, FileMetadata, FileSystem
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions


def create(uri: str) -> IO[bytes]:
    """Opens a new file for writing; one in an object store exists once it is closed."""
    file: IO[bytes] = _filesystem(uri).create(uri, compression_type=CompressionTypes.UNCOMPRESSED)
    return file


def open(uri: str) -> IO[bytes]:  # noqa: A001
    """Opens a file for reading, without decompressing it."""
    file: IO[bytes] = _filesystem(uri).open(uri, compression_type=CompressionTypes.UNCOMPRESSED)
    return file


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


def has_match(pattern: str) -> bool:
    """Returns whether a file matches a pattern."""
    (matched,) = _filesystem(pattern).match([pattern], [1])
    return bool(matched.metadata_list)


def rename(targets: Mapping[str, str]) -> None:
    """Renames files to the given addresses, replacing existing files."""
    if targets:
        _filesystem(next(iter(targets))).rename([*targets], [*targets.values()])


def delete(uris: Collection[str]) -> None:
    """Deletes files."""
    if uris:
        _filesystem(next(iter(uris))).delete(sorted(uris))


def _filesystem(uri: str) -> FileSystem:
    filesystem = FileSystems.get_filesystem(uri)
    if filesystem.scheme() != "gs":
        return filesystem
    return _cloud_storage(filesystem._pipeline_options, os.environ.get("STORAGE_EMULATOR_HOST"))


@lru_cache(maxsize=1)
def _cloud_storage(options: PipelineOptions | None, emulator: str | None) -> FileSystem:
    """Returns a filesystem with one client, which belongs to these options and reads the emulator once."""
    filesystem = FileSystems.get_filesystem("gs://")
    filesystem._gcsIO = cache(filesystem._gcsIO)
    return filesystem
