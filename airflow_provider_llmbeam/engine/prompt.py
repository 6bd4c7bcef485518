"""Prompts."""

from __future__ import annotations

from dataclasses import dataclass


# No slots: a frozen class with slots pickles through Python code, half as fast.
@dataclass(frozen=True)
class Prompt:
    """One rendered prompt.

    Attributes:
        text: Text of the user message.
        system: System instruction, or `None`.
        media: `(uri, mime_type)` of each image, audio, video or document.
    """

    text: str
    system: str | None = None
    media: tuple[tuple[str, str | None], ...] = ()
