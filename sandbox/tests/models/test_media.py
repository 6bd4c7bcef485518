"""Images and other files in requests to the sandbox: what the services refuse, it refuses."""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Any

import httpx
import pytest
from llmbeam_sandbox import Sandbox
from llmbeam_sandbox.core.records import ReceivedMedia
from llmbeam_sandbox.models.media import FILES_ADDRESS

from tests.media_files import pdf, png

PNG = b"\x89PNG" + bytes(range(256))
ENCODED = base64.b64encode(PNG).decode()
INLINE = ReceivedMedia(mime_type="image/png", sha256=sha256(PNG).hexdigest(), size_bytes=len(PNG))


def ask_gemini(sandbox: Sandbox, part: dict[str, Any], *, is_vertex: bool = False) -> httpx.Response:
    resource = "v1beta1/projects/p/locations/l/publishers/google" if is_vertex else "v1beta"
    return httpx.post(
        f"{sandbox.gemini_url}/{resource}/models/gemini-2.5-flash:generateContent",
        json={"contents": [{"role": "user", "parts": [part, {"text": "What?"}]}]},
        headers={"x-goog-api-key": "k", "Authorization": "Bearer t"},
    )


def ask_openai(sandbox: Sandbox, part: dict[str, Any]) -> httpx.Response:
    content = [part, {"type": "text", "text": "What?"}]
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    return httpx.post(f"{sandbox.openai_url}/chat/completions", json=body)


def inline(data: str = ENCODED, mime_type: str = "image/png") -> dict[str, Any]:
    return {"inlineData": {"mimeType": mime_type, "data": data}}


def address(uri: str, mime_type: str = "image/png") -> dict[str, Any]:
    return {"fileData": {"fileUri": uri, "mimeType": mime_type}}


@pytest.mark.parametrize("is_vertex", [False, True])
def test_the_record_of_a_request_has_the_hash_of_its_bytes(sandbox: Sandbox, is_vertex: bool) -> None:
    answer = ask_gemini(sandbox, inline(), is_vertex=is_vertex)
    assert answer.status_code == 200
    (record,) = sandbox.requests
    assert record.media == (INLINE,)
    assert answer.json()["usageMetadata"]["promptTokenCount"] == 258 + 2


def test_another_image_gives_another_answer(sandbox: Sandbox) -> None:
    texts = {ask_gemini(sandbox, inline(data)).text for data in (ENCODED, base64.b64encode(PNG * 2).decode())}
    assert len(texts) == 2


@pytest.mark.parametrize(
    ("part", "is_vertex", "message"),
    [
        (address("gs://b/a.png"), False, "Invalid or unsupported file uri: gs://b/a.png"),
        (address("/a.png"), False, "Invalid or unsupported file uri: /a.png"),
        (address("/a.png"), True, "Invalid or unsupported file uri: /a.png"),
        (address("file:///a.png"), True, "Invalid or unsupported file uri: file:///a.png"),
        (address(f"data:image/png;base64,{ENCODED}"), True, "Invalid or unsupported file uri: data:"),
        (inline(mime_type="image/gif"), False, "Unsupported MIME type: image/gif"),
        (inline(mime_type=""), False, "Unsupported MIME type: "),
        (address("gs://b/a.gif", "image/gif"), True, "mimeType parameter with value image/gif"),
        (inline("gs://b/a.png"), False, 'Base64 decoding failed for "gs://b/a.png"'),
        (inline(""), False, "the file is empty"),
        (inline(base64.b64encode(bytes(7 * 2**20 + 1)).decode()), True, "the limit is 7340032"),
    ],
)
def test_gemini_refuses_a_file(sandbox: Sandbox, part: dict[str, Any], is_vertex: bool, message: str) -> None:
    answer = ask_gemini(sandbox, part, is_vertex=is_vertex)
    assert (answer.status_code, message in answer.json()["error"]["message"]) == (400, True), answer.text
    assert not sandbox.requests.paid()


@pytest.mark.parametrize(
    ("part", "is_vertex"), [(address("https://h/a.png"), False), (address("gs://b/a.png"), True)]
)
def test_gemini_reads_an_address(sandbox: Sandbox, part: dict[str, Any], is_vertex: bool) -> None:
    assert ask_gemini(sandbox, part, is_vertex=is_vertex).status_code == 200
    assert sandbox.requests[0].media[0].uri == part["fileData"]["fileUri"]


def test_gemini_reads_an_uploaded_file_once_it_has_been_processed(sandbox: Sandbox) -> None:
    files = sandbox.gemini_files
    files.add("files/image", PNG, "", content_type="image/png")
    files.add("files/video", PNG, "", content_type="video/mp4")
    files.processing_seconds = 60.0

    def ask(name: str, *, is_vertex: bool = False) -> tuple[int, str]:
        answer = ask_gemini(sandbox, address(f"{FILES_ADDRESS}{name}"), is_vertex=is_vertex)
        return answer.status_code, answer.json().get("error", {}).get("message", "")

    assert ask("files/image")[0] == 200
    assert sandbox.requests[0].media == (INLINE,)
    assert ask("files/video") == (400, "The File video is not in an ACTIVE state and usage is not allowed.")
    missing = "You do not have permission to access the File other or it may not exist."
    assert ask("files/other") == (403, missing)
    assert ask("files/image", is_vertex=True)[0] == 200, "an address of the web like any other"
    assert len(sandbox.requests.paid()) == 2


@pytest.mark.parametrize(
    ("content", "mime_type", "tokens"),
    [
        (png(384, 10), "image/png", 258),
        (png(960, 540), "image/png", 6 * 258),
        (pdf("a", "b"), "application/pdf", 516),
    ],
)
def test_gemini_counts_tiles_and_pages(sandbox: Sandbox, content: bytes, mime_type: str, tokens: int) -> None:
    part = inline(base64.b64encode(content).decode(), mime_type=mime_type)
    assert ask_gemini(sandbox, part, is_vertex=False).json()["usageMetadata"]["promptTokenCount"] == tokens + 2


@pytest.mark.parametrize(
    ("part", "received"),
    [
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED}"}}, INLINE),
        (
            {"type": "image_url", "image_url": {"url": "https://h/a.png"}},
            ReceivedMedia(mime_type="image/*", uri="https://h/a.png"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": ENCODED, "format": "wav"}},
            ReceivedMedia(mime_type="audio/wav", sha256=INLINE.sha256, size_bytes=INLINE.size_bytes),
        ),
        (
            {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{ENCODED}"}},
            ReceivedMedia(mime_type="application/pdf", sha256=INLINE.sha256, size_bytes=INLINE.size_bytes),
        ),
    ],
)
def test_openai_receives_a_file(sandbox: Sandbox, part: dict[str, Any], received: ReceivedMedia) -> None:
    assert ask_openai(sandbox, part).status_code == 200
    assert sandbox.requests[0].media == (received,)


@pytest.mark.parametrize(
    "part",
    [
        *(
            {"type": "image_url", "image_url": {"url": url}}
            for url in (
                "/a.png",
                "file:///a.png",
                "gs://b/a.png",
                "data:text/plain;base64,aGk=",
                "data:image/png,a",
            )
        ),
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,???"}},
        {"type": "input_audio", "input_audio": {"data": ENCODED, "format": "flac"}},
        {"type": "picture"},
    ],
)
def test_openai_refuses_a_file(sandbox: Sandbox, part: dict[str, Any]) -> None:
    answer = ask_openai(sandbox, part)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")
    assert not sandbox.requests.paid()
