"""Input tokens of images, documents, audio and video, as the servers of models count them. Pure.

They are an estimate, for pacing and for the price before the first answer: the server reports what it has counted.

Sources, read in November 2026:
- Gemini 3: ai.google.dev/gemini-api/docs/media-resolution ("Token counts").
- Gemini 2: ai.google.dev/gemini-api/docs/image-understanding ("Token calculation": 258 tokens up to 384 x 384
  pixels, else 258 for each tile, whose side is the shorter side / 1.5), …/tokens (a second of video is 263 tokens,
  of audio 32), …/document-processing (a page 258), …/media-resolution (an image, page or frame 64 if it is low).
- OpenAI: developers.openai.com/api/docs/guides/pdf-files (the text of a page and its image), …/realtime-costs
  (10 tokens per second of audio); images in `openai_image_tokens`.
- Claude: platform.claude.com/docs/en/build-with-claude/vision (width x height / 750, at most 4,784; older models
  make an image smaller, to 1,600), …/pdf-support (a page 1,500 to 3,000 tokens of text, and its image).
- Gemma 3: ai.google.dev/gemma/docs/core (256 tokens for each image). Gemma 4: 280 by default, of 70 to 1,120
  (google-deepmind/gemma, gemma/gm/nn/gemma4/_gemma4.py, `output_length`).
- Other weights are assumed to count patches of 28 x 28 pixels, as Qwen2.5-VL does
  (huggingface.co/Qwen/Qwen2.5-VL-7B-Instruct), and a server to take 32 frames of a video.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, sqrt
from typing import NamedTuple

from airflow_provider_llmbeam.spec.model.media import MediaCounting
from airflow_provider_llmbeam.spec.model.model import Model

#: Assumptions where a file does not say: pixels of an image whose header is not read, bytes of a page and of a
#: second, and of a file on the web, which is not fetched.
_PIXELS = (1024, 1024)
_PAGE_BYTES = 64 * 2**10
_SECOND_BYTES = {"wav": 32_000, "x-wav": 32_000, "audio": 16_000, "video": 250_000}
_FILE_BYTES = 2**20
_TEXT_BYTES = 4  # of a token, as `engine.tokens`
#: A page as an image of A4, and its text.
_PAGE_PIXELS, _PAGE_TEXT_TOKENS = (1024, 1448), 500
#: Of Claude: tokens of the text of a page, pixels of a token, and the most tokens of an image.
_ANTHROPIC_PAGE_TOKENS, _ANTHROPIC_PIXELS, _ANTHROPIC_IMAGE_TOKENS = 2000, 750, 4784
#: Frames that a server of weights takes of a video, and tokens of each.
_FRAMES, _FRAME_TOKENS = 32, 256
#: Bounds, whatever a header says: pages of a document (Gemini), tokens of an image (Qwen2.5-VL) and of a file (the
#: largest context).
_MAX_PAGES, _MAX_IMAGE_TOKENS, _MAX_TOKENS = 1000, 16_384, 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaExtent:
    """How much a file holds; `None` is not known.

    Attributes:
        size_bytes: Its size, in bytes.
        pixels: Width and height of an image.
        pages: Number of pages of a document.
        seconds: Duration of a sound, in seconds.
    """

    size_bytes: int | None = None
    pixels: tuple[int, int] | None = None
    pages: int | None = None
    seconds: float | None = None


class _Rates(NamedTuple):
    """Tokens of an image of a size, of a page, of a second of sound, and of a second of video with its sound."""

    image: int
    page: int
    audio: int
    video: int = 0


def media_tokens(
    model: Model, mime_type: str | None, extent: MediaExtent, media_resolution: str | None = None
) -> int:
    """Returns the estimated input tokens of a file.

    Args:
        model: The model.
        mime_type: MIME type of the file; `None` is an image.
        extent: How much it holds.
        media_resolution: Resolution at which Gemini reads it, see `Generation`.
    """
    if (rates := _rates(model, extent.pixels or _PIXELS, media_resolution)) is None:
        return 0
    kind, _, subtype = (mime_type or "image/*").partition("/")
    size_bytes = _FILE_BYTES if extent.size_bytes is None else extent.size_bytes
    if kind == "text":
        return _bounded(size_bytes / _TEXT_BYTES)
    if kind == "image":
        return min(rates.image, _MAX_IMAGE_TOKENS)
    if kind == "application":
        return _bounded(min(extent.pages or ceil(size_bytes / _PAGE_BYTES), _MAX_PAGES) * rates.page)
    if kind == "video" and not rates.video:
        return _FRAMES * _FRAME_TOKENS
    seconds = extent.seconds or size_bytes / _SECOND_BYTES[subtype if subtype in _SECOND_BYTES else kind]
    return _bounded(seconds * (rates.video if kind == "video" else rates.audio))


def audio_share(model: Model, mime_type: str | None, media_resolution: str | None = None) -> float:
    """Returns the share of the tokens of a file that are of audio, whose price may differ; see `media_tokens`."""
    kind = (mime_type or "").partition("/")[0]
    rates = _rates(model, _PIXELS, media_resolution)
    if kind == "video" and rates and rates.video:
        return rates.audio / rates.video
    return float(kind == "audio")


def _bounded(tokens: float) -> int:
    return min(max(1, round(tokens)), _MAX_TOKENS)


def _rates(model: Model, pixels: tuple[int, int], media_resolution: str | None) -> _Rates | None:
    if model.media_counting is None:
        return None
    return _COUNTED[model.media_counting](model.name.rpartition("/")[2].lower(), pixels, media_resolution)


def _gemini(name: str, pixels: tuple[int, int], media_resolution: str | None) -> _Rates:
    is_old = re.search(r"gemini-[12]\b", name) or "gemini-" not in name  # a tuned one has a number as its name
    return _gemini_2(pixels, media_resolution) if is_old else _gemini_3(media_resolution)


def _openai(name: str, pixels: tuple[int, int], _: str | None) -> _Rates:
    image, page = (openai_image_tokens(name, size) for size in (pixels, _PAGE_PIXELS))
    return _Rates(image, page + _PAGE_TEXT_TOKENS, audio=10)


def _claude(_name: str, pixels: tuple[int, int], _: str | None) -> _Rates:
    image, page = map(_anthropic_image_tokens, (pixels, _PAGE_PIXELS))
    return _Rates(image, page + _ANTHROPIC_PAGE_TOKENS, audio=0)


def _weights(name: str, pixels: tuple[int, int], _: str | None) -> _Rates:
    of_gemma = {"gemma-3": 256, "gemma-4": 280}.get(name[:7])
    return _Rates(of_gemma or ceil(pixels[0] / 28) * ceil(pixels[1] / 28), page=0, audio=25)


_COUNTED: dict[MediaCounting, Callable[[str, tuple[int, int], str | None], _Rates]] = {
    "gemini": _gemini,
    "openai": _openai,
    "claude": _claude,
    "weights": _weights,
}


def _anthropic_image_tokens(pixels: tuple[int, int]) -> int:
    return max(1, min(ceil(pixels[0] * pixels[1] / _ANTHROPIC_PIXELS), _ANTHROPIC_IMAGE_TOKENS))


def _gemini_3(media_resolution: str | None) -> _Rates:
    match media_resolution:
        case "low":
            return _Rates(image=280, page=280, audio=25, video=70 + 25)
        case "medium":
            return _Rates(image=560, page=560, audio=25, video=70 + 25)
        case "high":
            return _Rates(image=1120, page=1120, audio=25, video=280 + 25)
    return _Rates(image=1120, page=560, audio=25, video=70 + 25)


def _gemini_2(pixels: tuple[int, int], media_resolution: str | None) -> _Rates:
    if media_resolution == "low":
        return _Rates(image=64, page=64, audio=32, video=64 + 5 + 32)
    tile = max(1, floor(min(pixels) / 1.5))
    is_one = max(pixels) <= 384 or media_resolution == "medium"
    tiles = 1 if is_one else ceil(pixels[0] / tile) * ceil(pixels[1] / tile)
    return _Rates(image=258 * tiles, page=258, audio=32, video=263 + 32)


class _Tiles(NamedTuple):
    """Tokens of an image, and of each tile of 512 x 512 pixels of it."""

    base: int
    tile: int


class _Patches(NamedTuple):
    """Maximum number of patches of 32 x 32 pixels, maximum side in pixels, and tokens of a patch."""

    budget: int
    side: int = 2048
    multiplier: float = 1.0


#: At the resolution that a request without `detail` gets.
_WAYS: dict[str, _Tiles | _Patches] = {
    "gpt-4o": _Tiles(85, 170),
    "gpt-4o-mini": _Tiles(2833, 5667),
    "gpt-4.1": _Tiles(85, 170),
    "gpt-4.1-mini": _Patches(1536, multiplier=1.62),
    "gpt-4.1-nano": _Patches(1536, multiplier=2.46),
    "gpt-4.5": _Tiles(85, 170),
    "gpt-5": _Tiles(70, 140),
    "gpt-5-mini": _Patches(1536, multiplier=1.62),
    "gpt-5-nano": _Patches(1536, multiplier=2.46),
    "gpt-5-codex-mini": _Patches(1536),
    "gpt-5.1": _Tiles(70, 140),
    "gpt-5.1-codex-mini": _Patches(1536),
    "gpt-5.2": _Patches(1536),
    "gpt-5.3": _Patches(1536),
    "gpt-5.4": _Patches(2500),
    "gpt-5.4-mini": _Patches(1536, multiplier=1.62),
    "gpt-5.4-nano": _Patches(1536, multiplier=2.46),
    "gpt-5.5": _Patches(10_000, side=6000),
    "o1": _Tiles(75, 150),
    "o3": _Tiles(75, 150),
    "o4-mini": _Patches(1536, multiplier=1.72),
}
#: GPT-5.6, and what comes after it, does not resize an image.
_NEWEST = _Patches(budget=2**31, side=2**31)


def openai_image_tokens(name: str, pixels: tuple[int, int]) -> int:
    """Returns the input tokens of an image.

    Args:
        name: Name of the model, in lower case.
        pixels: Width and height of the image.
    """
    found = [known for known in _WAYS if name == known or name.startswith(f"{known}-")]
    way: _Tiles | _Patches = _WAYS[max(found, key=len)] if found else _NEWEST
    if isinstance(way, _Tiles):
        width, height = _scaled(pixels, 2048 / max(pixels))
        width, height = _scaled((width, height), 768 / min(width, height))
        return way.base + way.tile * ceil(width / 512) * ceil(height / 512)
    width, height = _scaled(pixels, way.side / max(pixels))
    patches = ceil(width / 32) * ceil(height / 32)
    if patches > way.budget:
        scale = sqrt(32 * 32 * way.budget / (width * height))
        columns, lines = width * scale / 32, height * scale / 32
        scale *= min(max(1, floor(each)) / each for each in (columns, lines))
        patches = min(way.budget, ceil(int(width * scale) / 32) * ceil(int(height * scale) / 32))
    return max(1, ceil(patches * way.multiplier))


def _scaled(pixels: tuple[float, float], scale: float) -> tuple[float, float]:
    """Returns the pixels of an image that is made smaller; none is made larger."""
    return pixels[0] * min(1.0, scale), pixels[1] * min(1.0, scale)
