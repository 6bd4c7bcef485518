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
    "model": {"type": "gemini", "name": "gemini-3.5-flash-lite", "base_url": "{server}"},
    "sink": {"uri": "out/"},
}
#: Evaluation without a mistake, of the golden set in `golden.jsonl`: the columns of the rows, and `expected_mood`.
RIGHT_EVALUATION: Mapping[str, Any] = {
    "golden": {"uri": "golden.jsonl", "key": ["id"]},
    "metrics": {"mood": "exact"},
}
#: Number of rows in `rows.jsonl`, each with `id` and `text`.
ROWS = 100

#: Value of a field that the author left out.
LEFT_OUT = object()

#: `parse`: when Airflow parses the Dag. `start`: in the task, before anything is sent. `answers`: by the first
#: answers. `evaluation`: in the task that evaluates, before anything is sent. `review`: in the task that selects
#: answers for a review.
Found = Literal["parse", "start", "answers", "evaluation", "review"]
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
        evaluation: Fields of the evaluation with the mistake, by their dotted path.
        sample: Selection of answers with the mistake.
        about: What is wrong with the files or the server, if `changes` does not show it.
        files: Contents of files beside `rows.jsonl`, by name.
        server: What the server does.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    sentence: str
    found: Found = "parse"
    requests: int = 0
    about: str = ""
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    sample: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    server: Server = "answers"

    @property
    def written(self) -> str:
        """What the author wrote, in one line."""
        parts = [
            f"no `{path}`" if value is LEFT_OUT else f"`{path}={value!r}`"
            for path, value in {**self.changes, **self.evaluation, **self.sample}.items()
        ]
        return ", ".join(filter(None, (self.about, *parts)))

    def spec(self, server: str) -> dict[str, Any]:
        """Returns the spec with the mistake.

        Args:
            server: Address of the sandbox.
        """
        return with_address(_changed(RIGHT, self.changes), server)

    @property
    def evaluation_spec(self) -> dict[str, Any]:
        """The evaluation with the mistake."""
        return _changed(RIGHT_EVALUATION, self.evaluation)


def _changed(right: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    found = copy.deepcopy(dict(right))
    for path, value in changes.items():
        *parents, last = path.split(".")
        at = found
        for parent in parents:
            at = at.setdefault(parent, {})
        if value is LEFT_OUT:
            del at[last]
        else:
            at[last] = copy.deepcopy(value)
    return found


def with_address(value: Any, server: str) -> Any:
    """Returns a value with the address of the server in all its texts."""
    if isinstance(value, dict):
        return {name: with_address(item, server) for name, item in value.items()}
    if isinstance(value, list):
        return [with_address(item, server) for item in value]
    return value.replace("{server}", server) if isinstance(value, str) else value
