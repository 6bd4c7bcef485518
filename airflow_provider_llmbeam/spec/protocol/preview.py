"""The preview of a job: some rows with their prompts and answers."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from airflow_provider_llmbeam.redaction import visible
from airflow_provider_llmbeam.spec.protocol.counts import usd
from airflow_provider_llmbeam.spec.protocol.kept import QUERY_RAN

#: Maximum number of characters of a text that is shown.
MAX_CHARACTERS = 4000
_WIDTH = 100
_INDENT = " " * 9


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewedRow:
    """One row.

    Attributes:
        key: Its key, as JSON.
        prompt: Text of its prompt; `None` if it becomes none.
        system: System text of its prompt.
        media: Files of its prompt.
        estimated_tokens: Tokens of the prompt and its files, estimated.
        origin: `fresh` if its prompt was sent now, `known` if the answer was in the journal or in the cache,
            `not_sent` otherwise.
        answer: Text of the answer.
        failure: Why it has no answer.
        model: Version of the model that answered.
        input_tokens: Billed input tokens of the answer.
        output_tokens: Billed output tokens of the answer.
        cost_usd: Cost of these tokens, in US dollars; `None` if no price is known.
        latency_seconds: Duration of the request, in seconds.
        has_schema: Whether the answer was checked against a schema; one that does not match is a failure.
    """

    key: str
    prompt: str | None = None
    system: str | None = None
    media: tuple[str, ...] = ()
    estimated_tokens: int = 0
    origin: Literal["fresh", "known", "not_sent"] = "not_sent"
    answer: str | None = None
    failure: str | None = None
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    latency_seconds: float | None = None
    has_schema: bool = False

    def lines(self) -> Iterator[str]:
        """Yields the row as lines of text."""
        if self.system:
            yield from _field("System", self.system)
        if self.prompt is not None:
            yield from _field("Prompt", self.prompt)
        for uri in self.media:
            yield from _field("Media", uri)
        if self.answer is not None:
            yield from _field("Answer", self.answer)
        if self.failure is not None:
            yield from _field("Failed", self.failure)
        if self.prompt is not None:
            yield from _field("Tokens", self.figures)

    @property
    def figures(self) -> str:
        """Tokens, cost, latency and origin in one line."""
        if self.answer is None and not self.input_tokens:
            return f"about {self.estimated_tokens:,} in the prompt"
        parts = [f"{self.input_tokens:,} in, {self.output_tokens:,} out"]
        parts += [] if self.cost_usd is None else [usd(self.cost_usd)]
        parts += [] if self.latency_seconds is None else [f"{self.latency_seconds:.1f} s"]
        parts += ["matches the schema"] if self.has_schema and self.answer is not None else []
        parts += [self.model] if self.model else []
        parts += ["answered earlier, nothing was sent"] if self.origin == "known" else []
        return " · ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The preview of a job; a notebook shows it as a table.

    Attributes:
        job: Name of the job.
        rows: The rows.
        sent: Number of prompts that were sent for it.
        cost_usd: Cost of these, in US dollars; `None` if no price is known.
        ran_query: Whether a query was run to read the source, which BigQuery bills.
        keeper: What keeps the answers, for a sentence.
    """

    job: str
    rows: tuple[PreviewedRow, ...]
    sent: int
    cost_usd: float | None
    ran_query: bool = False
    keeper: str = "the job keeps the answers"

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """Restores a preview from `plain`."""
        rows = tuple(PreviewedRow(**{**row, "media": tuple(row["media"])}) for row in plain["rows"])
        return cls(**{**plain, "rows": rows})

    def plain(self) -> dict[str, Any]:
        """Returns the preview as plain data."""
        return asdict(self)

    @property
    def summary(self) -> str:
        """What the preview has sent, and what is billed for it."""
        query = QUERY_RAN if self.ran_query else ""
        if not self.sent:
            return f"No request was sent to a model.{query}" if query else "Nothing was sent or billed."
        cost = "at a price that is not known" if self.cost_usd is None else f"for {usd(self.cost_usd)}"
        prompts = "1 prompt was" if self.sent == 1 else f"{self.sent} prompts were"
        if any(row.origin == "fresh" and row.answer is not None for row in self.rows):
            end = self.keeper
        else:
            end = "it was not answered" if self.sent == 1 else "none was answered"
        return f"{prompts} sent {cost}; {end}.{query}"

    def __str__(self) -> str:
        lines = []
        for number, row in enumerate(self.rows, 1):
            title = f"── {number} of {len(self.rows)} · {visible(row.key)} "
            lines += [f"{title:─<{_WIDTH}}", *row.lines(), ""]
        return "\n".join([*lines, self.summary])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("key", "prompt", "answer", "tokens"))
        rows = "".join(
            f"<tr>{_cell(row.key)}{_cell(row.prompt)}{_cell(row.answer or row.failure)}{_cell(row.figures)}</tr>"
            for row in self.rows
        )
        return f"<table><tr>{head}</tr>{rows}</table><p>{html.escape(self.summary)}</p>"


def _cell(text: str | None) -> str:
    return f'<td><pre style="white-space: pre-wrap">{html.escape(visible(_shorten(text or "")))}</pre></td>'


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} … ({len(text):,} characters)"


def _field(name: str, text: str) -> Iterator[str]:
    """Yields the lines of one field, without control characters."""
    lines = [
        part
        for line in visible(_shorten(text)).splitlines() or [""]
        for part in textwrap.wrap(line, _WIDTH - len(_INDENT), break_on_hyphens=False) or [""]
    ]
    for number, line in enumerate(lines):
        yield f"{name if not number else '':<9}{line}".rstrip()
