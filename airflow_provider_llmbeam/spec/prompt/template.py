"""The environment of the templates: Jinja2 in a sandbox, with strict undefined names and limits for each row."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from itertools import islice
from string import Formatter
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

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


#: Maximum time for one row, in seconds; it takes microseconds, unless loops multiply.
MAX_SECONDS = 10.0

_TIMED = "llmbeam_timed"
#: Number of parts of a text whose size is counted at once.
_PARTS = 32
_OWNERS = (str, bytes, int)
_CONTAINERS = (list, dict, tuple)
#: Filters of Jinja that return generators. The text of one is `<generator object … at 0x7f…>`: the prompt would
#: have nothing of the row, and another address in each try, which is paid for again.
_LAZY = ("batch", "items", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "unique")


class _MissingColumn(jinja2.StrictUndefined):
    """Names the existing columns in the error."""

    @property
    def _undefined_message(self) -> str:
        if isinstance(self._undefined_obj, dict):
            return f"no column {self._undefined_name!r}; there are {sorted(map(str, self._undefined_obj))}"
        return super()._undefined_message


class _CodeGenerator(CodeGenerator):
    """Lets the environment join the operands of `~`, which is no operator that it could intercept."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concat(map(str, (")
        for operand in node.nodes:
            self.visit(operand, frame)
            self.write(", ")
        self.write(")))")


class RowEnvironment(ImmutableSandboxedEnvironment):
    """Renders templates for rows. A row that takes too long, or produces too much, is an error.

    It looks up a name in the columns of a row first, so that a column can be named `items` or `keys`.

    Args:
        clock: Clock in seconds.
    """

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(
            undefined=_MissingColumn, autoescape=False, keep_trailing_newline=True, finalize=_finalize
        )
        self.concat = _join  # type: ignore[method-assign]
        self.clock = clock
        self.until = math.inf
        # The `tojson` of Jinja escapes <, > and & for HTML, which a model would read literally.
        self.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False, default=str)
        for name, check in FILTER_CHECKS.items():
            self.filters[name] = _checked(self.filters[name], check)
        self.filters["join"] = _of_list(self.filters["join"])
        for name in _LAZY:
            self.filters[name] = self._listed(self.filters[name])
        self.filters[_TIMED] = _timed
        del self.globals["lipsum"]

    def begin_row(self) -> None:
        """Starts the time of a row."""
        self.until = self.clock() + MAX_SECONDS

    def check_time(self) -> None:
        """Ends a row that takes too long.

        Raises:
            TemplateLimitError: Its time has passed.
        """
        if self.clock() > self.until:
            raise TemplateLimitError(f"not rendered within {MAX_SECONDS:g} s")

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Returns a column, or else an attribute."""
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Applies an operator if its result is not too large."""
        check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Calls a function, method or macro if its result is not too large."""
        __self.check_time()
        method = getattr(__obj, "__wrapped__", __obj)  # Jinja wraps `str.format`
        owner = getattr(method, "__self__", None)
        if isinstance(owner, _OWNERS) and method.__name__ in CHECKED_METHODS:
            if method.__name__ == "join" and args:
                args = ([*args[0]], *args[1:])
            check_method(owner, method.__name__, *args, *kwargs.values())
        return super().call(__context, __obj, *args, **kwargs)

    def _listed(self, filter_: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a filter that returns a list instead of a generator."""

        @wraps(filter_)
        def listed(*args: Any, **kwargs: Any) -> Any:
            found = filter_(*args, **kwargs)
            return self._list_of(found) if isinstance(found, Iterator) else found

        return listed

    def _list_of(self, items: Iterator[Any]) -> list[Any]:
        found, size = [], 0
        for item in items:
            self.check_time()
            size += len(item) if isinstance(item, str) else 1
            allow(size, "a list")
            found.append(item)
        return found

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _TIMED, [], [], None, None, lineno=loop.lineno)
        return template


def check_template(text: str) -> None:
    """Compiles a template.

    Raises:
        ValueError: It is not a template; the message is the second half of a sentence.
    """
    try:
        RowEnvironment().from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"is not a Jinja2 template (line {error.lineno}: {error.message})") from None
    except RecursionError:
        raise ValueError("is not a Jinja2 template (it is nested too deep)") from None


def _finalize(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, _CONTAINERS):
        allow(size_of(value))
    elif isinstance(value, bytes):
        raise TypeError(
            f"a value of {len(value):,} bytes that are no text; decode it in the template, e.g. with "
            "`row.text.decode('latin-1')`"
        )
    elif callable(value) and not isinstance(value, jinja2.Undefined):
        raise jinja2.UndefinedError(f"{value!r} is a method; no column of that name, or the call's () is missing")
    return "" if value is None else value


def _join(parts: Iterable[str]) -> str:
    rest = iter(parts)
    found = [*islice(rest, _PARTS)]
    size = sum(map(len, found))
    if len(found) == _PARTS:
        while some := [*islice(rest, _PARTS)]:
            size += sum(map(len, some)) + len(some)  # so that many empty parts are too much, too
            if size > MAX_SIZE:
                break
            found += some
    if size > MAX_SIZE:
        raise TemplateLimitError(f"a text of more than {MAX_SIZE:,} characters")
    return "".join(found)


@jinja2.pass_context  # else it would be called for a constant list when the template is compiled
def _timed(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    environment: Any = context.environment
    clock, until = environment.clock, environment.until
    for item in items:
        if clock() > until:
            environment.check_time()
        yield item


def _checked(filter_: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    @wraps(filter_)
    def checked(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return filter_(*args, **kwargs)

    return checked


def _of_list(join: Callable[..., Any]) -> Callable[..., Any]:
    """Passes a list to `join`, whose size is known, instead of a generator."""

    @wraps(join)
    def joined(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        return join(context, [*value], *args, **kwargs)

    return joined
