"""Answers that a sink refuses: they are handed back one by one, and all others are stored."""

from __future__ import annotations

from collections.abc import Callable

#: Hands back an answer that a sink refuses: its position in the staged file, from 0, and why, in the words of the
#: sink. It raises once the job fails; the sink then undoes what it can, and passes the exception on.
Refuse = Callable[[int, str], None]


def store_each(first: int, end: int, store: Callable[[int, int], str | None], refuse: Refuse) -> None:
    """Stores a range of answers but those that the sink refuses, which halving finds.

    Args:
        first: Position of the first answer.
        end: Position after the last one.
        store: Stores all answers of a range or none; returns `None`, or why the sink refuses one of them.
        refuse: Hands back an answer.
    """
    if first == end or (reason := store(first, end)) is None:
        return
    if end - first == 1:
        refuse(first, reason)
        return
    middle = (first + end) // 2
    store_each(first, middle, store, refuse)
    store_each(middle, end, store, refuse)
