"""What is checked at the end of a soak. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import linear_regression, median
from typing import TypeVar

from bench.soak.weather import BILLED_KINDS

ItemT = TypeVar("ItemT")

MIB = 2**20
#: Growth of memory in the second half, besides the index of the journal, in MiB per hour.
MAX_SLOPE_MIB = 8.0
#: Greatest memory over the median of the first quarter, both without the index of the journal.
MAX_PEAK_RATIO = 1.25
#: Number of samples from which on there is a trend.
FEWEST_SAMPLES = 4


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One sample.

    Attributes:
        at: Time since the start, in seconds.
        phase: Phase of the server.
        issued: Rows given to the engine.
        answered: Rows with an answer.
        failed: Failures by kind.
        requests: Requests of the engine.
        rejections: 429s that the engine received.
        billed: Answers that the server computed.
        memory: Resident memory of the engine's process, in bytes.
        journal_index: Memory of the journal's index, in bytes.
        segments: Number of segments of the journal.
        threads: Threads of the engine's process.
        files: Open file descriptors of the engine's process.
        tasks: Tasks on the engine's event loop.
        engine_cpu: Processor time of the engine's process, in seconds.
        server_cpu: Processor time of the server's process, in seconds.
        server_memory: Resident memory of the server's process, in bytes.
    """

    at: float
    phase: str
    issued: int
    answered: int
    failed: dict[str, int] = field(default_factory=dict)
    requests: int
    rejections: int
    billed: int
    memory: int
    journal_index: int
    segments: int
    threads: int
    files: int
    tasks: int
    engine_cpu: float
    server_cpu: float
    server_memory: int


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The books of both sides at the end.

    Attributes:
        issued: Rows given to the engine.
        answered: Rows with an answer.
        completions: Answers that the engine received from the server.
        billed: Answers that the server computed.
        faults: Faults by kind.
        restarts: Number of times that the server stopped; each may cut answers that are billed already.
        misdirected: Answers of another row.
        changed: Answers that differed when their row was given again.
    """

    issued: int
    answered: int
    completions: int
    billed: int
    faults: dict[str, int]
    restarts: int
    misdirected: int
    changed: int

    @property
    def damaged(self) -> int:
        """Answers that were computed and then damaged by a fault, so that their row is paid for again."""
        return sum(self.faults.get(kind, 0) for kind in BILLED_KINDS)

    @property
    def unexplained(self) -> int:
        """Answers that were paid for, did not arrive, and were not damaged by a fault."""
        return self.billed - self.completions - self.damaged


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check.

    Attributes:
        name: What is checked.
        value: What was found.
        bound: What was required.
        is_passed: Whether it was found.
    """

    name: str
    value: str
    bound: str
    is_passed: bool


def checks(samples: Sequence[Sample], totals: Totals) -> list[Check]:
    """Returns the verdict.

    Args:
        samples: The samples, in their order; with fewer than `FEWEST_SAMPLES` only the books are checked.
        totals: Books of both sides.
    """
    return [*_books(totals), *(_trends(samples) if len(samples) >= FEWEST_SAMPLES else ())]


def _books(totals: Totals) -> list[Check]:
    lost = totals.issued - totals.answered
    return [
        _at_most("rows lost", lost, 0) if lost >= 0 else _at_most("rows answered twice", -lost, 0),
        _at_most("answers given to another row", totals.misdirected, 0),
        _at_most("answers that changed when a batch was answered again", totals.changed, 0),
        Check(
            name="answers paid for twice that no damaged answer explains",
            value=f"{totals.unexplained:,} (beside {totals.damaged:,} damaged on the way)",
            bound=f"0 to {totals.restarts} (the server stopped {totals.restarts} times)",
            is_passed=0 <= totals.unexplained <= totals.restarts,
        ),
    ]


def memory_slope(samples: Sequence[Sample]) -> float:
    """Returns the growth of memory besides the journal's index in the second half, in MiB per hour."""
    half = samples[len(samples) // 2 :]
    hours = [sample.at / 3600 for sample in half]
    return linear_regression(hours, [_own_memory(sample) / MIB for sample in half]).slope


def _trends(samples: Sequence[Sample]) -> list[Check]:
    slope = memory_slope(samples)
    early = median(_own_memory(sample) for sample in _quarter(samples))
    ratio = max(map(_own_memory, samples)) / early
    index = samples[-1].journal_index / MIB
    note = f"without the journal's index, {index:.1f} MiB at the end"
    return [
        Check(
            name="growth of memory in the second half",
            value=f"{slope:+.1f} MiB per hour ({note})",
            bound=f"at most {MAX_SLOPE_MIB:g}",
            is_passed=slope <= MAX_SLOPE_MIB,
        ),
        Check(
            name="greatest memory over that of the first quarter",
            value=f"{ratio:.2f}",
            bound=f"at most {MAX_PEAK_RATIO:g}",
            is_passed=ratio <= MAX_PEAK_RATIO,
        ),
        *(_steady(name, [getattr(sample, name) for sample in samples]) for name in ("files", "threads", "tasks")),
    ]


def _steady(name: str, values: Sequence[int]) -> Check:
    """Compares the lowest value of the last quarter, as they vary with the load, with the highest of the first."""
    early, late = max(_quarter(values)), min(values[-max(1, len(values) // 4) :])
    return Check(
        name=f"{name}, least of the last quarter",
        value=f"{late}",
        bound=f"at most {early}, the most of the first quarter",
        is_passed=late <= early,
    )


def _quarter(values: Sequence[ItemT]) -> Sequence[ItemT]:
    return values[: max(1, len(values) // 4)]


def _own_memory(sample: Sample) -> int:
    return sample.memory - sample.journal_index


def _at_most(name: str, value: int, bound: int) -> Check:
    return Check(name=name, value=f"{value:,}", bound=f"at most {bound}", is_passed=value <= bound)
