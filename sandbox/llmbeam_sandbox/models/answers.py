"""Deterministic answers: equal prompts give equal answers, different prompts different ones."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256

from llmbeam_sandbox.models.schema import Schema, document

BYTES_PER_TOKEN = 4
Tokenizer = Callable[[str], int]
"""Returns the tokens of a text, and at least as many for a longer one."""
ANY_JSON: Schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
"""Schema of an answer in JSON for a request without a schema."""
_WORD = re.compile(r"\w+")
_UNSAFE = re.compile(r"\bunsafe_(S\d+)\b")
"""Word for which a guard model calls a text unsafe; `tempts_S1` in a prompt makes the answer have `unsafe_S1`."""
_TEMPTING = re.compile(r"\btempts_(S\d+)\b")
UNREADABLE_MARKER = "unreadable_verdict"
"""Word of a text to which a guard model answers without a verdict."""
_WINDOW_CHARACTERS = 2000
"""Number of characters that the words of an answer come from: a 32 MB prompt is hashed, but not split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a model.

    Attributes:
        text: Text, after any cut.
        output_tokens: Length, in tokens.
        is_cut: Whether the text was cut at the caller's limit.
        parts: Answers to the parts of a call that has some; `text` is then "".
        mean_logprob: Mean log-probability of its tokens; None for that of every answer of the API.
    """

    text: str
    output_tokens: int
    is_cut: bool
    parts: tuple[Answer, ...] = ()
    mean_logprob: float | None = None


def words_of(text: str) -> list[str]:
    """Returns the words of a text, each with the space before it, in place of its tokens."""
    return re.findall(r"\s*\S+", text)


def count_bytes(text: str) -> int:
    """Returns the UTF-8 bytes of `text` / 4, rounded up."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


TOKENIZER: ContextVar[Tokenizer] = ContextVar("TOKENIZER", default=count_bytes)
"""Tokenizer of the sandbox that answers: a process may run several, and one task answers a request."""


def count_tokens(text: str) -> int:
    """Returns the tokens of `text` by the tokenizer of the sandbox that answers; UTF-8 bytes / 4 by default."""
    return TOKENIZER.get()(text)


def prompt_sha256(prompt: str, system: str = "") -> str:
    """Returns the key of a prompt in the request log: SHA-256 of the text, in hexadecimal.

    Args:
        prompt: All user text, parts joined by a line break.
        system: The system text; without one, the hash is that of `prompt` alone.
    """
    return sha256(_whole(prompt, system).encode()).hexdigest()


def answer_text(
    prompt: str,
    *,
    model: str,
    system: str = "",
    schema: Schema | None = None,
    max_output_tokens: int | None = None,
) -> Answer:
    """Answers a prompt.

    Args:
        prompt: All user text.
        model: Model name; the answer depends on it, as on `system`. One with `guard` or `shieldgemma` in it gives
            verdicts.
        system: The system text.
        schema: Schema of the answer; None gives a short sentence.
        max_output_tokens: Maximum length of the answer; None is no limit.

    Raises:
        SchemaError: No document satisfies `schema`.
    """
    if "shieldgemma" in model.lower():
        return _cut(_yes_or_no(prompt), max_output_tokens)
    if "guard" in model.lower() and (schema is None or "unsafe" in schema.get("properties", {})):
        return _cut(_verdict(prompt, is_json=schema is not None), max_output_tokens)
    digest = sha256(f"{model}\n{_whole(prompt, system)}".encode()).hexdigest()
    if schema is None:
        text = f"{' '.join(_WORD.findall(prompt[:_WINDOW_CHARACTERS])[:8])} [{model} {digest[:12]}]"
        text = _TEMPTING.sub(r"unsafe_\1", text)
    else:
        words = _WORD.findall(prompt[-_WINDOW_CHARACTERS:]) or ["answer"]
        text = json.dumps(document(schema, seed=digest, words=words), ensure_ascii=False)
    return _cut(text.strip(), max_output_tokens)


def pieces(text: str) -> list[str]:
    """Splits an answer into at most four pieces of nearly equal length, for streaming."""
    size = max(1, -(-len(text) // 4))
    return [text[start : start + size] for start in range(0, len(text), size)] or [""]


def _verdict(text: str, *, is_json: bool) -> str:
    """Returns the verdict of a guard model, in the form of Llama Guard, or as the object of a schema.

    Source of the form: the model card of meta-llama/Llama-Guard-3-8B.
    """
    if UNREADABLE_MARKER in text:
        return "[]" if is_json else "I cannot assess this text."
    found = list(dict.fromkeys(_UNSAFE.findall(text)))
    if is_json:
        return json.dumps({"unsafe": bool(found), "categories": found})
    return f"unsafe\n{','.join(found)}" if found else "safe"


def _yes_or_no(text: str) -> str:
    """Returns ShieldGemma's verdict (ai.google.dev/gemma/docs/shieldgemma/model_card), whatever the policy."""
    if UNREADABLE_MARKER in text:
        return "I cannot assess this text."
    return "Yes" if _UNSAFE.search(text) else "No"


def _whole(prompt: str, system: str) -> str:
    return f"{system}\n{prompt}" if system else prompt


def _cut(text: str, max_output_tokens: int | None) -> Answer:
    tokens = count_tokens(text)
    if max_output_tokens is None or tokens <= max_output_tokens:
        return Answer(text=text, output_tokens=tokens, is_cut=False)
    size = bisect_right(range(1, len(text) + 1), max_output_tokens, key=lambda end: count_tokens(text[:end]))
    return Answer(text=text[:size], output_tokens=max_output_tokens, is_cut=True)
