"""Characters that UTF-8 cannot encode.

They are halves of surrogate pairs, as in a text cut within an emoji. JSON can hold them as escapes; neither
Beam nor a model server nor another reader of an output file accepts them.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


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


def has_whole_characters(value: Any) -> bool:
    """Returns whether UTF-8 can encode all texts of a spec, or of a value of JSON types."""
    match value:
        case BaseModel():
            return has_whole_characters(value.__dict__)
        case str():
            return value.isascii() or valid_text(value) == value
        case dict():
            return all(has_whole_characters(part) for pair in value.items() for part in pair)
        case list() | tuple():
            return all(map(has_whole_characters, value))
    return True


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
