"""What each server takes of images, audio, video and documents."""

from __future__ import annotations

import mimetypes

import pytest

from airflow_provider_llmbeam.spec.model import EchoModel, GeminiModel, Model, OpenAIModel, VertexEndpointModel
from airflow_provider_llmbeam.spec.model.media import (
    MIB,
    MediaError,
    guess_type,
    literal_ends,
    place_of,
    shortened,
    template_fault,
    type_by_content,
)

ENDPOINT = "projects/p/locations/us-central1/endpoints/1"
MODELS: dict[str, Model] = {
    "developer": GeminiModel(),
    "vertex": GeminiModel(project="my-project"),
    "openai": OpenAIModel(type="openai", name="gpt"),
    "vllm": OpenAIModel(type="openai", name="m", base_url="http://127.0.0.1:8000/v1"),
    "endpoint": VertexEndpointModel(type="vertex_endpoint", name="m", endpoint=ENDPOINT),
    "echo": EchoModel(type="echo"),
}


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("data:image/png;base64,", "data"),
        ("https://h/a", "web"),
        ("HTTP://h/a", "web"),
        ("gs://b/a", "gs"),
        ("s3://b/a", "elsewhere"),
        ("/a", "local"),
        ("file:///a", "local"),
        ("a:b.png", "local"),
    ],
)
def test_the_place_of_an_address(uri: str, place: str) -> None:
    assert place_of(uri) == place


@pytest.mark.parametrize(
    ("uri", "mime_type"),
    [
        ("a.PNG", "image/png"),
        ("https://h/a.jpg?sig=a.b", "image/jpeg"),
        ("gs://b/a.webp", "image/webp"),
        ("/x/a.heic", "image/heic"),
        ("/x/a", None),
        ("/x:y/a.pdf", "application/pdf"),
        ("gs://b/v1.2/a", None),
    ],
)
def test_the_type_follows_from_the_extension(uri: str, mime_type: str | None) -> None:
    assert guess_type(uri) == mime_type


def test_the_type_does_not_depend_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mimetypes, "types_map", {".png": "image/other"})
    assert guess_type("a.png") == "image/png"


@pytest.mark.parametrize(
    ("model", "uri", "mime_type", "by_address"),
    [
        ("developer", "gs://b/a.png", "image/png", False),
        ("developer", "https://h/a.png", "image/png", True),
        ("vertex", "gs://b/a.png", "image/png", True),
        ("vertex", "s3://b/a.png", "image/png", False),
        ("vertex", "/a.png", "image/png", False),
        ("openai", "gs://b/a.png", "image/png", False),
        ("openai", "https://h/a.pdf", "application/pdf", False),
        ("vllm", "https://h/a.mp4", "video/mp4", True),
        ("vllm", "file:///a.png", "image/png", False),
        ("endpoint", "gs://b/a.png", "image/png", False),
    ],
)
def test_an_address_is_sent_only_where_the_server_reads_it(
    model: str, uri: str, mime_type: str, by_address: bool
) -> None:
    assert MODELS[model].media.is_sent_by_address(uri, mime_type) is by_address


@pytest.mark.parametrize(
    ("model", "uri", "mime_type", "size_bytes", "sentence"),
    [
        (
            "vertex",
            "/a.png",
            "image/png",
            7 * MIB + 1,
            "'/a.png' has 7.0 MB, and Gemini on Vertex AI takes image/png of at most 7 MB within a request.",
        ),
        (
            "vertex",
            "gs://b/a.png",
            "image/png",
            31 * MIB,
            "'gs://b/a.png' has 31.0 MB, and Gemini on Vertex AI takes image/png of at most 30 MB by its address.",
        ),
        (
            "developer",
            "/a.pdf",
            "application/pdf",
            60 * MIB,
            "'/a.pdf' has 60.0 MB, and the Gemini Developer API takes application/pdf of at most 50 MB within a "
            "request.",
        ),
        (
            "developer",
            "/a.mp4",
            "video/mp4",
            3000 * MIB,
            "'/a.mp4' has 3,000.0 MB, and the Gemini Developer API takes video/mp4 of at most 2048 MB by upload.",
        ),
    ],
)
def test_a_file_above_the_limit_is_refused_with_its_size(
    model: str, uri: str, mime_type: str, size_bytes: int, sentence: str
) -> None:
    with pytest.raises(MediaError) as refused:
        MODELS[model].media.check_size(uri, mime_type, size_bytes)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("model", "most"),
    [("developer", 100 * MIB), ("vertex", 500 * MIB), ("openai", 50 * MIB), ("endpoint", 1_500_000)],
)
def test_the_size_of_a_request_is_limited(model: str, most: int) -> None:
    rules = MODELS[model].media
    rules.check_request(most)
    with pytest.raises(MediaError, match="Expected fewer or smaller files"):
        rules.check_request(most + 1)


