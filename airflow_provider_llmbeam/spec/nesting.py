"""Values that JSON does not hold as they are: nested too deep, in no order, or no number."""

from __future__ import annotations

import math
from itertools import starmap
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


def changed_by_json(value: Any, name: str = "") -> str | None:
    """Returns the rest of a sentence, after "has", about a value within another that JSON would change, if any.

    A job is sent as JSON: a set becomes a list in the order of its hashes, which differs between processes, and
    NaN and infinity become null. The prompts of a retry would be other prompts.

    Args:
        value: A value with at most `MAX_DEPTH` levels.
        name: The key of the object that holds it.
    """
    match value:
        case dict():
            parts = [(inner, str(key)) for key, inner in value.items()]
        case list() | tuple():
            parts = [(inner, name) for inner in value]
        case set() | frozenset():
            return f"a set in {name!r}, which has another order in each process: pass a list"
        case float() if not math.isfinite(value):
            return f"{value} in {name!r}, which JSON does not have: pass None, or a text"
        case _:
            return None
    return next(filter(None, starmap(changed_by_json, parts)), None)
