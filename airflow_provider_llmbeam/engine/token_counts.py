"""Counts of billed tokens: all that holds some has them as this one value."""

from __future__ import annotations

from operator import add
from typing import NamedTuple


class Tokens(NamedTuple):
    """Billed tokens of one reply, or of several. A journal entry names them `input_tokens` etc.

    Attributes:
        input: Input tokens.
        output: Output tokens, thoughts included.
        cached: Input tokens that the provider has read from its cache; `input` includes them.
        audio: Input tokens of audio that are not from the cache; `input` includes them.
        cache_write: Input tokens that the provider has written to its cache; `input` includes them.
        estimated: Tokens of these that the server did not report: estimated from the length of the texts.
        reasoning: Output tokens of thoughts, if the server counts them; `output` includes them.
    """

    input: int = 0
    output: int = 0
    cached: int = 0
    audio: int = 0
    cache_write: int = 0
    estimated: int = 0
    reasoning: int = 0

    @property
    def priced(self) -> tuple[int, int, int, int, int]:
        """The counts that have a price, as `Price.cost_usd` takes them."""
        return self[:5]

    def plus(self, other: Tokens) -> Tokens:
        """Returns the tokens of both."""
        return Tokens(*map(add, self, other))


#: No tokens.
NO_TOKENS = Tokens()
