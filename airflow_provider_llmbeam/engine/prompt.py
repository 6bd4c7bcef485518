"""The text that goes in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
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
