"""Input tokens of images, documents, audio and video, as the servers of models count them. Pure.

They are an estimate, for pacing and for the price before the first answer: the server reports what it has counted.

Sources, read in November 2026:
- Gemini 3: ai.google.dev/gemini-api/docs/media-resolution ("Token counts").
- Gemini 2: ai.google.dev/gemini-api/docs/image-understanding ("Token calculation": 258 tokens up to 384 x 384
  pixels, else 258 for each tile, whose side is the shorter side / 1.5), …/tokens (a second of video is 263 tokens,
  of audio 32), …/document-processing (a page 258), …/media-resolution (an image, page or frame 64 if it is low).
- OpenAI: developers.openai.com/api/docs/guides/pdf-files (the text of a page and its image), …/realtime-costs
  (10 tokens per second of audio); images in `openai_image_tokens`.
- Gemma 3: ai.google.dev/gemma/docs/core (256 tokens for each image).
- Other weights are assumed to count patches of 28 x 28 pixels, as Qwen2.5-VL does
  (huggingface.co/Qwen/Qwen2.5-VL-7B-Instruct), and a server to take 32 frames of a video.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil, floor
from typing import NamedTuple

from airflow_provider_llmbeam.spec.model.model import EchoModel, GeminiModel, Model, OpenAIModel
from airflow_provider_llmbeam.spec.model.openai_image_tokens import openai_image_tokens

#: Assumptions where a file does not say: pixels of an image whose header is not read, bytes of a page and of a
#: second, and of a file on the web, which is not fetched.
_PIXELS = (1024, 1024)
_PAGE_BYTES = 64 * 2**10
_SECOND_BYTES = {"wav": 32_000, "x-wav": 32_000, "audio": 16_000, "video": 250_000}
_FILE_BYTES = 2**20
_TEXT_BYTES = 4  # of a token, as `engine.tokens`
#: A page as an image of A4, and its text.
_PAGE_PIXELS, _PAGE_TEXT_TOKENS = (1024, 1448), 500
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
    if isinstance(model, EchoModel):
        return 0
    kind, _, subtype = (mime_type or "image/*").partition("/")
    size_bytes = _FILE_BYTES if extent.size_bytes is None else extent.size_bytes
    if kind == "text":
        return _bounded(size_bytes / _TEXT_BYTES)
    rates = _rates(model, extent.pixels or _PIXELS, media_resolution)
    if kind == "image":
        return min(rates.image, _MAX_IMAGE_TOKENS)
    if kind == "application":
        return _bounded(min(extent.pages or ceil(size_bytes / _PAGE_BYTES), _MAX_PAGES) * rates.page)
    if kind == "video" and not isinstance(model, GeminiModel):
        return _FRAMES * _FRAME_TOKENS
    seconds = extent.seconds or size_bytes / _SECOND_BYTES[subtype if subtype in _SECOND_BYTES else kind]
    return _bounded(seconds * (rates.video if kind == "video" else rates.audio))


def audio_share(model: Model, mime_type: str | None, media_resolution: str | None = None) -> float:
    """Returns the share of the tokens of a file that are of audio, whose price may differ; see `media_tokens`."""
    kind = (mime_type or "").partition("/")[0]
    if kind == "video" and isinstance(model, GeminiModel):
        rates = _rates(model, _PIXELS, media_resolution)
        return rates.audio / rates.video
    return float(kind == "audio")


def _bounded(tokens: float) -> int:
    return min(max(1, round(tokens)), _MAX_TOKENS)


def _rates(model: Model, pixels: tuple[int, int], media_resolution: str | None) -> _Rates:
    name = model.name.rpartition("/")[2].lower()
    if isinstance(model, GeminiModel):
        is_old = re.search(r"gemini-[12]\b", name) or "gemini-" not in name  # a tuned one has a number as its name
        return _gemini_2(pixels, media_resolution) if is_old else _gemini_3(media_resolution)
    if isinstance(model, OpenAIModel) and model.is_openais:
        page = openai_image_tokens(name, _PAGE_PIXELS) + _PAGE_TEXT_TOKENS
        return _Rates(openai_image_tokens(name, pixels), page, audio=10)
    image = 256 if name.startswith("gemma-3") else ceil(pixels[0] / 28) * ceil(pixels[1] / 28)
    return _Rates(image, page=0, audio=25)


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
