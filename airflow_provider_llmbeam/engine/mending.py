"""Mends answers for nothing, before another request is paid for: reasoning, and JSON with something around it.

Pure. What is mended is still checked against the schema.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

#: A block of reasoning at the beginning of an answer, as DeepSeek R1 and Qwen write it into the text. Further
#: tags, such as `<reasoning>`, are those of prompts that ask for them.
_REASONING = re.compile(r"\s*<think>(.*?)(?:</think>\s*|\Z)", re.DOTALL)
#: The end of one whose beginning is in the chat template of the model: in a line of its own, as no text has it.
_END = re.compile(r"^[ \t]*</think>[ \t]*$\s*", re.MULTILINE)
_FENCE = re.compile(r"```\w*[ \t]*\r?\n(.*?)```", re.DOTALL)


def without_reasoning(text: str) -> tuple[str, str]:
    """Returns a text without the reasoning before it, and that reasoning."""
    if (block := _REASONING.match(text)) is not None:
        return text[block.end() :], block[1].strip()
    if (end := _END.search(text)) is None or "<think>" in text[: end.start()]:
        return text, ""
    return text[end.end() :], text[: end.start()].strip()


def read_json(text: str) -> Any:
    """Returns the value of a JSON text.

    Raises:
        ValueError: It is no JSON, or has a number that JSON does not have.
        RecursionError: It is too deep.
    """
    return _strict.decode(text)


def mended_json(text: str) -> Any:
    """Returns the value of a JSON text; `None` if there is none, a second one, or two fields of one name.

    It may be in a code fence, after a byte order mark, before another text, or have control characters in strings.
    """
    for candidate in _candidates(text.strip().removeprefix("\ufeff").strip()):
        try:
            value, end = _lenient.raw_decode(candidate)
        except (ValueError, RecursionError):
            continue
        rest = candidate[end:].strip()
        if not rest or (isinstance(value, dict | list) and not _OPENING.search(rest)):
            return value
    return None


def decoded_twice(value: Any) -> Any:
    """Returns the value whose JSON is the text that a JSON text holds; `None` for any other value."""
    return mended_json(value) if isinstance(value, str) else None


def _candidates(text: str) -> Iterator[str]:
    yield text
    if text.count("```") == 2 and (fence := _FENCE.search(text)) is not None:
        yield fence[1].strip()


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)  # `1e400` would be written as Infinity


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _object(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(fields)
    if len(found) < len(fields):  # which one counts would be a guess
        raise ValueError("an object has two fields of one name")
    return found


_OPENING = re.compile(r"[{\[]")
_strict = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)
_lenient = json.JSONDecoder(
    parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_object, strict=False
)
