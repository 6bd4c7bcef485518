"""Lines of the tables."""

from __future__ import annotations

import sys


def print_line(line: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def rounded(value: float | None, digits: int = 2) -> str:
    """Returns a number as text; what was not measured is a dash."""
    return "-" if value is None else f"{value:.{digits}f}"
