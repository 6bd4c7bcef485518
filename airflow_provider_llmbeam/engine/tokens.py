"""Estimates of token counts, without a tokenizer."""

from __future__ import annotations

#: English prose is about 4 characters per token for Gemini
#: (https://ai.google.dev/gemini-api/docs/tokens); counting UTF-8 bytes keeps other scripts from being
#: underestimated. The usage that the server reports corrects the governor afterwards.
BYTES_PER_TOKEN = 4


def estimate_tokens(text: str) -> int:
    """Returns a rough token count, at least 1."""
    return max(1, len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)