@pytest.mark.parametrize(
    ("model", "sizes", "text", "uploaded"),
    [
        ("developer", [10, 20], 5, set()),
        ("developer", [10, 20], 100 * MIB, {0, 1}),  # the text alone is too long, and refused later
        ("developer", [74 * MIB, 0], 5, set()),
        ("developer", [10, 80 * MIB, 0], 5, {1}),
        ("developer", [40 * MIB, 30 * MIB, 41 * MIB], 5, {2}),
        ("developer", [40 * MIB, 40 * MIB, 41 * MIB], 5, {0, 2}),
        ("vertex", [400 * MIB], 5, set()),
        ("openai", [400 * MIB], 5, set()),
        ("vllm", [400 * MIB], 5, set()),
    ],
)
def test_the_largest_files_are_uploaded_until_the_rest_fits_into_the_request(
    model: str, sizes: list[int], text: int, uploaded: set[int]
) -> None:
    assert MODELS[model].media.uploaded(sizes, text) == uploaded


def test_a_server_of_ones_own_has_no_known_limit() -> None:
    MODELS["vllm"].media.check_request(10**12)


def test_a_message_shows_neither_bytes_nor_a_signature() -> None:
    assert shortened("data:image/png;base64," + "A" * 1000) == "data:image/png;base64,AAAAAAAA…"
    assert shortened("https://h/a.png?X-Goog-Signature=abc") == "https://h/a.png"
    assert len(shortened("/" + "a" * 500)) == 60


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        ("/data/{{ row.a }}/{{ row.b }}.png", ("/data/", ".png")),
        ("{{ row.a }}", ("", "")),
        ("/a.png", ("/a.png", "/a.png")),
        ("{% if row.a %}x{% endif %}", ("", "")),
    ],
)
def test_the_literal_ends_of_an_address(template: str, ends: tuple[str, str]) -> None:
    assert literal_ends(template) == ends


@pytest.mark.parametrize(
    ("model", "template", "mime_type", "fault"),
    [
        (
            "vertex",
            "gs://b/{{ row.a }}.gif",
            None,
            "is of type image/gif, and Gemini on Vertex AI takes PNG, JPEG",
        ),
        ("vertex", "{{ row.a }}", "image/tiff", "is of type image/tiff, and"),
        ("openai", "https://h/a.mp4", None, "is of type video/mp4, and OpenAI takes"),
        ("vertex", "/data/{{ row.a }}", None, "is a file of this machine, which the workers of Dataflow"),
        ("vertex", "file:///data/{{ row.a }}.png", None, "is a file of this machine"),
        ("vertex", "images/{{ row.a }}.png", None, "is a file of this machine"),
        ("vertex", "a.png", None, "is a file of this machine"),
        ("vertex", "{{ row.a }}", None, None),
        ("vertex", "gs://b/{{ row.a }}.png", None, None),
        ("vertex", "gs://{{ row.a }}.v{{ row.b }}", None, None),
        ("vllm", "https://h/{{ row.a }}.gif", None, None),
    ],
)
def test_a_template_that_is_wrong_for_every_row_is_refused_at_once(
    model: str, template: str, mime_type: str | None, fault: str | None
) -> None:
    found = template_fault(template, mime_type, MODELS[model].media, reads_local=False)
    assert found == fault if fault is None else str(found).startswith(fault)


@pytest.mark.parametrize(
    ("named", "head", "found"),
    [
        ("image/jpeg", b"\x89PNG\r\n\x1a\n", "image/png"),
        (None, b"\xff\xd8\xff\xe0", "image/jpeg"),
        ("image/png", b"GIF89a", "image/gif"),
        ("image/png", b"RIFF\n\n\n\nWEBPVP8", "image/webp"),
        ("image/png", b"%PDF-1.7", "application/pdf"),
        ("audio/wav", b"RIFF1234WAVE", "audio/wav"),
        ("text/html", b"<html>", "text/html"),
        ("text/plain", b"%PDF-", "text/plain"),
        (None, b"", None),
    ],
)
def test_the_type_of_a_file_is_what_its_first_bytes_say(named: str | None, head: bytes, found: str | None) -> None:
    assert type_by_content("a", named, head) == found


@pytest.mark.parametrize("head", [b"<!DOCTYPE html>", b"\xef\xbb\xbf\n <HTML lang=", b"<head>"])
def test_a_page_of_html_is_no_picture(head: bytes) -> None:
    with pytest.raises(MediaError, match="is a page of HTML by its first bytes"):
        type_by_content("error.png", "image/png", head)


def test_jfif_is_the_extension_of_a_jpeg() -> None:
    assert guess_type("a.jfif") == "image/jpeg"
