"""The text that goes in."""

from __future__ import annotations

from dataclasses import dataclass


# No slots: a frozen class with slots pickles through Python code, half as fast.
@dataclass(frozen=True)
class Prompt:
    """One rendered prompt.

    Attributes:
        text: What the user part of the request says.
        system: The system instruction, or none.
        media: `(uri, mime_type)` of what is sent along.
    """

    text: str
    system: str | None = None
    media: tuple[tuple[str, str | None], ...] = ()
