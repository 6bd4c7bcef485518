"""Characters that UTF-8 cannot encode, and those that a reader does not see.

The first are halves of surrogate pairs, as in a text cut within an emoji. JSON can hold them as escapes; neither
Beam nor a model server nor another reader of an output file accepts them.
"""

from __future__ import annotations

import re
from typing import Any

#: Characters that a reader does not see, or that change the order of those that follow: all controls but line
#: breaks and tabs, and the marks of Unicode's bidirectional algorithm.
_HIDDEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def valid_text(text: str) -> str:
    """Returns a text that can be encoded as UTF-8: a lone half of a surrogate pair becomes U+FFFD.

    Two halves that follow each other, e.g. of two pieces of a stream, become their character.
    """
    if text.isascii():  # a flag of the string: 30 ns
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def valid_value(value: Any) -> Any:
    """Does the same for all texts of a value of JSON types, with at most `spec.nesting.MAX_DEPTH` levels."""
    match value:
        case str():
            return valid_text(value)
        case dict():
            return {valid_value(name): valid_value(inner) for name, inner in value.items()}
        case list() | tuple():
            return [*map(valid_value, value)]
    return value


def visible(text: str) -> str:
    """Returns a text in which hidden characters are shown: C0 controls as their pictures, others by number."""
    return _HIDDEN.sub(_picture, text)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else f"⟨{code:04X}⟩"
