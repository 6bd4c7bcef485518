"""Files that are sent with prompts: read when their request is sent, within a limit of memory."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Protocol
from urllib.parse import unquote_to_bytes

from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.spec.model.media import (
    MediaError,
    MediaRules,
    MediaUnavailableError,
    guessed_type,
    place_of,
    shortened,
)

#: Maximum size of the files of one process that are in memory at once, in bytes, before base64. A larger file is
#: read when no other one is there. A request of a file holds up to 5 times its size (see docs/media.md).
MAX_BYTES = 64 * 2**20
#: Number of files that are read at once. A file of Cloud Storage takes two round trips.
_THREADS = 16
_MEDIA = attrgetter("media")
NOT_SENT = "Nothing was sent for this row."


@dataclass(frozen=True, slots=True)
class MediaFile:
    """A file, opened.

    Attributes:
        size_bytes: Its size, in bytes.
        identity: Returns a text that only a file of the same bytes has.
        read: Returns its bytes.
    """

    size_bytes: int
    identity: Callable[[], str]
    read: Callable[[], bytes]


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


class ByteLimit:
    """Limits the bytes that are reserved at once, in the order of their requests.

    Args:
        max_bytes: The limit; a reservation above it is admitted alone.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used = 0
        self._turn = asyncio.Lock()  # first come, first served, so that small files do not overtake a large one
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def reserved(self, size_bytes: int) -> AsyncIterator[None]:
        """Reserves bytes for the body of the `async with`, and waits for them before."""
        async with self._turn:
            while self._used and self._used + size_bytes > self._max_bytes:
                self._freed.clear()
                await self._freed.wait()
            self._used += size_bytes
        try:
            yield
        finally:
            self._used -= size_bytes
            self._freed.set()


def has_media(prompts: Sequence[Prompt]) -> bool:
    """Returns whether a prompt has files; it is asked for each request."""
    return any(map(_MEDIA, prompts))


class MediaLoader:
    """Reads the files of a prompt for the time of one request.

    Args:
        rules: What the server takes.
        files: Opens files.
        max_bytes: Maximum size of the files in memory at once, in bytes.
    """

    def __init__(self, rules: MediaRules, files: MediaFiles, max_bytes: int = MAX_BYTES) -> None:
        self._rules = rules
        self._files = files
        self._limit = ByteLimit(max_bytes)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="llmbeam-media")

    @asynccontextmanager
    async def loaded(self, prompts: Sequence[Prompt]) -> AsyncIterator[list[Prompt]]:
        """Returns the prompts with the bytes of their files, as `data:` URIs, where the server reads none itself.

        Raises:
            RequestError: A file cannot be read, or the server does not take it; nothing was sent.
        """
        run = asyncio.get_running_loop().run_in_executor
        with _as_failure():
            opened = [await run(self._threads, self._opened, prompt) for prompt in prompts]
        # All at once: two prompts that each waited for their second file would wait for ever.
        async with self._limit.reserved(sum(media.size_bytes for found in opened for media in found)):
            with _as_failure():
                read = [
                    await run(self._threads, self._read, prompt, found)
                    for prompt, found in zip(prompts, opened, strict=True)
                ]
            yield read

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _opened(self, prompt: Prompt) -> list[OpenedMedia]:
        return [open_media(uri, given, self._rules, self._files) for uri, given in prompt.media]

    def _read(self, prompt: Prompt, opened: Sequence[OpenedMedia]) -> Prompt:
        loaded = replace(prompt, media=tuple(media.sent() for media in opened))
        self._rules.check_request(loaded.characters)
        return loaded


@contextmanager
def _as_failure() -> Iterator[None]:
    try:
        yield
    except (MediaError, MediaUnavailableError) as error:
        raise RequestError("media_error", f"`prompt.media`: {error} {NOT_SENT}") from None


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
    mime_type = given or guessed_type(uri)
    rules.check_type(uri, mime_type)
    is_inlined = not rules.is_sent_by_address(uri, mime_type)
    if place_of(uri) == "web" or (is_checked and not is_inlined):
        return OpenedMedia(uri, mime_type, None, is_inlined=False)
    file = files.open(uri)
    rules.check_size(uri, mime_type, file.size_bytes)
    return OpenedMedia(uri, mime_type, file, is_inlined=is_inlined)


def _data_file(uri: str) -> tuple[MediaFile, str | None]:
    """Returns the file and the MIME type of a `data:` URI, which is decoded when it is read."""
    head, text = _data_parts(uri)
    is_base64 = _is_base64(head)
    # Of base64 with line breaks somewhat more than its size.
    size_bytes = (len(text) - text[-2:].count("=")) * 3 // 4 if is_base64 else len(text)

    def read() -> bytes:
        return parse_data_uri(uri)[0]

    return MediaFile(size_bytes, lambda: f"sha256:{hashlib.sha256(read()).hexdigest()}", read), _data_type(head)


def data_uri(content: bytes, mime_type: str) -> str:
    """Returns bytes as a `data:` URI."""
    return f"data:{mime_type};base64,{base64.b64encode(content).decode('ascii')}"


def inline_parts(uri: str) -> tuple[str, str]:
    """Returns the MIME type and the base64 text of a `data:` URI of `data_uri`."""
    head, _, text = uri.partition(",")
    return head.removeprefix("data:").removesuffix(";base64"), text


def parse_data_uri(uri: str) -> tuple[bytes, str | None]:
    """Returns the bytes and the MIME type of any `data:` URI (RFC 2397); `None` if it has no type.

    Raises:
        MediaError: It is none.
    """
    head, text = _data_parts(uri)
    if not _is_base64(head):
        return unquote_to_bytes(text), _data_type(head)
    try:
        return base64.b64decode("".join(text.split()), validate=True), _data_type(head)
    except (binascii.Error, ValueError) as error:
        raise MediaError(
            f"{shortened(uri)!r} is not base64 ({error}). Expected data:image/png;base64,… with all bytes."
        ) from None


def _data_parts(uri: str) -> tuple[str, str]:
    head, comma, text = uri[5:].partition(",")
    if not comma:
        raise MediaError(
            f"{shortened(uri)!r} has no comma. Expected data:image/png;base64,… with the bytes after it."
        )
    return head, text


def _data_type(head: str) -> str | None:
    return head.partition(";")[0].strip().lower() or None


def _is_base64(head: str) -> bool:
    return "base64" in (parameter.strip().lower() for parameter in head.split(";")[1:])
