"""Simple patterns in place of the service's detectors. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LIKELIHOODS = ("VERY_UNLIKELY", "UNLIKELY", "POSSIBLE", "LIKELY", "VERY_LIKELY")

_FIRST_NAMES = "Ann|Bob|Carla|Zoë|Jürgen|María|Ольга|李雷|さくら"
_STREETS = r"\d{1,4} [A-Z]\w+ (?:Street|Road|Avenue)|[A-ZÄÖÜ]\w*(?:straße|weg|platz) \d{1,4}"
#: Pattern, likelihood and, for some, what a name of a column has that makes a finding likely by itself.
_PATTERNS: dict[str, tuple[str, str, str]] = {
    "CREDIT_CARD_NUMBER": (r"\b(?:\d[ -]?){15}\d\b", "VERY_LIKELY", ""),
    "DATE_OF_BIRTH": (r"\b\d{4}-\d{2}-\d{2}\b", "UNLIKELY", "birth"),
    "EMAIL_ADDRESS": (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", "LIKELY", ""),
    "IBAN_CODE": (r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b", "VERY_LIKELY", ""),
    "IP_ADDRESS": (r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "LIKELY", ""),
    "MAC_ADDRESS": (r"\b[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}\b", "LIKELY", ""),
    "PASSPORT": (r"\b[A-Z]\d{8}\b", "POSSIBLE", "passport"),
    "PERSON_NAME": (rf"(?:{_FIRST_NAMES})(?:[ ·][A-ZÄÖÜА-Я]\w+)?", "POSSIBLE", "name"),
    "PHONE_NUMBER": (r"\+\d[\d ()-]{7,}\d", "POSSIBLE", "phone"),
    "STREET_ADDRESS": (_STREETS, "LIKELY", "address"),
    "US_SOCIAL_SECURITY_NUMBER": (r"\b\d{3}-\d{2}-\d{4}\b", "POSSIBLE", "ssn"),
}
_COMPILED = {name: re.compile(pattern) for name, (pattern, *_) in _PATTERNS.items()}
INFO_TYPES = frozenset(_PATTERNS)


@dataclass(frozen=True, slots=True)
class Found:
    """A finding; the range is in characters."""

    info_type: str
    likelihood: str
    start: int
    end: int


def find(text: str, column: str, info_types: list[str], min_likelihood: str) -> Iterator[Found]:
    """Yields what the patterns find in a text.

    Args:
        text: The text.
        column: Its column; a name that fits a type makes a finding very likely.
        info_types: Types that are searched.
        min_likelihood: Less likely findings are left out.
    """
    for name in info_types:
        _, likelihood, hint = _PATTERNS[name]
        if hint and hint in column.lower():
            likelihood = "VERY_LIKELY"
        if LIKELIHOODS.index(likelihood) >= LIKELIHOODS.index(min_likelihood):
            for match in _COMPILED[name].finditer(text):
                yield Found(name, likelihood, match.start(), match.end())
