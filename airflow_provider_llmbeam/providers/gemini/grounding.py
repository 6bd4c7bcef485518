"""Citations of Gemini's grounding with Google Search.

Source: ai.google.dev/gemini-api/docs/google-search, "Understanding the grounding response" (2026-11).
"""

from __future__ import annotations

from typing import Any

from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.transport.server_reply import list_of, mapping_of, str_of

#: Maximum number of pages and of texts, and of characters of each, that an answer keeps: the reply is untrusted.
_MAX_PAGES, _MAX_TEXTS, _MAX_CHARACTERS = 50, 200, 4_000


def citations_of(reported: Any) -> list[dict[str, Any]] | None:
    """Returns the pages that an answer uses, with the parts of it that each supports.

    Args:
        reported: `groundingMetadata` of a candidate.

    Returns:
        `None` if the server reports no search; an empty list for a search whose pages are not used.
    """
    if reported is None:
        return None
    metadata = mapping_of(reported)
    chunks = [mapping_of(mapping_of(chunk).get("web")) for chunk in list_of(metadata.get("groundingChunks"))]
    texts: dict[int, list[str]] = {}
    for support in map(mapping_of, list_of(metadata.get("groundingSupports"))[:_MAX_TEXTS]):
        text = _text(mapping_of(support.get("segment")).get("text"))
        for index in list_of(support.get("groundingChunkIndices")):
            if type(index) is int and text:
                texts.setdefault(index, []).append(text)
    return [
        {
            "uri": _text(chunk["uri"]),
            "title": _text(chunk.get("title")),
            "texts": texts.get(index, []),
        }
        for index, chunk in enumerate(chunks[:_MAX_PAGES])
        if chunk.get("uri")
    ]


def _text(value: Any) -> str:
    return valid_text(str_of(value)[:_MAX_CHARACTERS])
