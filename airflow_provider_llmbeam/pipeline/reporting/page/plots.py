"""Geometry of the plots: SVG paths of numbers, and no text of a row or a server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 720
HEIGHT = 110
#: Space above the highest value, for its label.
HEADROOM = 16

Values = Sequence[float | int | None]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One curve of a plot.

    Attributes:
        name: What it shows.
        style: Name of its colour in the style sheet.
        path: Data of an SVG path, in a box of `WIDTH` × `HEIGHT`.
        is_filled: Whether the area below it is filled.
    """

    name: str
    style: str
    path: str
    is_filled: bool


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A plot over the time of the run, from zero to `top`.

    Attributes:
        title: What it shows, with its unit.
        curves: Its curves, the lowest layer first.
        top: Value at `HEADROOM` below the upper edge.
    """

    title: str
    curves: tuple[Curve, ...]
    top: float


def plot(title: str, *series: tuple[str, str, str, Values]) -> Plot | None:
    """Returns a plot; `None` if all its values are zero or missing.

    Args:
        title: Its title.
        series: Name, style, kind (`area`, `steps` or `line`) and values of each curve.
    """
    highest = max((value or 0 for *_, values in series for value in values), default=0)
    if not highest > 0:
        return None
    top = nice_top(highest)
    return Plot(
        title=title,
        top=top,
        curves=tuple(
            Curve(
                name=name,
                style=style,
                path=line_path(values, top) if kind == "line" else step_path(values, top),
                is_filled=kind == "area",
            )
            for name, style, kind, values in series
            if any(values)
        ),
    )


def nice_top(highest: float) -> float:
    """Returns the least of 1, 1.5, 2, 3, 4, 5, 6 and 8, times a power of ten, that is not below a value."""
    scale = 10.0 ** math.floor(math.log10(highest))
    return next((step * scale for step in (1, 1.5, 2, 3, 4, 5, 6, 8) if step * scale >= highest), 10 * scale)


def step_path(values: Values, top: float) -> str:
    """Returns a closed area whose upper edge is a step per value."""
    width = WIDTH / max(1, len(values))
    parts = [f"M0 {HEIGHT}"]
    for index, value in enumerate(values):
        parts.append(f"V{_y(value or 0, top)}H{_number((index + 1) * width)}")
    return f"{''.join(parts)}V{HEIGHT}Z"


def line_path(values: Values, top: float) -> str:
    """Returns a line through the middles of the intervals that have a value; a lone value is a short dash."""
    width = WIDTH / max(1, len(values))
    parts, is_down = [], False
    for index, value in enumerate(values):
        if value is None:
            is_down = False
            continue
        x = _number((index + 0.5) * width)
        parts.append(f"{'L' if is_down else 'M'}{x} {_y(value, top)}{'' if is_down else 'h.1'}")
        is_down = True
    return "".join(parts)


def _y(value: float, top: float) -> str:
    return _number(HEADROOM + (HEIGHT - HEADROOM) * (1 - min(1.0, value / top)))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
