"""Options of Beam as command-line arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def beam_arguments(options: Mapping[str, Any]) -> list[str]:
    """Returns options as arguments that Beam's command line takes.

    Args:
        options: Values by option. `True` becomes a flag, each item of a list or tuple an argument of its own; an
            option that is `False` or `None` is left out.
    """
    arguments: list[str] = []
    for name, value in options.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            if item is True:
                arguments.append(f"--{name}")
            elif item is not False and item is not None:
                arguments.append(f"--{name}={item}")
    return arguments
