"""Values that a detector has found in a text, and texts that a service searches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Finding:
    """A value in a text.

    Attributes:
        start: Index of its first character.
        end: Index after its last one.
        kind: Kind of the value.
        score: How sure it is, from 0 to 1.
    """

    start: int
    end: int
    kind: str
    score: float


#: Finds the values in a text; raises any error if it cannot tell.
Find = Callable[[str], Iterator[Finding]]
#: What was found in a text, or why it could not be inspected.
Inspected = tuple[Finding, ...] | str


class Cell(NamedTuple):
    """A text of a column, which the service takes as a hint at what the text is."""

    column: str
    text: str
