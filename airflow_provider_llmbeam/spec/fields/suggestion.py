"""What an unknown field was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

#: Fields by the names that similar settings have elsewhere.
_NAMES_ELSEWHERE = {
    "concurrency": "max_in_flight",
    "path": "uri",
    "region": "location",
    "retries": "max_attempts",
    "rpm": "requests_per_minute",
    "sql": "query",
    "timeout": "request_timeout_seconds",
    "tpm": "tokens_per_minute",
}
#: Maximum length of a list of fields in a message, in characters.
_MAX_LIST = 110


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns `did you mean …?`, or the known names if none is close and they are few, or an empty text."""
    names = sorted(known)
    if (field := _NAMES_ELSEWHERE.get(name)) in names:
        return f"did you mean `{field}`?"
    folded = {one.replace("_", "").lower(): one for one in names}
    if close := get_close_matches(name.replace("_", "").lower(), folded, n=1):
        return f"did you mean `{folded[close[0]]}`?"
    shown = ", ".join(f"`{one}`" for one in names)
    return f"expected one of {shown}" if names and len(shown) <= _MAX_LIST else ""


def instead_of(path: Sequence[str | int], root: Any) -> str:
    """Returns where an unknown field belongs, or what it was meant to be; empty if nothing is close.

    Args:
        path: Path of the unknown field; it may contain the names of types of a union.
        root: Class or annotation of the value that was validated.
    """
    name = str(path[-1])
    above, classes = _walk(root, path[:-1])
    homes = homes_of(name, root)
    if homes and not {*above} & {*homes}:
        return f"it belongs in {' or '.join(f'`{home}`' for home in homes)}"
    if above and name in _names(_members(root)):
        return f"it belongs beside `{above[0]}`, not into it"
    known = _names(classes)
    field = _NAMES_ELSEWHERE.get(name, "")
    if field not in known and len(homes := homes_of(field, root)) == 1:
        return f"did you mean `{homes[0]}.{field}`?"
    return nearest(name, known)


def field_path(path: Sequence[str | int], root: Any) -> list[str]:
    """Returns a path of pydantic without the names of types, which it has after each union."""
    return _walk(root, path)[0]


def homes_of(name: str, root: Any) -> list[str]:
    """Returns the fields of a spec whose values have a field of this name."""
    return [
        part
        for member in _members(root)
        for part, field in member.model_fields.items()
        if name in _names(_members(field.annotation))
    ]


def _walk(root: Any, path: Sequence[str | int]) -> tuple[list[str], list[type[BaseModel]]]:
    """Returns the fields and items on a path, and the classes that the value at its end may have."""
    fields, classes = list[str](), [*_members(root)]
    for step in map(str, path):
        if len(classes) > 1 and (tagged := [one for one in classes if step in _tags(one)]):
            classes = tagged
            continue
        fields.append(step)
        found = [one.model_fields[step].annotation for one in classes if step in one.model_fields]
        if found:
            classes = [member for annotation in found for member in _members(annotation)]
    return fields, classes


def _members(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields the classes in an annotation."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, tuple, Mapping):
        for one in get_args(annotation):
            yield from _members(one)


def _tags(member: type[BaseModel]) -> tuple[Any, ...]:
    return get_args(member.model_fields["type"].annotation) if "type" in member.model_fields else ()


def _names(classes: Iterable[type[BaseModel]]) -> set[str]:
    return {name for one in classes for name in one.model_fields}
