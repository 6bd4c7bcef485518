"""The ledger of a budget that many runs share: what each of their processes has taken of it. Pure.

A process takes what its next requests may cost before it sends them, in blocks of some seconds, and returns the
rest at its end. It writes its total and no difference, so that a write that is repeated changes nothing. What
a killed process took stays taken: the answers in flight and the rest of one block. So no reservation expires, and
no two clocks are compared.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, ValidationError

from airflow_provider_llmbeam.engine.state_version import refuse_newer
from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.spec.protocol.counts import NANO

#: Share of what is left that a block has at most where three or more processes spend. Of two it is a third, and of
#: one the half: another run may begin, and a process may be killed.
MOST_OF_REST = 0.25


class Ledger(BaseModel):
    """What was taken of a budget, in billionths of a US dollar.

    Attributes:
        version: Version of this format.
        usd: The budget in US dollars, as the run had it that wrote last.
        open: What each process, or the batch inference of a job, has taken and may still spend, by its name.
        ended_nano_usd: What those that have ended spent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Literal[1] = 1
    usd: PositiveFloat
    open: dict[str, NonNegativeInt] = Field(default_factory=dict)
    ended_nano_usd: NonNegativeInt = 0

    @classmethod
    def read(cls, content: bytes | None, usd: float, uri: str) -> Self:
        """Returns the ledger of a file, with the budget of this run; a new one if there is no file.

        Args:
            content: Content of the file; `None` if there is none.
            usd: Budget of this run, in US dollars.
            uri: Address of the file.

        Raises:
            JobFailedError: The file is no ledger, or one of a newer version.
        """
        if content is None:
            return cls(usd=usd)
        refuse_newer(uri, content)
        try:
            return cls.model_validate_json(content).model_copy(update={"usd": usd})
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            where = ".".join(map(str, fault["loc"]))
            raise JobFailedError(
                f"The ledger {uri!r} of `limits.budget` cannot be read: {where and f'`{where}`: '}{fault['msg']}; "
                f"got {str(fault['input'])[:80]!r}. What was spent is not known, so nothing more is sent. "
                "Restore the file, or give `over` another name, which begins a new budget."
            ) from None

    @property
    def taken_nano_usd(self) -> int:
        """What was spent or is reserved."""
        return self.ended_nano_usd + sum(self.open.values())

    @property
    def left_nano_usd(self) -> int:
        """What nobody has taken."""
        return max(0, round(self.usd * NANO) - self.taken_nano_usd)

    def take(self, name: str, least: int, wanted: int) -> Self:
        """Returns the ledger after a process has taken more, if what it needs at least is left.

        Args:
            name: Name of the process.
            least: What it needs to have taken in total for its next request.
            wanted: What it would like to have taken in total.
        """
        taken, left = self.open.get(name, 0), self.left_nano_usd
        if least - taken > left:
            return self
        most = left * max(MOST_OF_REST, 1 / (len({*self.open, name}) + 1))
        total = max(least, taken, min(wanted, taken + round(most)))
        return self.model_copy(update={"open": {**self.open, name: total}})

    def close(self, name: str, spent: int) -> Self:
        """Returns the ledger after the end of a process that has spent so much in total, maybe more than it took.

        One that is not open has ended before: the write was repeated.
        """
        if name not in self.open:
            return self
        still_open = {other: taken for other, taken in self.open.items() if other != name}
        return self.model_copy(update={"open": still_open, "ended_nano_usd": self.ended_nano_usd + spent})

    def content(self) -> bytes:
        """Returns the content of its file."""
        return self.model_dump_json().encode()
