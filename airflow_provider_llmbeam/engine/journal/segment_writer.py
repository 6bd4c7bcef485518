"""Writers of the segments of one batch."""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Protocol

from airflow_provider_llmbeam.engine.journal.segment_name import part_uri


class WritableFiles(Protocol):
    """The filesystem to which segments are written."""

    def create(self, uri: str) -> IO[bytes]:
        """Opens a new file for writing."""
        ...

    def replace(self, uri: str, content: bytes) -> None:
        """Writes a file."""
        ...

    def delete(self, uris: Collection[str]) -> None:
        """Deletes files."""
        ...


#: Returns the address of a new segment, and the array of the hashes of its fingerprints, to be filled.
NewSegment = Callable[[], tuple[str, "array[int]"]]


class SegmentWriter(Protocol):
    """Writes the entries of one batch. Thread-safe."""

    #: Longest time for which an entry may wait for others, to be stored with them.
    max_unstored_seconds: float

    @property
    def unstored(self) -> int:
        """Number of entries that are lost if the process is killed now."""
        ...

    def open(self) -> None:
        """Makes sure that an entry can be written."""

    def write(self, fingerprint_hash: int, line: bytes) -> None:
        """Takes an entry."""

    def store(self, *, is_last: bool = False) -> Future[None] | None:
        """Stores all entries, or begins to do so and returns its end; no entry follows the last call."""

    def close(self) -> None:
        """Stores all entries, and makes them visible to all readers."""


class AppendingWriter:
    """Appends lines to a local file, which are stored, and visible to all readers, once they are written.

    Args:
        new_segment: Returns the address of a new segment.
        create: Opens a new file for writing.
    """

    max_unstored_seconds = 0.0

    def __init__(self, new_segment: NewSegment, create: Callable[[str], IO[bytes]]) -> None:
        self._new_segment = new_segment
        self._create = create
        self._lock = threading.Lock()
        self._unwritten: list[tuple[int, bytes]] = []
        self._file: IO[bytes] | None = None
        self._hashes = array("q")

    @property
    def unstored(self) -> int:
        """Number of entries that are not written yet."""
        return len(self._unwritten)

    def open(self) -> None:
        """Opens the file: connections, of which there may be many, could take the last descriptor."""
        with self._lock:
            self._open()

    def write(self, fingerprint_hash: int, line: bytes) -> None:
        """Keeps an entry until `store` or `close`."""
        with self._lock:
            self._unwritten.append((fingerprint_hash, line))

    def store(self, *, is_last: bool = False) -> None:
        """Writes all entries."""
        with self._lock:
            if self._unwritten:
                self._write()

    def close(self) -> None:
        """Closes the file; the next entry begins another one."""
        with self._lock:
            try:
                if self._unwritten:
                    self._write()
                if self._file is not None:
                    self._file.close()
            finally:
                self._file = None

    def _open(self) -> IO[bytes]:
        if self._file is None:
            uri, self._hashes = self._new_segment()
            self._file = self._create(uri)
        return self._file

    def _write(self) -> None:
        """Writes what is not written yet; after an error a new segment begins, since a line may be incomplete."""
        try:
            file = self._open()
            self._hashes.extend(fingerprint_hash for fingerprint_hash, _ in self._unwritten)
            file.writelines(line for _, line in self._unwritten)
            file.flush()
        except Exception:
            broken, self._file = self._file, None
            if broken is not None:
                with contextlib.suppress(Exception):
                    broken.close()
            raise
        self._unwritten.clear()


class UploadingWriter:
    """Writes to an object store, where a file exists once it is closed.

    Entries are stored in small objects, the parts of a segment. A segment is complete after `SEGMENT_SECONDS`: it
    is written as one object and its parts are deleted, so that a journal of a million answers has thousands of
    objects to list and to read, not hundreds of thousands.

    Args:
        new_segment: Returns the address of a new segment.
        files: The filesystem.
        clock: Monotonic clock, in seconds.
    """

    SEGMENT_SECONDS = max_unstored_seconds = 15.0

    def __init__(self, new_segment: NewSegment, files: WritableFiles, clock: Callable[[], float]) -> None:
        self._new_segment = new_segment
        self._files = files
        self._clock = clock
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="llmbeam-journal")
        self._upload: Future[None] | None = None
        # The entries of the current segment, of which the first ones are in parts.
        self._entries: list[tuple[int, bytes]] = []
        self._in_parts = 0
        self._parts: list[str] = []
        self._uri = ""
        self._hashes = array("q")
        self._began_at = 0.0

    @property
    def unstored(self) -> int:
        """Number of entries that are in no object yet."""
        with self._lock:
            return len(self._entries) - self._in_parts

    def open(self) -> None:
        """Does nothing: no file is open between two uploads."""

    def write(self, fingerprint_hash: int, line: bytes) -> None:
        """Keeps an entry until `store` or `close`."""
        with self._lock:
            if not self._entries:
                self._began_at = self._clock()
            self._entries.append((fingerprint_hash, line))

    def store(self, *, is_last: bool = False) -> Future[None] | None:
        """Begins to upload all entries; `None` if an upload is under way, or if all are stored.

        The last entries complete the segment: in a part they would be uploaded twice.
        """
        with self._lock:
            is_under_way = self._upload is not None and not self._upload.done()
            if is_under_way or len(self._entries) == self._in_parts:
                return None
            self._upload = self._thread.submit(self._complete if is_last else self._store)
            return self._upload

    def close(self) -> None:
        """Completes the segment; if that fails and its parts hold all entries, they remain."""
        self._thread.shutdown()
        if self._entries:
            try:
                self._complete()
            except Exception:
                if self.unstored:
                    raise

    def _store(self) -> None:
        if self._clock() - self._began_at >= self.SEGMENT_SECONDS:
            self._complete()
            return
        with self._lock:
            new = self._entries[self._in_parts :]
        uri = part_uri(self._begun(), len(self._parts))
        self._put(uri, new, new)
        with self._lock:
            self._parts.append(uri)
            self._in_parts += len(new)

    def _complete(self) -> None:
        """Writes the segment. Its parts are deleted afterwards, so that an answer is always in one of the two."""
        with self._lock:
            complete = self._entries[:]
        self._put(self._begun(), complete, complete[self._in_parts :])
        with self._lock:
            parts, self._parts = self._parts, []
            self._in_parts = 0
            del self._entries[: len(complete)]
            self._uri, self._began_at = "", self._clock()
        with contextlib.suppress(Exception):  # its entries are then found twice
            self._files.delete(parts)

    def _begun(self) -> str:
        if not self._uri:
            self._uri, self._hashes = self._new_segment()
        return self._uri

    def _put(self, uri: str, entries: list[tuple[int, bytes]], new: list[tuple[int, bytes]]) -> None:
        self._hashes.extend(fingerprint_hash for fingerprint_hash, _ in new)
        self._files.replace(uri, b"".join(line for _, line in entries))
