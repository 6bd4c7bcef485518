"""Prompts."""

from __future__ import annotations

from typing import NamedTuple

from airflow_provider_llmbeam.engine.value import value


class Turn(NamedTuple):
    """A turn of a conversation: what the user said, and the answer of the model."""

    text: str
    answer: str


@value()
class Prompt:
    """One rendered prompt.

    Attributes:
        text: Text of the user message.
        system: System instruction, or `None`.
        media: `(uri, mime_type)` of each image, audio, video or document. `MediaLoader` replaces the address of a
            file whose bytes are sent by a `data:` URI with them, for as long as the request takes.
        media_tokens: Estimated input tokens of its media, see `spec.model.media_tokens`.
        conversation: Name of the conversation, if it is one: equal prompts of two are two requests.
        history: Earlier turns of the conversation, the oldest one first.
        audio_tokens: Those of audio among `media_tokens`, for an estimate without a sample.
    """

    text: str
    system: str | None = None
    media: tuple[tuple[str, str | None], ...] = ()
    media_tokens: int = 0
    conversation: str = ""
    history: tuple[Turn, ...] = ()
    audio_tokens: int = 0

    @property
    def characters(self) -> int:
        """Size of the texts and of the addresses of its media, in characters, which `data:` URIs make large."""
        size = len(self.text)
        for uri, _ in self.media:  # a generator would take longer than all the rest
            size += len(uri)
        for turn in self.history:
            size += len(turn.text) + len(turn.answer)
        return size
