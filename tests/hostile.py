"""Strategies for what others send or write: valid values with parts that nobody expects."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

#: Values too large to be shown in a failure, which take the place of these texts where a value is `encoded`.
LARGE = {
    '"@deep@"': "[" * 50_000 + "]" * 50_000,
    '"@nested@"': '{"a":' * 400 + "[" * 400 + "]" * 400 + "}" * 400,
    '"@number@"': "9" * 5000,
    '"@long@"': f'"{"x" * 100_000}"',
}

letters = st.text(st.characters() | st.sampled_from("\ud83d\ude00\x00\x1b\n"), max_size=8)
odd = st.one_of(
    st.sampled_from([None, True, False, "", 0, -1, 1.5, 2**63, 10**12, 10**400, math.nan, math.inf, 1e300]),
    st.sampled_from([[], {}, [[]], [None], [5], {"a": 1}, "\ud83d", "47s", "nan"]),
    st.sampled_from(sorted(LARGE)).map(json.loads),
    letters,
    st.integers(),
    st.floats(),
    st.lists(letters, max_size=3),
    st.dictionaries(letters, letters, max_size=3),
)


def examples(share: float) -> settings:
    """Returns settings with a share of the profile's examples, for a property whose examples take longer."""
    return settings(max_examples=max(1, int(share * settings.default.max_examples)))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of each part of a value, the value itself first."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


@st.composite
def altered(draw: st.DrawFn, *valid: Any) -> Any:
    """One of some valid values, in which some parts, wherever they are, have become others or are missing."""
    body = copy.deepcopy(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(list(places(body))))
        if not path:
            return draw(odd)
        owner = body
        for key in path[:-1]:
            owner = owner[key]
        if draw(st.integers(0, 5)):
            owner[path[-1]] = copy.deepcopy(draw(odd))  # it may be altered in turn
        else:
            del owner[path[-1]]
    return body


def encoded(value: Any) -> bytes:
    """Returns a value as JSON, with large values in the place of the texts that stand for them."""
    text = json.dumps(value)
    for stand_in, large in LARGE.items():
        text = text.replace(stand_in, large)
    return text.encode()
