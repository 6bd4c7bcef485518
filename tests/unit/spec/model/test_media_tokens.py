"""Input tokens of files: the examples of the providers' pages, and bounds for any file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.spec.model import AnthropicModel, EchoModel, GeminiModel, OpenAIModel
from airflow_provider_llmbeam.spec.model.media_tokens import MediaExtent, audio_share, media_tokens

MIB = 2**20


def gemini(name="gemini-2.5-flash"):
    return GeminiModel(name=name)


def openai(name):
    return OpenAIModel(type="openai", name=name)


def weights(name):
    return OpenAIModel(type="openai", name=name, base_url="http://127.0.0.1:8000/v1")


def claude():
    return AnthropicModel(type="anthropic", name="claude-haiku-5-5")


@pytest.mark.parametrize(
    ("model", "pixels", "tokens"),
    [
        (gemini(), (384, 384), 258),
        (gemini(), (960, 540), 6 * 258),  # the example of the page
        (gemini(), (385, 385), 4 * 258),
        (gemini("projects/1/locations/us-central1/endpoints/2"), (300, 200), 258),
        (gemini("gemini-3-flash"), (300, 200), 1120),
        (gemini("gemini-flash-latest"), (3000, 2000), 1120),
        (openai("gpt-4o"), (1024, 1024), 765),  # three examples of the page
        (openai("gpt-4o-2024-11-20"), (2048, 4096), 1105),
        (openai("gpt-4o"), (512, 512), 255),
        (openai("gpt-4o-mini"), (512, 512), 2833 + 5667),
        (openai("gpt-5"), (1024, 1024), 70 + 4 * 140),
        (openai("gpt-5.2"), (1024, 1024), 1024),  # two examples of the page
        (openai("gpt-5.2-2025-12-11"), (1800, 2400), 1452),
        (openai("gpt-5-mini"), (1024, 1024), 1659),
        (openai("gpt-5.4"), (1800, 2400), 43 * 57),
        (openai("gpt-5.5"), (1800, 2400), 57 * 75),
        (openai("gpt-5.6"), (8000, 320), 2500),
        (weights("google/gemma-3-4b-it"), (2000, 2000), 256),
        (weights("Qwen/Qwen2.5-VL-7B-Instruct"), (280, 560), 200),
        (claude(), (1000, 1000), 1334),
        (claude(), (1, 1), 1),
        (claude(), (8000, 8000), 4784),
        (EchoModel(type="echo"), (1024, 1024), 0),
    ],
)
def test_an_image_is_counted_by_its_pixels_as_each_server_does(model, pixels, tokens):
    assert media_tokens(model, "image/png", MediaExtent(pixels=pixels)) == tokens


@pytest.mark.parametrize(
    ("name", "resolution", "image", "page", "video_second"),
    [
        ("gemini-3-pro", None, 1120, 560, 95),
        ("gemini-3-pro", "low", 280, 280, 95),
        ("gemini-3-pro", "medium", 560, 560, 95),
        ("gemini-3-pro", "high", 1120, 1120, 305),
        ("gemini-2.5-pro", None, 1032, 258, 295),
        ("gemini-2.5-pro", "low", 64, 64, 101),
        ("gemini-2.5-pro", "medium", 258, 258, 295),
    ],
)
def test_the_resolution_at_which_gemini_reads_decides(name, resolution, image, page, video_second):
    def tokens(mime_type, **extent):
        return media_tokens(gemini(name), mime_type, MediaExtent(**extent), resolution)

    assert tokens("image/png", pixels=(1000, 1000)) == image
    assert tokens("application/pdf", pages=3) == 3 * page
    assert tokens("video/mp4", seconds=10.0) == 10 * video_second


@pytest.mark.parametrize(
    ("model", "mime_type", "extent", "tokens"),
    [
        (gemini(), "image/heic", {}, 1032),
        (gemini(), None, {}, 1032),
        (gemini(), "application/pdf", {"size_bytes": MIB}, 16 * 258),
        (gemini(), "application/pdf", {"size_bytes": 100}, 258),
        (gemini(), "application/pdf", {"pages": 5000}, 1000 * 258),
        (gemini(), "audio/wav", {"size_bytes": 320_000, "seconds": 4.0}, 128),
        (gemini(), "audio/wav", {"size_bytes": 320_000}, 320),
        (gemini(), "audio/mpeg", {"size_bytes": 320_000}, 640),
        (gemini("gemini-3-flash"), "audio/mpeg", {"size_bytes": 320_000}, 500),
        (gemini(), "video/mp4", {"size_bytes": 500_000}, 590),
        (gemini(), "text/plain", {"size_bytes": 400}, 100),
        (openai("gpt-4o"), "audio/mpeg", {"size_bytes": 320_000}, 200),
        (openai("gpt-4o"), "application/pdf", {"pages": 2}, 2 * (85 + 6 * 170 + 500)),
        (claude(), "application/pdf", {"pages": 2}, 2 * (1978 + 2000)),
        (weights("Qwen/Qwen2.5-VL-7B-Instruct"), "video/mp4", {"size_bytes": MIB}, 32 * 256),
    ],
)
def test_what_a_file_does_not_say_follows_from_its_size(model, mime_type, extent, tokens):
    assert media_tokens(model, mime_type, MediaExtent(**extent)) == tokens


def test_the_share_of_audio_is_that_which_has_a_price_of_its_own():
    assert audio_share(gemini(), "audio/wav") == audio_share(openai("gpt-4o"), "audio/mpeg") == 1.0
    assert audio_share(gemini("gemini-2.5-pro"), "video/mp4") == 32 / 295
    assert audio_share(gemini("gemini-3-pro"), "video/mp4", "high") == 25 / 305
    assert audio_share(weights("llava"), "video/mp4") == 0.0
    assert audio_share(gemini(), None) == audio_share(gemini(), "image/png") == 0.0


MODELS = [
    *(gemini(name) for name in ("gemini-2.5-flash", "gemini-3-pro")),
    *(openai(name) for name in ("gpt-4o", "gpt-5-mini", "gpt-5.5", "gpt-5.6", "gpt-next")),
    *(weights(name) for name in ("gemma-3-4b-it", "llava")),
]
MIME_TYPES = ("image/png", "application/pdf", "audio/wav", "audio/mpeg", "video/mp4", "text/plain", None)
sides = st.integers(1, 2**32)


@pytest.mark.fuzz
@given(
    st.sampled_from(MODELS),
    st.sampled_from(MIME_TYPES),
    st.none() | st.integers(0, 2**40),
    st.none() | st.tuples(sides, sides),
    st.none() | st.integers(1, 10**9),
    st.none() | st.floats(0, 1e12),
    st.sampled_from([None, "low", "medium", "high"]),
)
def test_any_file_has_tokens_within_the_largest_context(
    model, mime_type, size, pixels, pages, seconds, resolution
):
    extent = MediaExtent(size_bytes=size, pixels=pixels, pages=pages, seconds=seconds)
    assert 1 <= media_tokens(model, mime_type, extent, resolution) <= 2**20
