"""The ASCII form of a text: without other blanks, digits and letters of that look, or encoded characters.

Detectors search for forms such as `ann@example.com`; a person and a model read `ann%40example.com`,
`ann&#64;example.com`, or the same with an invisible character in it, as that. What is encoded twice is left.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator

from airflow_provider_llmbeam.pipeline.privacy.finding import Find, Finding

#: Characters that nobody sees. Source: Unicode's property Default_Ignorable_Code_Point.
_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_OTHER = re.compile(
    rf"(?P<invisible>[{_INVISIBLE}]+)"
    r"|(?P<blank>[^\S\x00-\x7f])"
    r"|(?P<hyphen>[\u2010-\u2013\u2212])"  # also what word processors put in its place
    r"|(?P<digit>(?![0-9])\d)"
    r"|(?P<wide>[\ufe50-\ufe6b\uff01-\uff5e])"
    r"|%(?P<percent>[2-7][0-9A-Fa-f])"
    r"|&(?:#[0-9]{2,7}|#[xX][0-9A-Fa-f]{2,6}|[A-Za-z]{2,31});"
)


def find_in_forms(find: Find, text: str) -> Iterator[Finding]:
    """Yields the values that a detector finds in a text, and those that it finds in its ASCII form."""
    yield from find(text)
    if text.isascii() and "%" not in text and "&" not in text:
        return
    parts, spans, end = list[str](), list[tuple[int, int]](), 0
    for match in _OTHER.finditer(text):
        form = _ascii_form(match)
        parts += text[end : match.start()], form
        spans += ((place, place + 1) for place in range(end, match.start()))
        spans += [match.span()] * len(form)
        end = match.end()
    if not parts:
        return
    parts.append(text[end:])
    spans += ((place, place + 1) for place in range(end, len(text)))
    for each in find("".join(parts)):
        yield Finding(spans[each.start][0], spans[each.end - 1][1], each.kind, each.score)


def _ascii_form(match: re.Match[str]) -> str:
    match match.lastgroup:
        case "invisible":
            return ""
        case "blank":
            return " "
        case "hyphen":
            return "-"
        case "digit":
            return str(unicodedata.decimal(match[0]))
        case "wide":
            return unicodedata.normalize("NFKC", match[0])
        case "percent":
            return chr(int(match["percent"], 16))
        case _:
            decoded = html.unescape(match[0])
            return decoded if decoded == match[0] else _OTHER.sub(_ascii_form, decoded)
