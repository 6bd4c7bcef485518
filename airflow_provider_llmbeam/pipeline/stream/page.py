"""The page of a stream: what its members have done in the last hours."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from airflow_provider_llmbeam.pipeline.reporting.html import render, seconds, title_of
from airflow_provider_llmbeam.pipeline.reporting.page import HEADROOM, HEIGHT, WIDTH, Plot, plot
from airflow_provider_llmbeam.pipeline.secrets import known_secrets
from airflow_provider_llmbeam.pipeline.stream.group import HOUR, GroupMetrics
from airflow_provider_llmbeam.pipeline.stream.windows import Window, merge, slide
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import NANO

#: Windows in the plots, and partitions in the table, at most.
_WINDOWS, _PARTITIONS = 360, 20
#: Length of the sliding window of the figures at the top, in seconds.
_RECENT_SECONDS = 300
#: Intervals without a new file after which a member counts as gone.
_GONE_INTERVALS = 4


def render_page(spec: JobSpec, group: GroupMetrics, raised: Collection[str], last: int, now: float) -> str:
    """Returns the page of a stream.

    Args:
        spec: The job.
        group: What its members have left.
        raised: Kinds of the alerts that are raised.
        last: Begin of the last window that all members have written.
        now: Unix time.
    """
    length, run = spec.stream.window_seconds, spec.airflow_run
    first = max(min([*group.windows, last]), last - (_WINDOWS - 1) * length)
    end = last + length
    begins = range(first, end, length)
    windows = [group.windows.get(begin, Window()) for begin in begins]
    recent = slide(group.windows, last, _RECENT_SECONDS, length)
    members = sorted(group.members.values(), key=lambda each: each.member)
    there = [each for each in members if now - each.written_at < _GONE_INTERVALS * spec.stream.report_seconds]
    lags = {name: lag for each in there for name, lag in each.lags.items()}
    shown = merge([{0: each} for each in windows]).get(0, Window())
    return render(
        "stream",
        known_secrets(spec.secret_variables),
        title=title_of(spec.name, None if run is None else run.model_dump()),
        kind="stream",
        job=spec.name,
        made_at=now,
        raised=raised,
        recent=recent,
        recent_seconds=min(_RECENT_SECONDS, len(begins) * length),
        hour_usd=slide(group.windows, last, HOUR, length).spent_nano_usd / NANO,
        lag=sum(lags.values()),
        lags=sorted(lags.items(), key=lambda each: -each[1])[:_PARTITIONS],
        dead_letter=shown.dead_letter.most_common(),
        shown=shown,
        members=[
            {
                "name": each.member,
                "is_there": each in there,
                "recent": slide(merge(each.models.values()), last, _RECENT_SECONDS, length),
                "file": each,
            }
            for each in members
        ],
        models=[(name, merge([{0: each} for each in found.values()])[0]) for name, found in group.models.items()],
        window_seconds=length,
        plots=_plots(windows, [group.counts.get(begin, 0) for begin in begins], length),
        times=[datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M") for at in (first, (first + end) / 2, end)],
        hints=[
            (round(number * WIDTH / len(begins), 2), round(WIDTH / len(begins), 2), _hint(begin, window))
            for number, (begin, window) in enumerate(zip(begins, windows, strict=True))
        ],
        width=WIDTH,
        height=HEIGHT,
        headroom=HEADROOM,
    )


def _plots(windows: list[Window], counts: list[int], length: int) -> list[Plot]:
    def per_second(name: str) -> list[float]:
        return [getattr(each, name) / length for each in windows]

    found = (
        plot(
            "Messages per second",
            ("answered", "good", "area", per_second("answers")),
            ("dead letter", "bad", "area", per_second("failed")),
        ),
        plot(
            "Time to a committed answer in seconds",
            ("95 %", "warn", "line", [each.latency_seconds(0.95) for each in windows]),
            ("median", "good", "line", [each.latency_seconds(0.5) for each in windows]),
        ),
        plot("Lag: messages that are not committed", ("lag", "warn", "area", [each.lag for each in windows])),
        plot(
            "Cost per hour in US dollars",
            ("cost", "good", "area", [each.spent_nano_usd / NANO * HOUR / length for each in windows]),
        ),
        plot("Over quota (429) per second", ("over quota", "warn", "area", per_second("rejections"))),
        plot(
            "Tokens per second",
            ("input", "good", "line", per_second("input_tokens")),
            ("output", "warn", "line", per_second("output_tokens")),
        ),
        plot("Members", ("members", "good", "area", counts)),
    )
    return [each for each in found if each is not None]


def _hint(begin: int, window: Window) -> str:
    parts = [
        f"{datetime.fromtimestamp(begin, UTC):%H:%M:%S}",
        f"{window.answers:,} answers",
        f"{window.failed:,} dead letters",
        f"{window.rejections:,} over quota",
        f"lag {window.lag or 0:,}",
        f"95 % within {seconds(window.latency_seconds(0.95))}",
    ]
    return " · ".join(parts)
