"""What is recorded of a case, as JSON; times are in seconds since the epoch, by the clock of the server."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SourceRow:
    """A row of the source.

    Attributes:
        key: Its key.
        prompt: Hash of the prompt that it renders.
    """

    key: int
    prompt: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request that reached the model server.

    Attributes:
        prompt: Hash of its prompt.
        http_status: Status of the reply; `None` without one.
        is_paid: Whether an answer was computed, delivered or not.
        answer: That answer; "" where none is known.
        received_at: Time of its arrival.
    """

    prompt: str
    http_status: int | None
    is_paid: bool
    answer: str
    received_at: float


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A row of the output.

    Attributes:
        key: Its key.
        answer: Its answer.
    """

    key: int
    answer: str


@dataclass(frozen=True, kw_only=True)
class Kill:
    """A kill of the job, or of one of its workers.

    Attributes:
        since: Time before the kill.
        until: Time after it, when nothing of what was killed sends any more.
        in_flight: Largest number of requests that the killed part may have had in flight.
        published: Number of rows that the sink showed then.
    """

    since: float
    until: float
    in_flight: int
    published: int


@dataclass(frozen=True, kw_only=True)
class Rent:
    """Accelerators on the bill.

    Attributes:
        name: The resource that had it.
        gpus: Number of accelerators.
        since: Time of its first second.
        until: Time of its last one; `None` while it is billed.
    """

    name: str
    gpus: int
    since: float
    until: float | None


@dataclass(frozen=True, kw_only=True)
class History:
    """One case.

    Attributes:
        case: Its name.
        began_at: Begin of the run.
        ended_at: End of the run, with all that it tears down.
        failure: Why the job did not end well after its last kill; "" if it did.
        rows: The rows of its source.
        requests: What the model server received.
        published: The rows of its output.
        dead_letter: Keys of its failed rows.
        kills: The kills, in their order.
        rents: The accelerators that were billed.
        gpus: Number of accelerators that the run asks for.
        probes: Number of paid requests that may belong to no row: an endpoint is asked whether it serves.
    """

    case: str
    began_at: float
    ended_at: float
    failure: str = ""
    rows: tuple[SourceRow, ...]
    requests: tuple[Request, ...]
    published: tuple[PublishedRow, ...]
    dead_letter: tuple[int, ...]
    kills: tuple[Kill, ...] = ()
    rents: tuple[Rent, ...] = ()
    gpus: int = 0
    probes: int = 0

    def fields(self) -> dict[str, Any]:
        """Returns the history for JSON."""
        return asdict(self)

    @classmethod
    def read(cls, fields: dict[str, Any]) -> History:
        """Returns the history that `fields` has written."""
        parts = {
            "rows": SourceRow,
            "requests": Request,
            "published": PublishedRow,
            "kills": Kill,
            "rents": Rent,
        }
        made = {name: tuple(part(**each) for each in fields[name]) for name, part in parts.items()}
        return cls(**{**fields, **made, "dead_letter": tuple(fields["dead_letter"])})
