"""Input tokens of images, as OpenAI counts them. Pure.

Source: developers.openai.com/api/docs/guides/images-vision ("Model sizing behavior", "Calculating costs"), read in
November 2026.
"""

from __future__ import annotations

from math import ceil, floor, sqrt
from typing import NamedTuple


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
