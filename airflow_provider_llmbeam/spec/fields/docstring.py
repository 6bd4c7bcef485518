"""Documents inherited fields: `help()` shows the docstring of a class, and not those of its bases."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable


def documented_fields(docstring: str | None) -> dict[str, list[str]]:
    """Returns the lines under `Attributes:` of the docstring of a class, by field."""
    section = _ATTRIBUTES.search(f"{inspect.cleandoc(docstring or '')}\n")
    found: dict[str, list[str]] = {}
    name = ""
    for line in section[1].splitlines() if section else ():
        if begins := re.match(r" {4}(\w+): (.*)", line):
            name = begins[1]
            found[name] = [begins[2]]
        elif name and line.strip():
            found[name].append(line.strip())
    return found


def with_inherited_fields(docstring: str | None, bases: Iterable[type], fields: Iterable[str]) -> str | None:
    """Adds the fields that `bases` document to the `Attributes:` of a docstring.

    Args:
        docstring: Docstring of the class; `None` where Python drops them (`-OO`).
        bases: Bases of the class, whose docstrings are complete.
        fields: Names of the fields of the class.
    """
    own = documented_fields(docstring)
    of_bases = {name: text for base in bases for name, text in documented_fields(base.__doc__).items()}
    added = {name: of_bases[name] for name in fields if name in of_bases and name not in own}
    if not docstring or not added:
        return docstring
    lines = "".join(
        f"    {name}: {first}\n" + "".join(f"        {line}\n" for line in more)
        for name, (first, *more) in added.items()
    )
    docstring = f"{inspect.cleandoc(docstring)}\n"
    if section := _ATTRIBUTES.search(docstring):
        rest = docstring[section.end() :]
        return f"{docstring[: section.end()].rstrip()}\n{lines}" + (f"\n{rest}" if rest else "")
    return f"{docstring}\nAttributes:\n{lines}"


# Python 3.13 takes the indentation away when it compiles a docstring, so it is taken away on every version.
_ATTRIBUTES = re.compile(r"^Attributes:\n((?:    .*\n|\n)*)", re.MULTILINE)
