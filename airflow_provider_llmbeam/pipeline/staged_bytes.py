"""Bytes in the JSON of staged answers, told from texts, for sinks with columns of bytes."""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Any

_BYTES = "llmbeam_bytes"


def staged_bytes(value: bytes | str) -> dict[str, str]:
    """Returns bytes, or the text of a column of bytes, as they are staged."""
    content = value.encode() if isinstance(value, str) else value
    return {_BYTES: base64.b64encode(content).decode()}


def bytes_of(value: Any) -> bytes | None:
    """Returns the bytes of a staged value; `None` for any other, which a column of the source may hold."""
    if type(value) is dict and value.keys() == {_BYTES}:
        with suppress(TypeError, ValueError):
            return base64.b64decode(value[_BYTES], validate=True)
    return None


def without_bytes(value: Any) -> Any:
    """Returns a staged value for a column of another type: bytes as text if they are UTF-8, else as base64."""
    if (content := bytes_of(value)) is None:
        return value
    try:
        return content.decode()
    except UnicodeDecodeError:
        return value[_BYTES]
