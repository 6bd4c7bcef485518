"""Placeholders: their form, what a model made of them in an answer, and the values that contain them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

_FORM = re.compile(r"<([A-Z][A-Z0-9_]{0,39})_([0-9a-f]{4,32})>")
#: Numbers of digits of a tag. The shortest one that is unambiguous in its row is taken.
LENGTHS = (4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Returned:
    """What an answer has of the placeholders of its prompt.

    Attributes:
        returned: Placeholders of the prompt that it has as they are.
        altered: Number of times that it has one in another form: other case, a bracket missing, one character
            changed, added or left out, or divided.
        lost: Placeholders of the prompt that it has in neither way.
        invented: Number of times that it has a placeholder that the prompt did not have.
        first_altered: The first altered one, as it is in the answer.
        originals: Those of the prompt that were altered.
    """

    returned: int = 0
    altered: int = 0
    lost: int = 0
    invented: int = 0
    first_altered: str = ""
    originals: tuple[str, ...] = ()


def placeholders_in(text: str) -> Iterator[re.Match[str]]:
    """Yields what has the form of a placeholder in a text; the groups are kind and tag."""
    return _FORM.finditer(text) if "<" in text else iter(())


def tag_of(placeholder: str) -> tuple[str, str]:
    """Returns the kind and the tag of a placeholder."""
    kind, _, tag = placeholder[1:-1].rpartition("_")
    return kind, tag


def is_ambiguous(kind: str, tag: str, taken: Collection[str]) -> bool:
    """Returns whether a placeholder could be mistaken for one of others.

    Tags differ in at least two digits, so that a changed digit makes no other placeholder.
    """
    return bool(taken) and any(
        f"<{kind}_{tag[:place]}{digit}{tag[place + 1 :]}>" in taken
        for place in range(len(tag))
        for digit in "0123456789abcdef"
    )


def returned_in(text: str, sent: Collection[str]) -> Returned:
    """Compares an answer with the placeholders of its prompt.

    Args:
        text: The answer.
        sent: Placeholders of the prompt.
    """
    if not sent and "<" not in text:
        return Returned()
    own = defaultdict[str, _Tags](_Tags)
    for placeholder in sent:
        kind, tag = tag_of(placeholder)
        own[_plain(kind)].own[tag] = placeholder
    placeholders = set(sent)
    found: set[str] = set()
    near: set[str] = set()
    altered: list[str] = []
    invented = 0
    rest: list[str] = []
    end = 0
    for match in placeholders_in(text):
        rest.append(text[end : match.start()])
        end = match.end()
        if match[0] in placeholders:
            found.add(match[0])
        elif of := own[_plain(match[1])].nearest({match[2]}):
            near.add(of)
            altered.append(match[0])
        else:
            invented += 1
    rest.append(text[end:])
    if sent:
        mention = _mention(tuple(sorted({tag_of(each)[0] for each in sent})))
        for match in (match for part in rest for match in mention.finditer(part)):
            _, kind, tag, more, close = match.groups(default="")
            if of := own[_plain(kind)].nearest({tag.lower(), (tag + more).lower()}):
                near.add(of)
                altered.append(match[0].strip())
            elif close and len(tag) >= LENGTHS[0]:
                invented += 1
    return Returned(
        returned=len(found),
        altered=len(altered),
        lost=len(placeholders - found - near),
        invented=invented,
        first_altered=altered[0] if altered else "",
        originals=tuple(sorted(near)),
    )


@lru_cache(256)
def _mention(kinds: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(re.escape(kind).replace("_", r"[\s_-]?") for kind in sorted(kinds, key=len, reverse=True))
    return re.compile(
        rf"(<?)\s?(?<![A-Za-z0-9])({names})[\s_-]{{0,3}}([0-9a-z]{{1,33}})(?=(?:[\s_-]{{1,2}}([0-9a-z]{{1,33}}))?)(\s?>)?",
        re.IGNORECASE,
    )


class _Tags:
    """The placeholders of one kind in a prompt.

    Attributes:
        own: The placeholders by tag.
    """

    def __init__(self) -> None:
        self.own: dict[str, str] = {}

    def nearest(self, tags: set[str]) -> str | None:
        """Returns the placeholder that has one of these tags, or nearly: the first one of the prompt."""
        if same := tags & self.own.keys():
            return self.own[same.pop()]
        alike = (tag for tag in tags if len(tag) in self._lengths)
        found = (self._of_form[form] for tag in alike for form in _forms(tag) if form in self._of_form)
        return min(found, default=(0, None))[1]

    @cached_property
    def _lengths(self) -> set[int]:
        return {len(tag) + change for tag in self.own for change in (-1, 0, 1)}

    @cached_property
    def _of_form(self) -> dict[str, tuple[int, str]]:
        """Number and text of the first placeholder of each form: an answer may have thousands of others."""
        found: dict[str, tuple[int, str]] = {}
        for number, (tag, placeholder) in enumerate(self.own.items()):
            for form in _forms(tag):
                found.setdefault(form, (number, placeholder))
        return found


def _forms(tag: str) -> Iterator[str]:
    """Yields forms of a tag; two tags share one if at most one character was changed, added or left out."""
    for place in range(len(tag) + 1):
        yield f"{tag[:place]}?{tag[place:]}"
        yield f"{tag[:place]}?{tag[place + 1 :]}"


def _plain(kind: str) -> str:
    return re.sub(r"[\s_-]", "", kind).upper()


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


def map_values(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns a value with each value that is no list or object changed, and the names of its fields."""
    if isinstance(value, Mapping):
        return {change(name): map_values(inner, change) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [map_values(inner, change) for inner in value]
    return change(value)


def restore_values(value: Any, values: Mapping[str, Any]) -> Any:
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
        return values[one] if one in values else _FORM.sub(lambda match: texts.get(match[0], match[0]), one)

    return map_values(value, change)
