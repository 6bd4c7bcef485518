"""Which batches of Pub/Sub's messages a run has. Pure.

A batch is a file with the messages of one answer of Pub/Sub, written before they are acknowledged. It belongs to
the job until the answers of a run are published: a run that is given up leaves its batches to the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pydantic import BaseModel, ConfigDict

#: Number of runs that are known as published, the last ones.
MAX_RUNS = 1000
#: Longest time for which Pub/Sub keeps a message, in seconds.
RETENTION_SECONDS = 31 * 24 * 3600.0


class Deliveries(BaseModel):
    """The batches of a job.

    Attributes:
        taken: Names of the batches of runs that are not published, by run.
        published: Runs that are published, the oldest first.
        done: Batches whose answers are published, and whose files may still be there.
        unacknowledged: Ids of published messages that Pub/Sub may deliver again, as their acknowledgement is not
            known to have arrived, with the Unix time of the publication.
    """

    model_config = ConfigDict(frozen=True)

    version: int = 1
    taken: dict[str, tuple[str, ...]] = {}
    published: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    unacknowledged: dict[str, float] = {}

    def pending(self, files: Iterable[str]) -> list[str]:
        """Returns the batches among the files whose answers are not published, the oldest first."""
        return sorted(set(files) - set(self.done))

    def again(self, run: str, files: Collection[str]) -> tuple[str, ...] | None:
        """Returns the batches that a run has taken and takes again; `None` if it takes new ones.

        A run that is published takes none: its messages are no longer there.
        """
        if run in self.published:
            return ()
        taken = self.taken.get(run)
        return taken if taken is not None and set(taken) <= set(self.pending(files)) else None

    def begun(self, run: str, batches: Iterable[str], files: Collection[str]) -> Deliveries:
        """Returns the state when a run has taken batches; what is done and has no file any more is forgotten."""
        done = tuple(name for name in self.done if name in files)
        return self.model_copy(update={"taken": {**self.taken, run: tuple(batches)}, "done": done})

    def after_publication(self, run: str, unacknowledged: Iterable[str], now: float, *, keeps: bool) -> Deliveries:
        """Returns the state when the answers of a run are published.

        Args:
            run: Name of the run.
            unacknowledged: Ids of its messages that may be delivered again.
            now: Unix time.
            keeps: Whether the run may be repeated under this name.
        """
        if run not in self.taken:
            return self
        ids = {name: at for name, at in self.unacknowledged.items() if now - at < RETENTION_SECONDS}
        runs = (*self.published, run)[-MAX_RUNS:] if keeps else self.published
        return Deliveries(
            taken={name: batches for name, batches in self.taken.items() if name != run},
            published=runs,
            done=(*self.done, *self.taken[run]),
            unacknowledged=ids | dict.fromkeys(unacknowledged, now),
        )


def first_batches(messages: Mapping[str, int], maximum: int) -> tuple[str, ...]:
    """Returns the oldest batches with at most so many messages together; at least one, if there is any.

    Args:
        messages: Number of messages by batch, the oldest first.
        maximum: Number of messages of a run.
    """
    chosen: list[str] = []
    for name, count in messages.items():
        maximum -= count
        if maximum < 0 and chosen:
            break
        chosen.append(name)
    return tuple(chosen)
