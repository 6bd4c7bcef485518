"""When a worker reads, sends and commits. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from airflow_provider_llmbeam.spec.stream import StreamOptions

PartT = TypeVar("PartT")
#: Messages that wait for a slot, for each request that may be in flight: the next ones are at hand, and no more.
_WAITING_PER_SLOT = 1
#: Longest time for which a worker joins its group again and again without success, in seconds.
MAX_DOWN_SECONDS = 300.0
#: Time after it has joined at which a transaction shows that a member works, in seconds: two processes of one
#: name, which end each other within seconds, commit in between.
_STEADY_SECONDS = 30.0
#: Fraction of a bound below which a worker reads again, so that it does not stop and go with each message.
_RESUME_RATIO = 0.5


def room(unsettled: int, max_in_flight: int) -> int:
    """Returns how many more messages are read while so many have no answer."""
    return max(0, max_in_flight * (1 + _WAITING_PER_SLOT) - unsettled)


def parts_to_pause(
    held: Mapping[PartT, tuple[int, int]], paused: frozenset[PartT], *, has_room: bool, options: StreamOptions
) -> frozenset[PartT]:
    """Returns the partitions of which no message is read now.

    Each partition has an equal share of the bound of held answers: one that waits for a slow answer does not stop
    the others.

    Args:
        held: Number and bytes of the held answers of each partition.
        paused: Partitions that are paused.
        has_room: Whether another message would have a slot soon.
        options: The bounds.
    """
    if not has_room:
        return frozenset(held)

    def is_full(part: PartT) -> bool:
        ratio = (_RESUME_RATIO if part in paused else 1.0) / len(held)
        answers, size = held[part]
        return answers >= options.max_held_answers * ratio or size >= options.max_held_bytes * ratio

    return frozenset(part for part in held if is_full(part))


def seconds_to_commit(
    ready: int,
    first_at: float | None,
    committed_at: float,
    cost_seconds: float,
    options: StreamOptions,
    now: float,
) -> float:
    """Returns the time until the next transaction, in seconds; 0 if it is due, infinity without an answer.

    Args:
        ready: Number of answers that may be committed.
        first_at: Time at which the oldest of their messages was produced; `None` if it is not known.
        committed_at: Time of the last transaction.
        cost_seconds: What a transaction takes.
        options: The interval, and the bounds.
        now: The time.
    """
    if not ready:
        return float("inf")
    if ready >= options.max_answers:
        return 0.0
    at = committed_at + options.commit_interval_ms / 1000
    if options.latency_budget_ms is not None and first_at is not None:
        at = min(at, first_at + options.latency_budget_ms / 1000 - cost_seconds)
    return max(0.0, at - now)


def down_since(before: float | None, joined_at: float, committed_at: float, now: float) -> float:
    """Returns since when a worker does not work, at an error that ends its member.

    A member has worked if it has committed some time after it had joined, or was there for as long as a worker may
    be down: there may be no messages.

    Args:
        before: What this returned at the last error; `None` at the first one.
        joined_at: Time at which the member has joined; infinity if it has not.
        committed_at: Time of the last transaction that was committed.
        now: The time.
    """
    has_worked = committed_at - joined_at >= _STEADY_SECONDS or now - joined_at >= MAX_DOWN_SECONDS
    return now if before is None or has_worked else before


def seconds_to_send(produced_at: float | None, options: StreamOptions, now: float) -> float | None:
    """Returns the time in which a message must be sent, in seconds; `None` if its age does not matter."""
    if options.max_age_seconds is None or produced_at is None:
        return None
    return produced_at + options.max_age_seconds - now
