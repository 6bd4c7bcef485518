"""Texts within the values of a row or an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_provider_llmbeam.pipeline.privacy.placeholder import replaced


def texts_of(value: Any) -> Iterator[str]:
    """Yields the texts in a value, at every level, and those that are names of fields below it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from texts_of(name)
            yield from texts_of(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts_of(inner)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns a value with each value that is no list or object changed, and the names of its fields."""
    if isinstance(value, Mapping):
        return {change(name): mapped(inner, change) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [mapped(inner, change) for inner in value]
    return change(value)


def restored(value: Any, values: Mapping[str, Any]) -> Any:
    """Returns a value with its placeholders restored; a text that is a placeholder becomes a value of its type.

    Args:
        value: A text, or a value of JSON.
        values: Values by placeholder.
    """
    if not values:
        return value
    texts = {placeholder: found if isinstance(found, str) else str(found) for placeholder, found in values.items()}

    def change(one: Any) -> Any:
        if not isinstance(one, str):
            return one
        return values[one] if one in values else replaced(one, texts)

    return mapped(value, change)
