"""Counts of a running job at one moment, and the progress line that shows them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import add, attrgetter, sub

#: Namespace of the Beam counters of these counts; each counter has the name of its field.
NAMESPACE = "llmbeam"
#: Billionths of a US dollar in one.
NANO = 10**9


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts at one moment. Rows with equal prompts count as done with the first of them.

    Attributes:
        rows: Number of rows read so far, without those of `skipped`.
        resumed: Number of rows answered in an earlier try.
        duplicates: Number of rows that wait for, or received, the answer of another row.
        answered: Number of prompts answered in this run.
        failed: Number of rows and prompts that will not be answered.
        requests: Number of requests sent.
        rejections: Number of requests answered with 429.
        input_tokens: Number of tokens in the requests.
        output_tokens: Number of tokens in the answers.
        cost_nano_usd: Cost of these tokens, in billionths of a US dollar, as Beam counts whole numbers; 0 if no
            price is known, and at `ASSUMED_PRIORITY_RATIO` if only that of the priority tier is not.
        skipped: Number of rows without a value in `source.skip_empty`.
    """

    rows: int = 0
    resumed: int = 0
    duplicates: int = 0
    answered: int = 0
    failed: int = 0
    requests: int = 0
    rejections: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_nano_usd: int = 0
    skipped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(add, _values(self), _values(other)))

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*map(sub, _values(self), _values(other)))

    @property
    def done(self) -> int:
        """Number of rows with a final outcome."""
        return min(self.rows, self.resumed + self.duplicates + self.answered + self.failed)

    @property
    def is_under_way(self) -> bool:
        """Whether a row has got an answer or may get one: the rows of a job that is refused are only read."""
        return bool(self.requests or self.answered or self.resumed) or self.done == self.rows

    @property
    def cost_usd(self) -> float:
        """Cost of the tokens, in US dollars."""
        return self.cost_nano_usd / NANO

    @property
    def tokens(self) -> int:
        """Number of input and output tokens."""
        return self.input_tokens + self.output_tokens


_values = attrgetter(*(field.name for field in fields(Counts)))


def progress_line(now: Counts, rows_per_second: float) -> str:
    """Returns the progress of the job as one line, with its cost if a price is known."""
    share = f" ({now.done / now.rows:.0%})" if now.rows else ""
    cost = f" · {usd(now.cost_usd)}" if now.cost_nano_usd else ""
    rejected = f" ({now.rejections / now.requests:.1%})" if now.rejections and now.requests else ""
    left = now.rows - now.done
    skipped = f" · {now.skipped:,} more skipped" if now.skipped else ""
    # Answers of batch inference and of earlier tries arrive in one moment: no rate, no tokens, no 429.
    sent = (
        ""
        if now.resumed and not now.requests
        else f" · {rows_per_second:,.1f} rows/s · {now.tokens:,} tokens{cost} · {now.rejections:,} × 429{rejected}"
    )
    eta = f" · ETA {duration(left / rows_per_second)}" if left and rows_per_second else ""
    return f"rows {now.done:,}/{now.rows:,}{share}{sent} · {now.failed:,} failed{skipped}{eta}"


def usd(amount: float) -> str:
    """Formats an amount of US dollars; small ones with two significant digits."""
    return f"${amount:,.2f}" if amount >= 0.1 or not amount else f"${float(f'{amount:.2g}'):.10f}".rstrip("0")


def hours(seconds: float) -> str:
    """Formats a duration that is compared with others."""
    if seconds < 7200:
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def duration(seconds: float) -> str:
    """Formats a duration."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
