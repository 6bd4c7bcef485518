"""A mistake of an author: what was written, when it is found, and the sentence that is shown."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: Spec without a mistake. `{server}` stands for the address of the sandbox.
RIGHT: Mapping[str, Any] = {
    "name": "moods",
    "source": {"uri": "rows.jsonl", "key": ["id"]},
    "prompt": {"template": "Which mood has this review? {{ row.text }}"},
    "model": {"type": "gemini", "name": "gemini-2.5-flash", "base_url": "{server}"},
    "sink": {"uri": "out/"},
}
#: Number of rows in `rows.jsonl`, each with `id` and `text`.
ROWS = 100

#: Value of a field that the author left out.
LEFT_OUT = object()

#: `parse`: when Airflow parses the Dag. `start`: in the task, before anything is sent. `answers`: by the first
#: answers.
Found = Literal["parse", "start", "answers"]
#: What the server does, in place of answering.
Server = Literal["answers", "refuses the key", "refuses the request"]


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One mistake.

    Attributes:
        changes: Fields of the spec with the mistake, by their dotted path.
        sentence: Sentence that is shown.
        found: When it is found.
        requests: Number of requests that the server receives at most.
        about: What is wrong with the files or the server, if `changes` does not show it.
        files: Contents of files beside `rows.jsonl`, by name.
        server: What the server does.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    sentence: str
    found: Found = "parse"
    requests: int = 0
    about: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    server: Server = "answers"

    @property
    def written(self) -> str:
        """What the author wrote, in one line."""
        parts = [
            f"no `{path}`" if value is LEFT_OUT else f"`{path}={value!r}`" for path, value in self.changes.items()
        ]
        return ", ".join(filter(None, (self.about, *parts)))

    def spec(self, server: str) -> dict[str, Any]:
        """Returns the spec with the mistake.

        Args:
            server: Address of the sandbox.
        """
        spec = copy.deepcopy(dict(RIGHT))
        for path, value in self.changes.items():
            *parents, last = path.split(".")
            at = spec
            for parent in parents:
                at = at.setdefault(parent, {})
            if value is LEFT_OUT:
                del at[last]
            else:
                at[last] = copy.deepcopy(value)
        return with_address(spec, server)


def with_address(value: Any, server: str) -> Any:
    """Returns a value with the address of the server in all its texts."""
    if isinstance(value, dict):
        return {name: with_address(item, server) for name, item in value.items()}
    if isinstance(value, list):
        return [with_address(item, server) for item in value]
    return value.replace("{server}", server) if isinstance(value, str) else value
