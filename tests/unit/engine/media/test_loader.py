"""Reading of the files of prompts: when their request is sent, within a limit of memory."""

from __future__ import annotations

import asyncio
import base64
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.media.data_uri import data_uri, inline_parts, parse_data_uri
from airflow_provider_llmbeam.engine.media.file import MediaFile
from airflow_provider_llmbeam.engine.media.loader import ByteLimit, MediaLoader
from airflow_provider_llmbeam.engine.outcome import PERMANENT, Failure, Outcome
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError, RetryPolicy
from airflow_provider_llmbeam.providers.echo.client import EchoBackend
from airflow_provider_llmbeam.spec.model import EchoModel, GeminiModel, OpenAIModel
from airflow_provider_llmbeam.spec.model.media import MediaError, MediaUnavailableError

DEVELOPER = GeminiModel().media


class Counted:
    """Files of 10 bytes; counts those that are in memory."""

    def __init__(self, size_bytes: int = 10) -> None:
        self.size_bytes = size_bytes
        self.opened: list[str] = []
        self.read: list[str] = []
        self.lock = threading.Lock()

    def open(self, uri: str) -> MediaFile:
        with self.lock:
            self.opened.append(uri)

        def read() -> bytes:
            with self.lock:
                self.read.append(uri)
            return b"x" * self.size_bytes

        return MediaFile(self.size_bytes, lambda: uri, read)


def prompt(*uris: str) -> Prompt:
    return Prompt("What?", media=tuple((uri, None) for uri in uris))


def test_a_file_is_read_for_the_time_of_its_request_and_the_prompt_of_the_batch_stays_small() -> None:
    files = Counted()
    loader = MediaLoader(DEVELOPER, files)
    given_prompt = prompt("/a.png", "https://h/b.png")

    async def main() -> list[Prompt]:
        async with loader.loaded([given_prompt]) as loaded:
            return loaded

    (loaded,) = asyncio.run(main())
    assert loaded.media == ((data_uri(b"x" * 10, "image/png"), "image/png"), ("https://h/b.png", "image/png"))
    assert given_prompt == prompt("/a.png", "https://h/b.png")
    assert files.read == ["/a.png"]


def test_no_more_files_are_in_memory_at_once_than_the_limit_allows_and_all_are_read() -> None:
    files, most = Counted(), 0
    loader = MediaLoader(DEVELOPER, files, max_bytes=45)

    async def send(number: int, held: list[int]) -> None:
        nonlocal most
        async with loader.loaded([prompt(f"/{number}a.png", f"/{number}b.png")]):
            held.append(number)
            most = max(most, len(held))
            await asyncio.sleep(0)
            held.remove(number)

    async def main() -> None:
        held: list[int] = []
        await asyncio.gather(*(send(number, held) for number in range(200)))

    asyncio.run(asyncio.wait_for(main(), 60))
    assert most == 2  # of 20 bytes each
    assert len(files.read) == 400


def test_a_request_above_the_limit_is_sent_alone() -> None:
    loader = MediaLoader(DEVELOPER, Counted(100), max_bytes=10)

    async def main() -> int:
        async with loader.loaded([prompt("/a.png")]) as loaded:
            return len(loaded)

    assert asyncio.run(asyncio.wait_for(main(), 60)) == 1


@given(st.lists(st.integers(0, 30), max_size=20))
def test_reservations_never_exceed_the_limit_unless_alone_and_none_waits_for_ever(sizes: list[int]) -> None:
    async def main() -> None:
        limit, held = ByteLimit(20), []

        async def take(size: int) -> None:
            async with limit.reserved(size):
                held.append(size)
                assert sum(held) <= 20 or [one for one in held if one] == [size]
                await asyncio.sleep(0)
                held.remove(size)

        await asyncio.wait_for(asyncio.gather(*map(take, sizes)), 60)
        assert not held

    asyncio.run(main())


