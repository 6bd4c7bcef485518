"""What happens to the workers and to the broker during a trial, by a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

#: `kill`: kill -9 of a worker, which is started again. `leave`: SIGTERM, and a start after its session's end, so
#: that its partitions go to the other and back. `join`: a further worker for some time. `broker`: kill -9 of the
#: broker, and its start. `grow`, `shrink`: one worker more, or less, for good. `upgrade`: each worker ends, and
#: starts with another prompt, one after the other.
Deed = Literal["kill", "leave", "join", "broker", "grow", "shrink", "upgrade"]
#: Members of a group while it grows and shrinks again.
SIZES = (2, 3, 4, 5, 6, 5, 4, 3, 2)
#: Beyond the session of a member, after which its partitions are given away.
AWAY_SECONDS = 13.0


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a trial.

    Attributes:
        awaits_answers: Whether it waits until all partitions have answers again, or comes while workers start,
            as some kills do.
        pause: Further time before it, in seconds.
        deed: What is done.
        member: Number of the worker that it happens to.
        down: Time until a killed worker is started again, in seconds.
    """

    awaits_answers: bool
    pause: float
    deed: Deed
    member: int
    down: float


def steps(seed: int, kills: int, *, leaves: int = 0, joins: int = 0, brokers: int = 0) -> Iterator[Step]:
    """Yields the steps of a trial, at random moments."""
    chance = random.Random(seed)
    counts: dict[Deed, int] = {"kill": kills, "leave": leaves, "join": joins, "broker": brokers}
    deeds = [deed for deed, count in counts.items() for _ in range(count)]
    chance.shuffle(deeds)
    for deed in deeds:
        down = chance.choice((0.0, chance.uniform(0, 2)))
        yield Step(deed != "kill" or chance.random() < 0.8, chance.uniform(0, 4), deed, chance.randrange(2), down)


def group_steps(seed: int, kills: int) -> Iterator[Step]:
    """Yields the steps of a group that grows and shrinks while one of its members is killed again and again."""
    chance, size = random.Random(seed), SIZES[0]
    for number in range(kills):
        now = SIZES[number * len(SIZES) // kills]
        if now != size:
            yield Step(False, 0.0, "grow" if now > size else "shrink", max(now, size) - 1, 0.0)
            size = now
        if number == kills // 2:
            yield Step(False, 0.0, "upgrade", 0, 0.0)
        yield Step(False, chance.uniform(2, 6), "kill", chance.randrange(size), 0.0)
