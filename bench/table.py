"""Formats the results as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bench.contenders.contender import Contender
from bench.jobs import Job
from bench.measure import Measurement
from bench.summary import OURS, Spread, Verdict, better_by, is_complete, is_ours, spread_of

NAME_WIDTH, WIDTH, RATIO_WIDTH = 30, 24, 24
#: Column headings by figure; other headings are the names of the figures.
HEADINGS = {
    "requests_per_prompt": "requests/prompt",
    "requests_per_row": "requests/row",
    "paid_again_ratio": "paid again/paid",
    "paid_twice_per_in_flight": "paid twice/in flight",
    "requests_next_run": "run after: requests",
    "rows_per_second": "rows/s, all",
    "rows_per_second_sending": "rows/s, sending",
    "latency_limit_ratio": "of latency limit",
    "rejected": "429s",
    "rejected_ratio": "429s/request",
    "client_cpu_seconds": "client CPU seconds",
    "makespan_ratio": "makespan/ideal",
    "wall_seconds": "seconds",
    "sending_seconds": "seconds sending",
}


def table(
    jobs: Sequence[Job],
    contenders: Sequence[Contender],
    measurements: Sequence[Measurement],
    verdicts: Sequence[Verdict],
    left_out: Mapping[str, str],
) -> str:
    """Formats the results.

    Args:
        jobs: Jobs that were run.
        contenders: Contenders, including those that did not run.
        measurements: Measurements of all runs.
        verdicts: Verdicts on our engine.
        left_out: Reasons why contenders did not run, by name of the contender.
    """
    lines = [
        "median (min–max) of the repeats; `ours is better by` compares the first column within each repeat",
        "",
    ]
    for job in jobs:
        lines += [
            f"{job.letter}  {job.title}",
            _row("", [_heading(column) for column in job.columns], "ours is better by"),
        ]
        lines += _rows(job, contenders, measurements, left_out)
        lines += [_verdict_line(verdict) for verdict in verdicts if verdict.job == job.letter]
        lines.append("")
    return "\n".join(lines)


def number(value: float) -> str:
    """Formats a number with three or four digits."""
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def spread_text(spread: Spread | None) -> str:
    """Formats a spread, as one number if its minimum and maximum are formatted alike."""
    if spread is None:
        return "–"
    middle, low, high = number(spread.middle), number(spread.low), number(spread.high)
    return middle if low == high else f"{middle} ({low}–{high})"


def _rows(
    job: Job, contenders: Sequence[Contender], measurements: Sequence[Measurement], left_out: Mapping[str, str]
) -> Iterator[str]:
    for contender in contenders:
        if job.letter not in contender.jobs or contender.name in left_out:
            if reason := left_out.get(contender.name) or contender.not_run.get(job.letter):
                yield f"  {contender.name:<{NAME_WIDTH}} not run: {reason}"
            continue
        for processes in contender.process_counts(job.processes):
            runs = _runs_of(measurements, contender.name, job, processes)
            if runs:
                yield _result_row(job, runs, _runs_of(measurements, OURS, job, processes))


def _result_row(job: Job, runs: Sequence[Measurement], ours: Sequence[Measurement]) -> str:
    name = runs[0].contender
    if len(job.processes) > 1:
        name += f" ×{runs[0].processes}"
    if runs[0].rows < job.rows:
        name += f" ({runs[0].rows} rows)"
    failures = sorted({run.failure for run in runs if run.failure})
    if len(failures) and all(run.failure for run in runs):
        return f"  {name:<{NAME_WIDTH}} failed: {failures[0]}"
    cells = [spread_text(spread_of(runs, column)) for column in job.columns]
    failed = f"  [{sum(bool(run.failure) for run in runs)} failed: {failures[0]}]" if failures else ""
    return _row(name, cells, _ratio(job, runs, ours)) + failed


def _ratio(job: Job, runs: Sequence[Measurement], ours: Sequence[Measurement]) -> str:
    if is_ours(runs[0].contender):
        return ""
    if not any(is_complete(run) for run in runs):
        return "– (rows lost)"
    ratio = better_by(job, ours, runs)
    return "–" if ratio is None else f"×{spread_text(ratio)}"


def _verdict_line(verdict: Verdict) -> str:
    state = "reached" if verdict.is_reached else "MISSED "
    name = verdict.contender if verdict.contender != OURS else ""
    return f"  {state} {f'{name} ×{verdict.processes}'.strip()}  {verdict.target}: {spread_text(verdict.spread)}"


def _runs_of(measurements: Sequence[Measurement], contender: str, job: Job, processes: int) -> list[Measurement]:
    return [m for m in measurements if m.contender == contender and m.case == (job.letter, processes)]


def _heading(figure: str) -> str:
    return HEADINGS.get(figure, figure.replace("_", " "))


def _row(name: str, cells: Sequence[str], ratio: str) -> str:
    return (f"  {name:<{NAME_WIDTH}} " + "".join(f"{cell:<{WIDTH}}" for cell in cells) + ratio).rstrip()
