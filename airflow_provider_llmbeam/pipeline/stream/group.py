"""What the members of a stream leave below `state_uri`: a file for each member and hour, and their sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain

from pydantic import TypeAdapter

from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.stream.windows import Window, merge

HOUR = 3600
#: Hours that are read.
_READ_HOURS = 6
#: Time after its end for which the files of an hour are read again, in seconds.
SETTLED_SECONDS = 300


@dataclass(slots=True, kw_only=True)
class MemberHour:
    """What a member leaves of an hour.

    Attributes:
        member: Its name.
        written_at: Unix time at which it was written.
        window_seconds: Length of a window, in seconds.
        models: Its windows, by type and name of the model, and by their begin.
        lags: Number of offsets that are not committed, of each partition that it owned then, e.g. `questions/0`.
        unsettled: Number of messages that were read and had no answer.
        held: Number of answers that waited for their transaction.
        is_paused: Whether it read nothing.
        commit_seconds: Time that a transaction took, in seconds.
        may_lead: Whether it owned the first partition.
    """

    member: str
    written_at: float = 0.0
    window_seconds: int
    models: dict[str, dict[int, Window]] = field(default_factory=dict)
    lags: dict[str, int] = field(default_factory=dict)
    unsettled: int = 0
    held: int = 0
    is_paused: bool = False
    commit_seconds: float = 0.0
    may_lead: bool = False


MEMBER_HOUR = TypeAdapter(MemberHour)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetrics:
    """What the members of a stream have left.

    Attributes:
        members: The last file of each member, by its name.
        windows: The windows of all members together, in order.
        models: Those of each model.
        counts: Number of members that were there in each window.
    """

    members: Mapping[str, MemberHour]
    windows: Mapping[int, Window]
    models: Mapping[str, Mapping[int, Window]]
    counts: Mapping[int, int]

    def leader(self, since: float) -> str | None:
        """Returns the one member, of those that may lead and have written since then, that does."""
        names = (each.member for each in self.members.values() if each.may_lead and each.written_at >= since)
        return min(names, default=None)


class GroupReader:
    """Reads what all members have left; an hour that is over is read once.

    Args:
        uri: Directory of the stream.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._settled: dict[int, list[MemberHour]] = {}

    def read(self, now: float) -> GroupMetrics:
        """Returns what is left of the last hours."""
        this = int(now) // HOUR
        hours = range(this - _READ_HOURS, this + 1)
        self._settled = {hour: files for hour, files in self._settled.items() if hour in hours}
        every: list[MemberHour] = []
        for hour in hours:
            files = self._settled.get(hour)
            if files is None:
                files = [*self._read_hour(hour)]
                if now > (hour + 1) * HOUR + SETTLED_SECONDS:
                    self._settled[hour] = files
            every += files
        names = dict.fromkeys(model for each in every for model in each.models)
        models = {name: merge(each.models.get(name, {}) for each in every) for name in names}
        counts = Counter(begin for each in every for begin in {*chain(*each.models.values())})
        return GroupMetrics(
            members={each.member: each for each in sorted(every, key=lambda each: each.written_at)},
            windows=merge(models.values()),
            models=models,
            counts=counts,
        )

    def _read_hour(self, hour: int) -> Iterator[MemberHour]:
        for file in storage.find(f"{self._uri}{folder_of(hour)}/*.json"):
            if (content := storage.read_if_exists(file.path)) is not None:
                yield MEMBER_HOUR.validate_json(content)


def folder_of(hour: int) -> str:
    """Returns the name of the folder of an hour, by its number since 1970."""
    return datetime.fromtimestamp(hour * HOUR, UTC).strftime("%Y-%m-%dT%H")
