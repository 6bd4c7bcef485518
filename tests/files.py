"""Filesystems of a journal."""

from __future__ import annotations

import fnmatch
import io
from collections.abc import Collection
from pathlib import Path
from typing import IO


class LocalFiles:
    """A directory of this machine."""

    def is_local(self, uri: str) -> bool:
        return True

    def create(self, uri: str) -> IO[bytes]:
        return Path(uri).open("xb")

    def replace(self, uri: str, content: bytes) -> None:
        Path(uri).write_bytes(content)

    def open(self, uri: str) -> IO[bytes]:
        return Path(uri).open("rb")

    def sizes(self, pattern: str) -> dict[str, int]:
        found = Path(pattern).parent.glob(Path(pattern).name)
        return {str(path): path.stat().st_size for path in found}

    def delete(self, uris: Collection[str]) -> None:
        for uri in uris:
            Path(uri).unlink()


class ObjectStore:
    """A store to which only whole objects are written. `refusals` is the number of next uploads that fail."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.opened: list[str] = []
        self.uploads: list[str] = []
        self.refusals = 0
        self.can_delete = True

    def is_local(self, uri: str) -> bool:
        return False

    def replace(self, uri: str, content: bytes) -> None:
        if self.refusals:
            self.refusals -= 1
            raise OSError(503, "try later")
        self.uploads.append(uri)
        self.objects[uri] = content

    def create(self, uri: str) -> IO[bytes]:
        raise AssertionError("a file that is open is not stored")

    def open(self, uri: str) -> IO[bytes]:
        self.opened.append(uri)
        return io.BytesIO(self.objects[uri])

    def sizes(self, pattern: str) -> dict[str, int]:
        return {uri: len(self.objects[uri]) for uri in fnmatch.filter(self.objects, pattern)}

    def delete(self, uris: Collection[str]) -> None:
        if not self.can_delete:
            raise PermissionError(403, "storage.objects.delete")
        for uri in uris:
            del self.objects[uri]
