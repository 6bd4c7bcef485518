"""Files that are sent with prompts: read when their request is sent, within a limit of memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from operator import attrgetter

from airflow_provider_llmbeam.engine.media.file import MediaFiles, MediaUploads, OpenedMedia, open_media
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.spec.model.media import MediaError, MediaRules, MediaUnavailableError

#: Maximum size of the files of one process that are in memory at once, in bytes, before base64. A larger file is
#: read when no other one is there. A request of a file holds up to 5 times its size (see docs/media.md).
MAX_BYTES = 64 * 2**20
#: Number of files that are read at once. A file of Cloud Storage takes two round trips.
_THREADS = 16
_MEDIA = attrgetter("media")
NOT_SENT = "Nothing was sent for this row."


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
        uploads: Uploads what is too large for a request; `None` if nobody deletes the uploads.
        max_bytes: Maximum size of the files in memory at once, in bytes.
    """

    def __init__(
        self,
        rules: MediaRules,
        files: MediaFiles,
        uploads: MediaUploads | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._rules = rules
        self._files = files
        self._uploads = uploads
        self._limit = ByteLimit(max_bytes)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="llmbeam-media")

    @asynccontextmanager
    async def loaded(self, prompts: Sequence[Prompt]) -> AsyncIterator[list[Prompt]]:
        """Returns the prompts with the bytes of their files, as `data:` URIs, where the server reads none itself.

        Raises:
            RequestError: A file cannot be read, or the server does not take it (kind `media_error`), or its
                service does not answer (`timeout`); nothing was sent.
        """
        run = asyncio.get_running_loop().run_in_executor
        with _as_failure():
            opened = [await run(self._threads, self._opened, prompt) for prompt in prompts]
        # All at once: two prompts that each waited for their second file would wait forever.
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
        opened = [open_media(uri, given, self._rules, self._files) for uri, given in prompt.media]
        if self._uploads is None:
            return opened
        for index in self._rules.uploaded([media.size_bytes for media in opened], len(prompt.text)):
            opened[index] = self._uploaded(opened[index], self._uploads)
        return opened

    def _uploaded(self, media: OpenedMedia, uploads: MediaUploads) -> OpenedMedia:
        if media.file is None:
            return media
        address = uploads.address(media.file, str(media.mime_type))
        return OpenedMedia(address, media.mime_type, None, is_inlined=False)

    def _read(self, prompt: Prompt, opened: Sequence[OpenedMedia]) -> Prompt:
        loaded = replace(prompt, media=tuple(media.sent() for media in opened))
        self._rules.check_request(loaded.characters)
        return loaded


@contextmanager
def _as_failure() -> Iterator[None]:
    try:
        yield
    except MediaError as error:
        raise RequestError("media_error", f"`prompt.media`: {error} {NOT_SENT}") from None
    except MediaUnavailableError as error:
        # No `media_error`, which another run would repeat.
        raise RequestError("timeout", f"`prompt.media`: {error} {NOT_SENT}", is_given_up=True) from None
