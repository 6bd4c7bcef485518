"""Values that arrive as text: Airflow renders a template to text, unless the Dag asks for native objects."""

from __future__ import annotations

import ast
import json
from typing import Any

_OPENINGS = ("{", "[")


def from_text(value: Any) -> Any:
    """Returns the object or list that a text holds, as JSON or as a Python literal; any other value unchanged."""
    if not isinstance(value, str) or not value.lstrip().startswith(_OPENINGS):
        return value
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(value.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        return found if isinstance(found, dict | list) else value
    return value
