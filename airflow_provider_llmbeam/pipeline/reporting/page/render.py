"""Renders the report as a page: no script, nothing that is fetched, and all texts escaped."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any

import jinja2

from airflow_provider_llmbeam.pipeline.reporting.page.plots import HEADROOM, HEIGHT, WIDTH, Plot, plot
from airflow_provider_llmbeam.pipeline.reporting.parts import Series
from airflow_provider_llmbeam.pipeline.reporting.report import Report
from airflow_provider_llmbeam.spec.characters import visible
from airflow_provider_llmbeam.spec.protocol.counts import duration, usd

#: Number of bars of the lengths of answers.
LENGTH_BARS = 24


def page(report: Report) -> str:
    """Returns the page of a report."""
    return _template().render(
        report=report,
        plots=_plots(report.series),
        times=_times(report.series),
        hints=_hints(report.series),
        length_bars=_length_bars(report),
        width=WIDTH,
        height=HEIGHT,
        headroom=HEADROOM,
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("airflow_provider_llmbeam.pipeline.reporting.page", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters |= {
        "usd": lambda value: "–" if value is None else usd(value),
        "duration": duration,
        "seconds": _seconds,
        "moment": _moment,
        "count": lambda value: "–" if value is None else f"{value:,.0f}",
        "short": _short,
        "percent": _percent,
        "figure": _figure,
        "words": lambda text: text.replace("_", " "),
    }
    return environment.get_template("report.html.jinja")


def _moment(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value * 1000:,.0f} ms" if value < 1 else f"{value:,.1f} s"


def _percent(part: float | None, whole: float = 1.0) -> str:
    if part is None or not whole:
        return "–"
    share = part / whole
    return (
        f"{share:.0%}" if share in (0, 1) else f"{share:.2%}" if share < 0.01 or share > 0.99 else f"{share:.1%}"
    )


def _short(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.3g}"


def _figure(value: float | None, name: str) -> str:
    if value is None:
        return "–"
    if name.endswith("_ratio"):
        return _percent(value)
    if name.endswith("_usd"):
        return usd(value)
    return duration(value) if name.endswith("_seconds") else f"{value:,.0f}"


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
            f"429s and failed prompts per {interval}",
            ("429s", "warn", "area", series.rejections),
            ("failed", "bad", "area", series.failed),
        ),
        plot(
            "Requests in flight, and held by a rate limit",
            ("in flight", "good", "area", series.in_flight),
            ("held", "warn", "line", [held or None for held in series.held]),
        ),
        plot(
            "Latency in seconds",
            ("95 %", "warn", "line", series.latency_p95),
            ("median", "good", "line", series.latency_p50),
        ),
        plot("Tokens per second", ("input", "good", "line", tokens[0]), ("output", "warn", "line", tokens[1])),
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
        f"{series.rejections[index]:,} × 429",
        f"{series.failed[index]:,} failed",
        f"{series.in_flight[index]:,.1f} in flight",
        *(() if latency is None else (f"p95 {_seconds(latency)}",)),
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
