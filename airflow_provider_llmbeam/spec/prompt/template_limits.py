"""Limits on what one operation of a template may produce.

They are checked before: Python would exhaust the memory, or hold the interpreter lock for hours. The sizes come
from rows (`{{ ' ' * row.indent }}`) or from a mistake; the author of a template is trusted: a Dag runs any code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any

import jinja2

#: Maximum length of a text that a template produces, in characters, and of a list: the limit of a row in a file.
#: The longest context of today's models, 10 million tokens, is some 40 million characters.
MAX_SIZE = 64 * 2**20
#: Maximum length of a text that describes a format, e.g. of `%`. Those in templates have a few characters.
_MAX_FORMAT = 10_000
_MAX_BITS = 100_000
_TEXTS, _LISTS = (str, bytes), (list, tuple, set, frozenset)
_MAX_PRECISION = 400

#: A width or a precision in a `%` format of seven digits, or given as a value.
_WIDE = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(?:\*|\d{7}|\d*\.(?:\*|\d{7}))")
_WIDE_SPEC = re.compile(r"\{|\d{7}")


class TemplateLimitError(jinja2.TemplateRuntimeError):
    """A template would produce too much, or takes too long, for one row."""


def allow(size: int, what: str = "a text") -> None:
    """Checks a size before it is produced.

    Raises:
        TemplateLimitError: It is too large.
    """
    if size > MAX_SIZE:
        raise TemplateLimitError(f"{what} of {size:,} characters; at most {MAX_SIZE:,}")


def size_of(value: Any) -> int:
    """Returns about how many characters a value has as a text, or a few more; it stops above the limit.

    Lists count more, so that one with itself in many places takes a second and not minutes.
    """
    size, rest = 0, [value]
    while rest and size <= MAX_SIZE:
        part = rest.pop()
        if isinstance(part, _TEXTS):
            size += len(part)
        elif isinstance(part, dict):
            size += 16 * len(part)
            rest += part
            rest += part.values()
        elif isinstance(part, _LISTS):
            size += 16 * len(part)
            rest += part
        else:
            size += 8
    return size


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Checks `left operator right`.

    Raises:
        TemplateLimitError: The result would be too large.
    """
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MAX_BITS:
            raise TemplateLimitError(f"a number of more than {_MAX_BITS:,} bits")
    elif operator == "*":
        if isinstance(right, int):
            allow(size_of(left) * right)
        elif isinstance(left, int):
            allow(size_of(right) * left)
    elif operator == "+":
        if hasattr(left, "__len__") and hasattr(right, "__len__"):
            allow(len(left) + len(right))
    elif operator == "%" and isinstance(left, _TEXTS):
        _check_percent(left, right)


def check_method(owner: str | bytes | int, name: str, *arguments: Any) -> None:
    """Checks a call of a method of a text or a number.

    Raises:
        TemplateLimitError: The result would be too large.
    """
    numbers = [argument for argument in arguments if isinstance(argument, int)]
    match name, owner:
        case "center" | "ljust" | "rjust" | "zfill" | "to_bytes", _:
            allow(max(numbers, default=0))
        case "expandtabs", str():
            allow(len(owner) + owner.count("\t") * max(numbers, default=8))
        case "expandtabs", bytes():
            allow(len(owner) + owner.count(b"\t") * max(numbers, default=8))
        case "replace", str() | bytes() if len(arguments) > 1:
            _check_replace(owner, arguments[0], arguments[1])
        case "join", str() | bytes() if arguments:
            allow(size_of(arguments[0]) + len(owner) * len(arguments[0]))
        case "translate", str() if arguments:
            allow(len(owner) * size_of(arguments[0]))
        case "format" | "format_map", str():
            _check_braces(owner, arguments)


def _check_replace(text: Any, old: Any, new: Any) -> None:
    allow(len(text) + text.count(old) * len(new))


def _check_percent(text: str | bytes, values: Any) -> None:
    shown = text if isinstance(text, str) else text.decode("latin-1")
    if len(shown) > _MAX_FORMAT or _WIDE.search(shown):
        raise TemplateLimitError(f"a format that is too wide: {shown[:100]!r}")
    allow(len(shown) + shown.count("%") * size_of(values))


def _check_braces(text: str, values: Any) -> None:
    fields = [spec for _, name, spec, _ in Formatter().parse(text[: _MAX_FORMAT + 1]) if name is not None]
    if len(text) > _MAX_FORMAT or any(spec and _WIDE_SPEC.search(spec) for spec in fields):
        raise TemplateLimitError(f"a format that is too wide: {text[:100]!r}")
    allow(len(text) + len(fields) * size_of(values))


def _indent(text: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    text = str(text)
    allow(len(text) + (text.count("\n") + 1) * (width if isinstance(width, int) else len(width)))


def _wordwrap(
    _: Any, text: str, width: int = 79, __: Any = True, wrapstring: str | None = None, *___: Any
) -> None:
    lines = len(text) // max(width, 1) + text.count("\n") + 1
    allow(len(text) + lines * len(wrapstring or "\n"))


def _round(_: Any, precision: int = 0, *__: Any, **___: Any) -> None:
    if abs(precision) > _MAX_PRECISION:
        raise TemplateLimitError(f"a precision of {precision:,} digits; at most {_MAX_PRECISION}")


#: Methods of texts and numbers that `check_method` checks.
CHECKED_METHODS = frozenset(
    {
        "center",
        "expandtabs",
        "format",
        "format_map",
        "join",
        "ljust",
        "replace",
        "rjust",
        "to_bytes",
        "translate",
        "zfill",
    }
)
#: Checks of the filters that can produce much more than they are given; each has the arguments of its filter.
FILTER_CHECKS: Mapping[str, Callable[..., None]] = {
    "batch": lambda _, linecount, *__, **___: allow(linecount, "a list"),
    "center": lambda _, width=80: allow(width),
    "format": lambda value, *args, **kwargs: _check_percent(str(value), [*args, *kwargs.values()]),
    "indent": _indent,
    "join": lambda _, value, d="", *__, **___: allow(size_of(value) + len(d) * len(value)),
    "pprint": lambda value: allow(size_of(value)),
    "replace": lambda _, s, old, new, *__, **___: _check_replace(str(s), str(old), str(new)),
    "round": _round,
    "slice": lambda _, __, slices, *___, **____: allow(slices, "a list"),
    "string": lambda value: allow(size_of(value)),
    "tojson": lambda value: allow(size_of(value)),
    "wordwrap": _wordwrap,
}
