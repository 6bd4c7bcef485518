"""Mistakes that only an answer can show."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake

MISTAKES = (
    Mistake(
        changes={
            "prompt.output_schema": {
                "type": "object",
                "properties": {"mood": {"type": "string"}},
                "required": ["mood"],
            },
            "generation": {"max_output_tokens": 2},
        },
        sentence=(
            "32 of 32 answers were cut at `generation.max_output_tokens` = 2: raise it. Nothing "
            "more was sent. The rows are in 'out/.llmbeam/moods/failed_rows.jsonl'; the old "
            "output stays."
        ),
        found="answers",
        requests=32,
    ),
    Mistake(
        changes={"prompt.template": "[[block]] {{ row.text }}"},
        sentence=(
            "32 of 32 answers were blocked: change `prompt.template`, the rows or the model. "
            "prompt blocked: SAFETY. Nothing more was sent. The rows are in "
            "'out/.llmbeam/moods/failed_rows.jsonl'; the old output stays."
        ),
        found="answers",
        requests=32,
    ),
    Mistake(
        changes={"model.name": "gemini-9-ultra"},
        sentence=(
            "100 of 100 rows failed: no such model there. Correct `model.name` or `base_url`. "
            "models/gemini-9-ultra is not found for API version v1beta, or is not supported … The "
            "rows are in 'out/.llmbeam/moods/failed_rows.jsonl'; the old output stays."
        ),
        found="answers",
        requests=32,
    ),
    Mistake(
        changes={"model": {"type": "openai", "name": "gemma-3-4b-it", "base_url": "{server}"}},
        sentence=(
            "100 of 100 rows failed: no such model there. Correct `model.name` or `base_url`. The requested "
            "URL /chat/completions was not found on this server. The rows are in "
            "'out/.llmbeam/moods/failed_rows.jsonl'; the old output stays."
        ),
        found="answers",
        requests=32,
    ),
    Mistake(
        sentence=(
            "100 of 100 rows failed as the server refuses the key: set one, or credentials, for "
            "the model. API key not valid. The rows are in "
            "'out/.llmbeam/moods/failed_rows.jsonl'; the old output stays."
        ),
        found="answers",
        requests=32,
        about="a key that is not valid",
        server="refuses the key",
    ),
    Mistake(
        sentence=(
            "The server refused 32 of 32 requests: change what it names in the spec, or the rows. "
            "Tool use is not supported. Nothing more was sent. The rows are in "
            "'out/.llmbeam/moods/failed_rows.jsonl'; the old output stays."
        ),
        found="answers",
        requests=32,
        about="a field that the server refuses",
        server="refuses the request",
    ),
)
