"""Searches what a job leaves for planted values, also where they are encoded or compressed."""

from __future__ import annotations

import base64
import bz2
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import unquote

import pytest
from llmbeam_sandbox.storage.state import ObjectStore

from tests.replying import Received, Replying, raw

_BASE64 = re.compile(rb"[A-Za-z0-9+/]{16,}")
#: What may be in base64: the page of a report in an XCom, and functions that Beam has pickled.
_UNPACKED: tuple[Callable[[bytes], bytes], ...] = (gzip.decompress, bz2.decompress, zlib.decompress)


def leaked(places: Mapping[str, bytes | str], values: Iterable[str]) -> list[tuple[str, str]]:
    """Returns each place and value that was found there.

    Args:
        places: Content by name of the place.
        values: The planted values.
    """
    wanted = tuple(values)
    found: list[tuple[str, str]] = []
    for name, content in places.items():
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        text = "\n".join(_forms(data))
        found += [(name, value) for value in wanted if value in text]
    return found


def _forms(data: bytes) -> Iterator[str]:
    text = data.decode("utf-8", "replace")
    yield text
    yield unquote(text)
    if "\\" in text:
        yield re.sub(r"\\u([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), text)
    for match in _BASE64.finditer(data):
        part = base64.b64decode(match[0][: len(match[0]) // 4 * 4])
        yield part.decode("utf-8", "replace")
        for unpacked in _UNPACKED:
            with suppress(OSError, ValueError, EOFError, zlib.error):
                yield unpacked(part).decode("utf-8", "replace")


@contextmanager
def recorded_objects() -> Iterator[list[tuple[str, bytes]]]:
    """Yields all objects that are written to the sandboxes of this process, also those that are deleted again."""
    objects: list[tuple[str, bytes]] = []
    put = ObjectStore.put

    def recorded(store: ObjectStore, bucket: str, name: str, data: bytes, *arguments: Any, **options: Any) -> Any:
        objects.append((name, bytes(data)))
        return put(store, bucket, name, data, *arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ObjectStore, "put", recorded)
        yield objects


class CopyingModel(Replying):
    """An OpenAI-compatible server: answers with what `write` makes of the prompt, or fails; as a guard `safe`."""

    def __init__(self, write: Callable[[str], str | None] = str) -> None:
        super().__init__(self._reply)
        self.write = write

    @property
    def texts(self) -> str:
        """All that was sent to it."""
        return "\n".join(f"{each.headers}\n{each.body.decode()}" for each in list(self.received))

    def _reply(self, request: Received) -> bytes:
        asked: dict[str, Any] = json.loads(request.body)
        answer = "safe" if "guard" in asked["model"] else self.write(asked["messages"][-1]["content"])
        if answer is None:
            return raw("down", 500)
        choice = {"message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
        return raw({"model": "m", "choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 5}})