class Failing:
    def __init__(self, error: Exception) -> None:
        self.error = error
        self.opened: list[str] = []

    def open(self, uri: str) -> MediaFile:
        self.opened.append(uri)
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind"),
    [(MediaError("the file is gone."), "media_error"), (MediaUnavailableError("no answer."), "timeout")],
)
def test_a_file_that_cannot_be_read_is_a_failure_before_a_request(error: Exception, kind: str) -> None:
    files = Failing(error)

    async def main() -> list[Outcome]:
        engine = Engine(
            EchoBackend(EchoModel(type="echo")),
            governor=LearnedRate(),
            buckets=LengthBuckets((128,), 1024),
            parser=OutputParser(None),
            policy=RetryPolicy(max_attempts=3, max_throttled_seconds=60.0),
            max_in_flight=4,
            request_timeout_seconds=10.0,
            media=MediaLoader(DEVELOPER, files),
        )
        return await engine.answer([prompt("/a.png")])

    (failed,) = asyncio.run(main())
    assert isinstance(failed, Failure)
    assert (failed.kind, failed.http_status, failed.attempts) == (kind, None, 0)
    assert failed.message == f"`prompt.media`: {error} Nothing was sent for this row."
    assert files.opened == ["/a.png"], "whoever opens it has tried again for long enough"
    assert (kind in PERMANENT) == isinstance(error, MediaError), "another run may read it"


def test_a_file_that_has_grown_since_it_was_opened_is_refused() -> None:
    class Growing:
        def open(self, uri: str) -> MediaFile:
            return MediaFile(1, lambda: uri, lambda: b"x" * (51 * 2**20))

    rules = replace(DEVELOPER, max_request_bytes=2**20)

    async def main() -> None:
        async with MediaLoader(rules, Growing()).loaded([prompt("/a.png")]):
            pass

    with pytest.raises(
        RequestError, match=r"make a request of 68\.0 MB, and the Gemini Developer API takes at most"
    ):
        asyncio.run(main())


@given(st.binary(), st.sampled_from(["image/png", "text/plain"]))
def test_a_data_uri_holds_the_bytes(content: bytes, mime_type: str) -> None:
    uri = data_uri(content, mime_type)
    assert parse_data_uri(uri) == (content, mime_type)
    assert inline_parts(uri) == (mime_type, base64.b64encode(content).decode())


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("data:,a%20b", (b"a b", None)),
        ("data:text/plain;charset=utf-8,a", (b"a", "text/plain")),
        ("data:image/png;base64,aGk=\n", (b"hi", "image/png")),
        ("DATA:image/PNG;BASE64,aGk=", (b"hi", "image/png")),
    ],
)
def test_every_form_of_a_data_uri_is_read(uri: str, expected: tuple[bytes, str | None]) -> None:
    assert parse_data_uri(uri) == expected


class Uploads:
    """Uploads of files, by their content."""

    def __init__(self) -> None:
        self.uploaded: list[tuple[bytes, str]] = []

    def address(self, file: MediaFile, mime_type: str) -> str:
        with file.opened() as opened:
            self.uploaded.append((opened.read(), mime_type))
        return "https://files/a"


def test_a_file_that_is_too_large_for_the_request_is_named_by_the_address_of_its_upload() -> None:
    files, uploads = Counted(300), Uploads()
    rules = replace(DEVELOPER, max_request_bytes=800)

    async def main() -> list[Prompt]:
        loader = MediaLoader(rules, files, uploads)
        async with loader.loaded([prompt("/a.png", "https://h/b.png", "/c.png")]) as loaded:
            return loaded

    (loaded,) = asyncio.run(main())
    assert loaded.media == (
        ("https://files/a", "image/png"),
        ("https://h/b.png", "image/png"),
        (data_uri(b"x" * 300, "image/png"), "image/png"),
    )
    assert uploads.uploaded == [(b"x" * 300, "image/png")]


def test_an_openai_server_gets_bytes_of_gs() -> None:
    files = Counted()
    rules = OpenAIModel(type="openai", name="m").media

    async def main() -> list[Prompt]:
        async with MediaLoader(rules, files).loaded([prompt("gs://b/a.png")]) as loaded:
            return loaded

    assert asyncio.run(main())[0].media[0][0].startswith("data:image/png;base64,")
