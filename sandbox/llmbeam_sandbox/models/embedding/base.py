"""Deterministic vectors: equal texts have equal ones, different texts different ones."""

from __future__ import annotations

import math
import random
from hashlib import sha256

DIMENSIONS = {
    "gemini-embedding-001": 3072,
    "text-embedding-3-large": 3072,
    "text-embedding-3-small": 1536,
    "text-embedding-ada-002": 1536,
}
"""Dimensions by model, where they are not `DEFAULT_DIMENSIONS`."""
DEFAULT_DIMENSIONS = 768


def vector(text: str, *, model: str, dimensions: int | None = None) -> list[float]:
    """Embeds a text.

    Args:
        text: The text; the vector depends on all of it.
        model: Model name; the vector depends on it.
        dimensions: Dimensions of the vector; None is the model's own number.

    Returns:
        A vector of length 1, of numbers with eight digits.
    """
    source = random.Random(sha256(f"{model}\n{text}".encode("utf-8", "surrogatepass")).digest())
    numbers = [source.gauss() for _ in range(dimensions or DIMENSIONS.get(model, DEFAULT_DIMENSIONS))]
    norm = math.hypot(*numbers)
    return [round(number / norm, 8) for number in numbers]
