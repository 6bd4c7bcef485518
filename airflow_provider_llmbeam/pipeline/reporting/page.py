"""The report of a run as a page, with plots of numbers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_provider_llmbeam.pipeline.cascade.distilled.curve import LearningPoint
from airflow_provider_llmbeam.pipeline.elements import Origin
from airflow_provider_llmbeam.pipeline.reporting.html import render, seconds, title_of
from airflow_provider_llmbeam.pipeline.reporting.report import CascadeCounts, Report, Series
from airflow_provider_llmbeam.spec.protocol.counts import duration

#: Number of bars of the lengths of answers.
LENGTH_BARS = 24
#: Size of a plot.
WIDTH = 720
HEIGHT = 110
#: Space above the highest value, for its label.
HEADROOM = 16

Values = Sequence[float | int | None]

#: Where an answer comes from, in words; see `elements.Origin`.
ORIGIN_WORDS: dict[Origin, str] = {
    "fresh": "asked in this run",
    "repaired": "asked again in this run, as the first answer did not match the schema",
    "batch": "batch inference of this run",
    "resumed": "answered by an earlier try or run of this job",
    "cached": "answered by another job with the same cache",
    "duplicate": "same prompt as another row",
    "replaced": "unsafe prompt that was not sent",
}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One curve of a plot.

    Attributes:
        name: What it shows.
        style: Name of its colour in the style sheet.
        path: Data of an SVG path, in a box of `WIDTH` × `HEIGHT`.
        is_filled: Whether the area below it is filled.
    """

    name: str
    style: str
    path: str
    is_filled: bool


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A plot over the time of the run, from zero to `top`.

    Attributes:
        title: What it shows, with its unit.
        curves: Its curves, the lowest layer first.
        top: Value at `HEADROOM` below the upper edge.
    """

    title: str
    curves: tuple[Curve, ...]
    top: float


def render_page(report: Report) -> str:
    """Returns the page of a report."""
    return render(
        "report",
        title=title_of(report.name, report.spec.get("airflow_run")),
        kind="report",
        report=report,
        origins=ORIGIN_WORDS,
        plots=_plots(report.series),
        times=_times(report.series),
        hints=_hints(report.series),
        length_bars=_length_bars(report),
        cascade_plot=None if report.cascade is None else cascade_plot(report.cascade),
        learning_plot=learning_plot,
        width=WIDTH,
        height=HEIGHT,
        headroom=HEADROOM,
    )


@dataclass(frozen=True, kw_only=True)
class CascadePlot:
    """Agreement against the escalated share.

    Attributes:
        bottom: Agreement at the lower edge.
        agreement: Data of the SVG path of the agreement.
        low: That of the lower end of its interval.
        target: That of the target.
        chosen: That of a mark at the chosen thresholds; empty without any.
    """

    bottom: float
    agreement: str
    low: str
    target: str
    chosen: str


def cascade_plot(counts: CascadeCounts) -> CascadePlot | None:
    """Returns the plot of a cascade; `None` for one that was not calibrated."""
    curve = sorted(counts.curve, key=lambda point: point.escalated_ratio)
    if not curve:
        return None
    least = min(counts.target_agreement, *(point.low for point in curve))
    bottom = math.floor(least * 20) / 20

    def at(share: float, agreement: float) -> str:
        height = (HEIGHT - HEADROOM) * (1 - (agreement - bottom) / (1 - bottom))
        return f"{_number(share * WIDTH)} {_number(HEADROOM + height)}"

    certified = [point for point in curve if point.is_certified]
    chosen = next((each for each in certified if each.agreement == counts.agreement), None)
    return CascadePlot(
        bottom=bottom,
        agreement="M" + "L".join(at(point.escalated_ratio, point.agreement) for point in curve),
        low="M" + "L".join(at(point.escalated_ratio, point.low) for point in curve),
        target=f"M{at(0, counts.target_agreement)}H{WIDTH}",
        chosen="" if chosen is None else f"M{_number(chosen.escalated_ratio * WIDTH)} {HEADROOM}V{HEIGHT}",
    )


def learning_plot(curve: Sequence[LearningPoint]) -> Plot | None:
    """Returns the plot of a learning curve, whose points double the labels; `None` for one of a single point."""
    if len(curve) < 2:
        return None
    return plot(
        "Draws that the classifier has not seen, in percent, by number of labels",
        ("agree", "good", "line", [100 * point.agreement for point in curve]),
        ("could be kept", "warn", "line", [100 * point.kept for point in curve]),
    )


def plot(title: str, *series: tuple[str, str, str, Values]) -> Plot | None:
    """Returns a plot; `None` if all its values are zero or missing.

    Args:
        title: Its title.
        series: Name, style, kind (`area` or `line`) and values of each curve.
    """
    highest = max((value or 0 for *_, values in series for value in values), default=0)
    if not highest > 0:
        return None
    top = nice_top(highest)
    return Plot(
        title=title,
        top=top,
        curves=tuple(
            Curve(
                name=name,
                style=style,
                path=line_path(values, top) if kind == "line" else step_path(values, top),
                is_filled=kind == "area",
            )
            for name, style, kind, values in series
            if any(values)
        ),
    )


def nice_top(highest: float) -> float:
    """Returns the least of 1, 1.5, 2, 3, 4, 5, 6 and 8, times a power of ten, that is not below a value."""
    scale = 10.0 ** math.floor(math.log10(highest))
    return next((step * scale for step in (1, 1.5, 2, 3, 4, 5, 6, 8) if step * scale >= highest), 10 * scale)


def step_path(values: Values, top: float) -> str:
    """Returns a closed area whose upper edge is a step per value."""
    width = WIDTH / max(1, len(values))
    parts = [f"M0 {HEIGHT}"]
    for index, value in enumerate(values):
        parts.append(f"V{_y(value or 0, top)}H{_number((index + 1) * width)}")
    return f"{''.join(parts)}V{HEIGHT}Z"


def line_path(values: Values, top: float) -> str:
    """Returns a line through the middles of the intervals that have a value; a lone value is a short dash."""
    width = WIDTH / max(1, len(values))
    parts, is_down = [], False
    for index, value in enumerate(values):
        if value is None:
            is_down = False
            continue
        x = _number((index + 0.5) * width)
        parts.append(f"{'L' if is_down else 'M'}{x} {_y(value, top)}{'' if is_down else 'h.1'}")
        is_down = True
    return "".join(parts)


def _plots(series: Series | None) -> list[Plot]:
    if series is None:
        return []
    per_second = [answers / series.interval_seconds for answers in series.answers]
    tokens = [
        [number / series.interval_seconds for number in numbers]
        for numbers in (series.input_tokens, series.output_tokens)
    ]
    spent = [0.0]
    for cost in series.cost_usd:
        spent.append(spent[-1] + cost)
    interval = duration(series.interval_seconds)
    found = (
        plot("Answers per second", ("answers", "good", "area", per_second)),
        plot(
            f"Over quota (429) and failed prompts per {interval}",
            ("over quota", "warn", "area", series.rejections),
            ("failed", "bad", "area", series.failed),
        ),
        plot(
            "Requests in flight, and waiting for the quota",
            ("in flight", "good", "area", series.in_flight),
            ("waiting for the quota", "warn", "line", [held or None for held in series.held]),
        ),
        plot(
            "Time to an answer in seconds",
            ("95 %", "warn", "line", series.latency_p95),
            ("median", "good", "line", series.latency_p50),
        ),
        plot("Tokens per second", ("input", "good", "line", tokens[0]), ("output", "warn", "line", tokens[1])),
        plot(
            "GPUs busy, in percent",
            ("busy", "good", "area", [None if each is None else 100 * each for each in series.gpu_busy]),
        ),
        plot("Cost so far in US dollars", ("cost", "good", "area", spent[1:])),
    )
    return [each for each in found if each is not None]


def _times(series: Series | None) -> list[str]:
    """Returns the times at the left edge, in the middle and at the right edge of the plots."""
    if series is None:
        return []
    total = series.interval_seconds * len(series.answers)
    form = "%H:%M:%S" if total < 600 else "%H:%M" if total < 86_400 else "%m-%d %H:%M"
    return [datetime.fromtimestamp(series.started_at + total * share, UTC).strftime(form) for share in (0, 0.5, 1)]


def _hints(series: Series | None) -> list[tuple[float, float, str]]:
    """Returns left edge, width and text of what a pointer shows over each interval."""
    if series is None:
        return []
    width = WIDTH / len(series.answers)
    return [
        (round(index * width, 2), round(width, 2), _hint(series, index)) for index in range(len(series.answers))
    ]


def _hint(series: Series, index: int) -> str:
    at = datetime.fromtimestamp(series.started_at + index * series.interval_seconds, UTC)
    latency = series.latency_p95[index]
    parts = [
        f"{at:%H:%M:%S}",
        f"{series.answers[index]:,} answers",
        f"{series.rejections[index]:,} over quota",
        f"{series.failed[index]:,} failed",
        f"{series.in_flight[index]:,.1f} in flight",
        *(() if latency is None else (f"95 % within {seconds(latency)}",)),
    ]
    return " · ".join(parts)


def _length_bars(report: Report) -> list[dict[str, Any]]:
    """Returns bars of the lengths of the answers, of equal ranges of classes."""
    lengths = report.answers.lengths
    if len(lengths) < 2:
        return []
    size = -(-len(lengths) // LENGTH_BARS)
    groups = [lengths[index : index + size] for index in range(0, len(lengths), size)]
    sums = [sum(each.answers for each in group) for group in groups]
    return [
        {"from": group[0].characters, "answers": answers, "share": answers / max(sums)}
        for group, answers in zip(groups, sums, strict=True)
    ]


def _y(value: float, top: float) -> str:
    return _number(HEADROOM + (HEIGHT - HEADROOM) * (1 - min(1.0, value / top)))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
