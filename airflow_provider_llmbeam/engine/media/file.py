"""Files of prompts, opened, with their type and size checked."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Protocol

from airflow_provider_llmbeam.engine.media.data_uri import data_parts, data_uri, parse_data_uri
from airflow_provider_llmbeam.engine.media.extent import HEAD_BYTES, extent_of
from airflow_provider_llmbeam.spec.model.media import MediaRules, guess_type, place_of
from airflow_provider_llmbeam.spec.model.media_tokens import MediaExtent


@dataclass(frozen=True, slots=True)
class MediaFile:
    """A file, opened.

    Attributes:
        size_bytes: Its size, in bytes.
        identity: Returns a text that only a file of the same bytes has.
        read: Returns its bytes.
        head: Returns its first `HEAD_BYTES`; nothing if they are not available, as of an object on Cloud Storage.
        stream: Opens it for reading piece by piece; `None` if it can only be read as a whole.
    """

    size_bytes: int
    identity: Callable[[], str]
    read: Callable[[], bytes]
    head: Callable[[], bytes] = bytes
    stream: Callable[[], IO[bytes]] | None = None

    def opened(self) -> IO[bytes]:
        """Opens it for reading."""
        return io.BytesIO(self.read()) if self.stream is None else self.stream()


@dataclass(frozen=True, slots=True)
class OpenedMedia:
    """A file of a prompt.

    Attributes:
        uri: Its address.
        mime_type: Its MIME type, given or guessed.
        file: The file; `None` if only its address is known.
        is_inlined: Whether its bytes are sent.
    """

    uri: str
    mime_type: str | None
    file: MediaFile | None
    is_inlined: bool

    @property
    def size_bytes(self) -> int:
        """Size of the bytes that are sent."""
        return self.file.size_bytes if self.file is not None and self.is_inlined else 0

    @property
    def extent(self) -> MediaExtent:
        """How much the file holds, as far as it is known."""
        if self.file is None:
            return MediaExtent()
        return extent_of(self.mime_type, self.file.size_bytes, self.file.head)

    def sent(self) -> tuple[str, str | None]:
        """Returns what is sent: the address, or the bytes as a `data:` URI."""
        if self.file is None or not self.is_inlined:
            return self.uri, self.mime_type
        return data_uri(self.file.read(), str(self.mime_type)), self.mime_type


class MediaFiles(Protocol):
    """Opens files; called from several threads."""

    def open(self, uri: str) -> MediaFile:
        """Opens a file of this machine or of a filesystem.

        Raises:
            MediaError: It does not exist, or cannot be read.
            MediaUnavailableError: Its service does not answer.
        """
        ...


class MediaUploads(Protocol):
    """Uploads files to the server of a model; called from several threads."""

    def address(self, file: MediaFile, mime_type: str) -> str:
        """Uploads a file, unless it is there, and returns the address by which requests name it.

        Raises:
            MediaError: The server refuses it.
            MediaUnavailableError: The server does not answer.
        """
        ...


def open_media(
    uri: str, given: str | None, rules: MediaRules, files: MediaFiles, *, is_checked: bool = True
) -> OpenedMedia:
    """Opens a file, and checks its type and size.

    Args:
        uri: Its address.
        given: Its MIME type, if it was given.
        rules: What the server takes.
        files: Opens files.
        is_checked: Whether a file that the server reads itself was checked before, and is not opened.

    Raises:
        MediaError: It cannot be read, or the server does not take it.
    """
    if place_of(uri) == "data":
        file, own = _data_file(uri)
        known = given or own or "text/plain"  # RFC 2397
        rules.check_type(uri, known)
        rules.check_size(uri, known, file.size_bytes)
        return OpenedMedia(uri, known, file, is_inlined=True)
    mime_type = given or guess_type(uri)
    rules.check_type(uri, mime_type)
    is_inlined = not rules.is_sent_by_address(uri, mime_type)
    if place_of(uri) == "web" or (is_checked and not is_inlined):
        return OpenedMedia(uri, mime_type, None, is_inlined=False)
    file = files.open(uri)
    rules.check_size(uri, mime_type, file.size_bytes)
    return OpenedMedia(uri, mime_type, file, is_inlined=is_inlined)


def _data_file(uri: str) -> tuple[MediaFile, str | None]:
    """Returns the file and the MIME type of a `data:` URI, which is decoded when it is read."""
    mime_type, is_base64, text = data_parts(uri)
    # Of base64 with line breaks somewhat more than its size.
    size_bytes = (len(text) - text[-2:].count("=")) * 3 // 4 if is_base64 else len(text)

    def read() -> bytes:
        return parse_data_uri(uri)[0]

    def identity() -> str:
        return f"sha256:{hashlib.sha256(read()).hexdigest()}"

    return MediaFile(size_bytes, identity, read, lambda: read()[:HEAD_BYTES]), mime_type
