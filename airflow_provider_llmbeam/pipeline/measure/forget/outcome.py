"""What was removed for some rows, and what was not."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Removed(BaseModel):
    """What was removed in one place.

    Attributes:
        place: Kind of place, e.g. `journal`.
        count: Number of entries, rows or files.
        unit: `answers`, `rows`, `turns` or `files`.
        uri: The directory or file.
    """

    model_config = ConfigDict(frozen=True)

    place: str
    count: int
    unit: str
    uri: str


class Forgotten(BaseModel):
    """What a job has forgotten.

    Attributes:
        job: Name of the job.
        dry_run: Whether nothing was removed.
        fingerprints: Number of prompts that the rows had.
        removed: What was removed, one place per line.
        kept: What is left because other rows need it.
        unreached: What may still have the rows, and what to do there.
        not_found: The named keys that no row of the source, the dead letter or the answers in files has.
    """

    model_config = ConfigDict(frozen=True)

    job: str
    dry_run: bool
    fingerprints: int
    removed: tuple[Removed, ...]
    kept: tuple[str, ...]
    unreached: tuple[str, ...]
    not_found: tuple[str, ...] = ()

    def __str__(self) -> str:
        verb = "would be removed" if self.dry_run else "removed"
        lines = [f"Job {self.job!r}: the rows had {_counted(self.fingerprints, 'prompts')}."]
        widths = [max((len(text) for text in column), default=0) for column in zip(*self._cells(), strict=True)]
        for cells in self._cells():
            lines.append("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
        if self.not_found:
            names = ", ".join(map(repr, self.not_found))
            lines.append(f"Not found: no row of the source, the dead letter or the answers in files has {names}.")
        lines.append(f"{_counted(sum(each.count for each in self.removed), 'entries')} {verb}.")
        for title, entries in (("Kept", self.kept), ("Not reached", self.unreached)):
            lines += [f"{title}:", *(f"- {each}" for each in entries)] if entries else []
        return "\n".join(lines)

    def _cells(self) -> list[tuple[str, ...]]:
        return [(each.place, _counted(each.count, each.unit), each.uri) for each in self.removed]


def _counted(count: int, plural: str) -> str:
    singular = plural.removesuffix("ies") + "y" if plural.endswith("ies") else plural.removesuffix("s")
    return f"{count} {singular if count == 1 else plural}"
