"""Deterministic vectors: equal texts have equal ones, different texts different ones."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from llmbeam_sandbox.models.answers import answer_text
from llmbeam_sandbox.models.schema import Schema
from llmbeam_sandbox.models.skill import RIGHT, uniform

DIMENSIONS = {
    "gemini-embedding-001": 3072,
    "text-embedding-3-large": 3072,
    "text-embedding-3-small": 1536,
    "text-embedding-ada-002": 1536,
}
"""Dimensions by model, where they are not `DEFAULT_DIMENSIONS`."""
DEFAULT_DIMENSIONS = 768


@dataclass(frozen=True, kw_only=True)
class Separation:
    """How far the vectors of a model say what the right answer to a text is.

    A vector is `degree` times the direction of the right answer, 1 - `degree` times up to twice that of the right
    answer to another text, and a little noise.

    Attributes:
        schema: Schema of the answers.
        degree: From 0, where vectors say nothing, to 1.
    """

    schema: Schema
    degree: float


def vectors(
    texts: tuple[str, ...], separations: Mapping[str, Separation], *, model: str, dimensions: int | None
) -> list[list[float]]:
    """Embeds texts, those of some models by the right answers to them; see `vector`."""
    if (separation := separations.get(model)) is None:
        return [vector(text, model=model, dimensions=dimensions) for text in texts]
    return [_separated(text, separation, model, dimensions) for text in texts]


def _separated(text: str, separation: Separation, model: str, dimensions: int | None) -> list[float]:
    # The last line alone decides, as it does for `Skill`.
    asked = text.rstrip().rpartition("\n")[2]

    def direction(text: str) -> list[float]:
        right = answer_text(text, model=RIGHT, schema=separation.schema).text
        return vector(right, model=model, dimensions=dimensions)

    other = (1 - separation.degree) * 2 * uniform("other", asked)
    parts = zip(
        direction(asked),
        direction(f"other {asked}"),
        vector(asked, model=model, dimensions=dimensions),
        strict=True,
    )
    numbers = [separation.degree * right + other * wrong + 0.1 * noise for right, wrong, noise in parts]
    norm = math.hypot(*numbers)
    return [round(number / norm, 8) for number in numbers]


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
