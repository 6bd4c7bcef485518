"""Which messages of Kafka a run takes: the position of a job, and the ranges of its runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from airflow_provider_llmbeam.spec.source import KafkaSource

#: Offsets by topic and partition.
Offsets = dict[str, dict[int, int]]
#: Topic and number of a partition.
Partition = tuple[str, int]

#: Number of runs whose ranges are kept, the last ones that began.
MAX_RUNS = 1000


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Edges(_Part):
    """The ends of the partitions of some topics.

    Attributes:
        low: Offset of the oldest message that Kafka has.
        high: Offset after the newest one that can be read.
    """

    low: Offsets
    high: Offsets


class Range(_Part):
    """The messages of a run.

    Attributes:
        window: Time range that was asked for, as Unix times in milliseconds; `None` for what has come since the
            last run.
        begin: First offset of each partition.
        end: Offset after the last one.
        left: Number of offsets after the range when it was taken; `None` for a time range.
        is_published: Whether the answers of the run are published.
    """

    window: tuple[int, int] | None = None
    begin: Offsets
    end: Offsets
    left: int | None = None
    is_published: bool = False

    @property
    def offsets(self) -> int:
        """Number of offsets, which is at least the number of messages."""
        return sum(end - self.begin[topic][part] for topic, ends in self.end.items() for part, end in ends.items())


class Position(_Part):
    """What a job has read of its topics, in all runs.

    Attributes:
        cluster: Id of the Kafka cluster to which the offsets belong; `None` if it has none.
        offsets: Offset of the next message to be published, by topic and partition.
        runs: Ranges of runs, the oldest first.
    """

    version: int = 1
    cluster: str | None = None
    offsets: Offsets = {}
    runs: dict[str, Range] = {}

    def is_next(self, taken: Range) -> bool:
        """Whether the range begins where the position is, or does not move it."""
        if taken.window is not None or taken.is_published:
            return True
        return all(
            self.offsets.get(topic, {}).get(part) == offset
            for topic, begins in taken.begin.items()
            for part, offset in begins.items()
        )

    def known(self, run: str, source: KafkaSource) -> Range | None:
        """Returns the range that a run has taken before and takes again; `None` if it takes a new one.

        That of a run without publication is no longer taken when another run has published its messages.
        """
        taken = self.runs.get(run)
        if taken is None or taken.window != source.window or taken.begin.keys() != set(source.topic):
            return None
        return taken if self.is_next(taken) else None

    def new_range(self, source: KafkaSource, edges: Edges) -> Range:
        """Returns the range from the position to the end of the topics, or of `max_messages` offsets.

        Offsets without a message, of transactions and compaction, count; those that Kafka has deleted do not.
        """
        begin: Offsets = {}
        for topic, lows in edges.low.items():
            before = self.offsets.get(topic)
            starts_late = before is None and source.first_run == "latest"
            first = edges.high[topic] if starts_late else lows  # a partition that was added has only new messages
            begin[topic] = {part: (before or {}).get(part, first[part]) for part in lows}
        if source.max_messages is None:
            return Range(begin=begin, end=edges.high, left=0)
        return _bounded(begin, edges, source.max_messages)

    def begun(self, run: str, taken: Range, cluster: str | None) -> Position:
        """Returns the position when a run has taken a range; of topics that have none, it is where they begin."""
        runs = {name: each for name, each in self.runs.items() if name != run} | {run: taken}
        kept = dict([*runs.items()][-MAX_RUNS:])
        offsets = self.offsets if taken.window is not None else _merged(taken.begin, self.offsets)
        return Position(cluster=cluster or self.cluster, offsets=offsets, runs=kept)

    def published(self, run: str, *, keeps: bool) -> Position:
        """Returns the position when the answers of a run are published; the same if it has been moved by that.

        Args:
            run: Name of the run.
            keeps: Whether the run may be repeated under this name, and reads the same messages then.
        """
        if run not in self.runs:  # the change was made, and its confirmation lost: see `storage.change`
            return self
        taken, others = self.runs[run], {name: each for name, each in self.runs.items() if name != run}
        moves = taken.window is None and not taken.is_published
        offsets = _merged(self.offsets, taken.end) if moves else self.offsets
        runs = {**self.runs, run: taken.model_copy(update={"is_published": True})} if keeps else others
        return self.model_copy(update={"offsets": offsets, "runs": runs})


def fair_shares(there: Mapping[Partition, int], maximum: int) -> dict[Partition, int]:
    """Divides a maximum equally among partitions; what one does not have is left to those that have more.

    Spark's `maxOffsetsPerTrigger` divides in proportion to what is there, so that a partition with few messages
    waits for one with many.

    Args:
        there: Number of offsets by partition.
        maximum: Number of offsets of all shares together.
    """
    shares: dict[Partition, int] = {}
    ascending = sorted(there, key=lambda place: (there[place], place))
    for number, place in enumerate(ascending):
        shares[place] = min(there[place], (maximum - sum(shares.values())) // (len(ascending) - number))
    return shares


def _bounded(begin: Offsets, edges: Edges, maximum: int) -> Range:
    first = {(topic, part): max(offset, low) for topic, part, offset, low in _pairs(begin, edges.low)}
    there = {
        (topic, part): max(0, high - first[topic, part]) for topic, part, _, high in _pairs(begin, edges.high)
    }
    end: Offsets = {topic: {} for topic in begin}
    for (topic, part), share in fair_shares(there, maximum).items():
        end[topic][part] = first[topic, part] + share
        there[topic, part] -= share
    return Range(begin=begin, end=end, left=sum(there.values()))


def moved_back(taken: Range, edges: Edges) -> str | None:
    """Returns a partition that ends before the range begins, for a message: its topic was created again."""
    for topic, part, offset, high in _pairs(taken.begin, edges.high):
        if offset > high:
            return f"partition {part} of {topic!r} ends at offset {high:,}, and the next one to read is {offset:,}"
    return None


def deleted(taken: Range, edges: Edges) -> int:
    """Returns the number of offsets of a range that Kafka no longer has."""
    gone = 0
    for topic, part, begin, low in _pairs(taken.begin, edges.low):
        gone += max(0, min(low, taken.end[topic][part]) - begin)
    return gone


def readable(taken: Range, edges: Edges) -> list[tuple[str, int, int, int]]:
    """Returns topic, partition, first offset and end of each part of a range that has messages."""
    found = []
    for topic, part, begin, low in _pairs(taken.begin, edges.low):
        first, end = max(begin, low), taken.end[topic][part]
        if first < end:
            found.append((topic, part, first, end))
    return found


def _pairs(one: Offsets, other: Offsets) -> list[tuple[str, int, int, int]]:
    """Returns the offsets of each partition in both; one that the topic no longer has is at 0."""
    return [
        (topic, part, offset, other.get(topic, {}).get(part, 0))
        for topic, offsets in one.items()
        for part, offset in offsets.items()
    ]


def _merged(old: Offsets, new: Offsets) -> Offsets:
    topics = {**old, **new}
    return {topic: {**old.get(topic, {}), **new.get(topic, {})} for topic in topics}
