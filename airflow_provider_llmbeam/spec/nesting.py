"""Depth of nested values, which a recursive encoder or decoder limits."""

from __future__ import annotations

from typing import Any

#: Maximum number of levels of lists and objects in a row, an answer or a field of a spec. Python gives up at 1,000
#: nested calls, of which Beam's own stack has taken a part: rows with 700 to 980 levels could be parsed, and not
#: pickled. Pydantic serializes 255 levels. Other parsers: protobuf 100, serde_json 128, System.Text.Json 64.
MAX_DEPTH = 100

_CONTAINERS = (dict, list, tuple)
_MANY = 100_000


def depth_exceeds(value: Any, limit: int = MAX_DEPTH) -> bool:
    """Returns whether a value has more levels of lists and objects than a limit, without recursion.

    Args:
        value: A value of JSON types; it may contain itself.
        limit: Number of levels that are allowed: `[1]` has one.
    """
    level: list[Any] = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(limit):
        if not level:
            return False
        inner = [
            part
            for outer in level
            for part in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(part, _CONTAINERS)
        ]
        # A value that contains itself, or one part in many places, grows with each level, and has few parts.
        level = inner if len(inner) < _MANY else list({id(part): part for part in inner}.values())
    return bool(level)


def text_depth_exceeds(text: str | bytes, value: Any, limit: int = MAX_DEPTH) -> bool:
    """Does the same for a value of which the JSON text is known: one with few brackets needs no walk.

    Counting takes 1 µs per 10 kB, a walk as long as parsing.
    """
    opened = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    return opened > limit and depth_exceeds(value, limit)
