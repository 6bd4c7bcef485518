"""What an unknown field was probably meant to be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

#: Fields by the names that similar settings have elsewhere: the first one that is known at a place.
_NAMES_ELSEWHERE = {
    "concurrency": ("max_in_flight",),
    "conn_id": ("llmbeam_conn_id",),
    "host": ("base_url",),
    "id": ("key",),
    "if_exists": ("on_existing",),
    "input": ("source",),
    "json": ("output_schema",),
    "max_cost": ("budget_usd",),
    "max_failures": ("max_dead_letter_ratio",),
    "max_num_workers": ("max_workers",),
    "max_tokens": ("max_output_tokens",),
    "messages": ("template",),
    "mode": ("on_existing",),
    "model": ("name",),
    "output": ("sink",),
    "output_path": ("sink",),
    "output_uri": ("sink",),
    "path": ("uri",),
    "primary_key": ("key",),
    "prompt": ("template",),
    "qps": ("requests_per_minute",),
    "region": ("location",),
    "requests_per_second": ("requests_per_minute",),
    "response_format": ("output_schema",),
    "response_schema": ("output_schema",),
    "retries": ("max_attempts",),
    "rpm": ("requests_per_minute",),
    "sql": ("query",),
    "stop": ("stop_sequences",),
    "temp_location": ("temp_uri",),
    "timeout": ("request_timeout_seconds",),
    "tpm": ("tokens_per_minute",),
    "url": ("base_url", "uri"),
    "user": ("template",),
    "write_disposition": ("on_existing",),
}
#: Values by the names that they have elsewhere: types of models and metrics.
_VALUES_ELSEWHERE = {
    "accuracy": "exact",
    "azure": "openai",
    "claude": "anthropic",
    "google": "gemini",
    "ollama": "openai",
    "vertex": "gemini",
    "vertex_ai": "gemini",
    "vllm": "openai",
}
_SELECT = "a table is filtered by `source.query`, and `source.skip_empty` leaves out rows without a value"
_PART = "`source.share` takes a part of the rows, and `llmbeam preview` answers a few"
_COLUMNS = "all columns are read, and `sink.passthrough` names those that are written with the answers"
#: What there is instead of a field of the source that does not exist.
_INSTEAD = {
    ("source", "columns"): _COLUMNS,
    ("source", "filter"): _SELECT,
    ("source", "limit"): _PART,
    ("source", "max_rows"): _PART,
    ("source", "where"): _SELECT,
}
#: Maximum length of a list of fields in a message, in characters.
_MAX_LIST = 110


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns `did you mean …?`, or the known names if none is close and they are few, or an empty text."""
    names = sorted(known)
    if field := _alias(name, names):
        return f"did you mean `{field}`?"
    if close := _closest(name, names):
        return f"did you mean `{close}`?"
    shown = ", ".join(f"`{one}`" for one in names)
    return f"expected one of {shown}" if names and len(shown) <= _MAX_LIST else ""


def nearest_value(value: str, known: Iterable[str]) -> str:
    """Returns the value that another one was probably meant to be, or an empty text."""
    names = [*known]
    found = _VALUES_ELSEWHERE.get(value.lower(), "")
    return found if found in names else _closest(value, names)


def instead_of(path: Sequence[str | int], root: Any) -> str:
    """Returns where an unknown field belongs, or what it was meant to be; empty if nothing is close.

    Args:
        path: Path of the unknown field; it may contain the names of types of a union.
        root: Class or annotation of the value that was validated.
    """
    name = str(path[-1])
    above, classes = _walk(root, path[:-1])
    known = _names(classes)
    if instead := _INSTEAD.get((above[0] if above else "", name)):
        return instead
    if not _alias(name, known):
        inner = [".".join([*above, home]) for each in classes for home in homes_of(name, each)]
        if inner and above:
            return _belongs(dict.fromkeys(inner))
        if found := _elsewhere(name, lambda field: _other_homes(field, root, above)):
            return found
        if above and name in _names(_members(root)):
            return f"it belongs beside `{above[0]}`, not into it"
    return nearest(name, known)


def instead_of_argument(name: str, known: Iterable[str], root: Any) -> str:
    """Returns where an unknown argument of an operator belongs, or what it was meant to be; see `instead_of`.

    Args:
        name: The unknown argument.
        known: Its arguments.
        root: Class of the spec whose fields are among them.
    """
    names = {*known}

    def find_homes(field: str) -> list[str]:
        return [home for home in homes_of(field, root) if home in names]

    if alias := _alias(name, names):
        homes = _listed(find_homes(name))
        return f"did you mean `{alias}`{homes and f', or `{name}` in {homes}'}?"
    return _elsewhere(name, find_homes) or nearest(name, names)


def _elsewhere(name: str, find_homes: Callable[[str], Sequence[str]]) -> str:
    """Returns in which values an unknown field belongs, or what it is called in one; or an empty text."""
    if found := find_homes(name):
        return _belongs(found)
    aliases = ((alias, find_homes(alias)) for alias in _NAMES_ELSEWHERE.get(name, ()))
    return next((f"did you mean `{homes[0]}.{alias}`?" for alias, homes in aliases if len(homes) == 1), "")


def _other_homes(name: str, root: Any, above: Sequence[str]) -> list[str]:
    """Returns the fields of a spec whose values have a field, none if a field on the path is one of them."""
    homes = homes_of(name, root)
    return [] if {*homes} & {*above} else homes


def _belongs(homes: Iterable[str]) -> str:
    return f"it belongs in {_listed(homes)}"


def _listed(homes: Iterable[str]) -> str:
    return " or ".join(f"`{home}`" for home in homes)


def _alias(name: str, known: Collection[str]) -> str:
    return next((field for field in _NAMES_ELSEWHERE.get(name, ()) if field in known), "")


def _closest(name: str, known: Iterable[str]) -> str:
    folded = {one.replace("_", "").lower(): one for one in known}
    close = get_close_matches(name.replace("_", "").lower(), folded, n=1)
    return folded[close[0]] if close else ""


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
