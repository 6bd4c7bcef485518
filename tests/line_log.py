"""The log of a task, as lines."""

from __future__ import annotations


class LineLog:
    """Takes what a task logs.

    Attributes:
        lines: The messages, with their values.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, message: str, *values: object) -> None:
        self.lines.append(message % values)

    warning = error = info

    def log(self, level: int, message: str, *values: object) -> None:
        self.info(message, *values)
