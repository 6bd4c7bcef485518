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
"""Of the models that have others than `USUAL_DIMENSIONS`."""
USUAL_DIMENSIONS = 768


def vector(text: str, *, model: str, dimensions: int | None = None) -> list[float]:
    """Embed a text.

    Args:
        text: All of it counts.
        model: Part of what the vector depends on.
        dimensions: None is the model's own number.

    Returns:
        A vector of length 1, of numbers with eight digits.
    """
    drawn = random.Random(sha256(f"{model}\n{text}".encode("utf-8", "surrogatepass")).digest())
    numbers = [drawn.gauss() for _ in range(dimensions or DIMENSIONS.get(model, USUAL_DIMENSIONS))]
    norm = math.hypot(*numbers)
    return [round(number / norm, 8) for number in numbers]
