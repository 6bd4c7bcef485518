"""What another spec of a job changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from airflow_provider_llmbeam.characters import visible
from airflow_provider_llmbeam.counts import usd

Effect = Literal["answers", "prompts", "journal", "none"]

_EFFECTS: dict[Effect, str] = {
    "answers": "changes all answers",
    "prompts": "changes the prompts",
    "journal": "has other answers in its journal",
    "none": "changes no answer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedField:
    """A field of the spec with two values.

    Attributes:
        field: Path of the field.
        old: Its value before; empty for none.
        new: Its value now.
        effect: `answers` if all answers are asked for anew; `prompts` if those are whose prompt is another one;
            `journal` if answers are looked for elsewhere; `none` if all answers stay.
    """

    field: str
    old: str
    new: str
    effect: Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two specs of a job.

    Attributes:
        changes: The fields that differ.
        rows: Number of rows of the source, estimated for a large one.
        answered: Number of these that have an answer in the journal or the cache of the new spec.
        requests: Number of requests that the new spec would send.
        cost_usd: Their cost, in US dollars; `None` if no price is known.
        cost_is_upper_bound: Whether no answer of the new spec is known, so that the cost assumes the longest ones.
    """

    changes: tuple[ChangedField, ...]
    rows: int
    answered: int
    requests: int
    cost_usd: float | None
    cost_is_upper_bound: bool

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """Restores a difference from `plain`."""
        return cls(**{**plain, "changes": tuple(ChangedField(**each) for each in plain["changes"])})

    def plain(self) -> dict[str, Any]:
        """Returns the difference as plain data."""
        return asdict(self)

    @property
    def summary(self) -> str:
        """What the new spec would send, in one sentence."""
        bound = "at most" if self.cost_is_upper_bound else "about"
        cost = "" if self.cost_usd is None else f", {bound} {usd(self.cost_usd)}"
        return (
            f"{self.answered:,} of {self.rows:,} rows are answered already; {self.requests:,} requests would be "
            f"sent{cost if self.requests else ''}. Nothing was sent now."
        )

    def __str__(self) -> str:
        return "\n".join([*self._lines(), self.summary])

    def _lines(self) -> Iterator[str]:
        if not self.changes:
            yield "The specs are equal."
        for change in self.changes:
            yield f"{visible(change.field)} ({_EFFECTS[change.effect]})"
            for sign, value in (("-", change.old), ("+", change.new)):
                for line in visible(value).splitlines() or ["(none)"]:
                    yield f"  {sign} {line}"
