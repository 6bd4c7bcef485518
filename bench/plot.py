"""Plots the results as one image: `python -m bench.plot RESULTS.json OUT.png`. Requires only matplotlib."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

OURS = "ours"
OUR_COLOUR, OTHER_COLOUR, BAD_COLOUR, TARGET_COLOUR = "#0b6e6e", "#b9c1c9", "#d98c7a", "#c0392b"
TEXT_COLOUR, MUTED_COLOUR = "#22303c", "#6b7785"
COLUMNS = 2
BAR_HEIGHT, ROW_INCHES, MIN_PANEL_INCHES = 0.68, 0.27, 1.5
LABELS = {
    "requests_per_prompt": "requests per distinct prompt",
    "requests_per_row": "requests per row",
    "paid_again_ratio": "share of the paid answers that are paid for again",
    "latency_limit_ratio": "rows per second while sending, relative to the latency limit",
    "utilisation": "share of the quota that was used",
    "makespan_ratio": "time relative to a server without padding",
}


def main() -> None:
    """Reads the results and plots them."""
    results = json.loads(Path(sys.argv[1]).read_text())
    mpl.use("Agg")
    plt.rcParams.update(
        {"font.size": 9, "text.color": TEXT_COLOUR, "axes.edgecolor": MUTED_COLOUR, "ytick.color": TEXT_COLOUR}
    )
    draw(results, Path(sys.argv[2]))


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draws one panel per job, with a bar per contender, whiskers over the repeats, and a line at the target."""
    panels = [(job, bars) for job in results["jobs"] if (bars := _bars(job, results))]
    lines = -(-len(panels) // COLUMNS)
    heights = [
        max(MIN_PANEL_INCHES, *(0.8 + ROW_INCHES * len(bars) for _, bars in panels[start : start + COLUMNS]))
        for start in range(0, len(panels), COLUMNS)
    ]
    figure, grid = plt.subplots(
        lines,
        COLUMNS,
        squeeze=False,
        figsize=(14, sum(heights) + 1.1),
        height_ratios=heights,
        layout="constrained",
    )
    figure.get_layout_engine().set(h_pad=0.12, w_pad=0.12, rect=(0, 0.02, 1, 0.98))
    axes = [axis for line in grid for axis in line]
    for axis, (job, bars) in zip(axes, panels, strict=False):
        _panel(axis, job, bars)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    machine, repeats = results["machine"], results["repeats"]
    figure.suptitle(
        "airflow-provider-llmbeam compared with stock Beam and other libraries", x=0.01, ha="left", fontsize=15
    )
    figure.text(
        0.01,
        0.004,
        f"Medians of {repeats} repeat{'s' * (repeats > 1)}, whiskers from minimum to maximum; all in one run "
        f"on {machine['cores']} cores ({machine['speed']}) shared by client and server, {machine['date'][:10]}. "
        "Red line: our target. Light red bars: rows were lost.",
        color=MUTED_COLOUR,
        fontsize=8,
    )
    figure.savefig(path, dpi=150, facecolor="white")


def _panel(axis: Axes, job: Mapping[str, Any], bars: Sequence[Mapping[str, Any]]) -> None:
    positions = list(range(len(bars)))[::-1]
    for position, bar in zip(positions, bars, strict=True):
        if bar["values"]:
            _bar(axis, position, bar)
        else:
            axis.text(
                0,
                position,
                f" failed: {bar['failure'][:60]}",
                va="center",
                color=MUTED_COLOUR,
                fontsize=8,
                style="italic",
            )
    bound = next((t for t in job["targets"] if t["figure"] == job["headline"]), None)
    if bound is not None:
        value = bound["at_most"] if bound["at_most"] is not None else bound["at_least"]
        axis.axvline(value, color=TARGET_COLOUR, linewidth=1.1, linestyle=(0, (4, 2)), zorder=3)
    axis.set_yticks(positions, [bar["name"] for bar in bars])
    for label, bar in zip(axis.get_yticklabels(), bars, strict=True):
        label.set_fontweight("bold" if bar["is_ours"] else "normal")
    axis.set_ylim(-0.6, len(bars) - 0.4)
    axis.set_title(f"{job['letter']}   {job['title']}", loc="left", fontsize=9, fontweight="bold", wrap=True)
    direction = "less is better" if job["is_lower_better"] else "more is better"
    axis.set_xlabel(
        f"{LABELS.get(job['headline'], job['headline'])}  ({direction})", color=MUTED_COLOUR, fontsize=8
    )
    axis.margins(x=0.3)
    axis.set_xlim(left=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", colors=MUTED_COLOUR, labelsize=8)
    axis.grid(axis="x", color="#e8ebee", linewidth=0.8)
    axis.set_axisbelow(True)


def _bar(axis: Axes, position: int, bar: Mapping[str, Any]) -> None:
    values, middle = bar["values"], median(bar["values"])
    colour = OUR_COLOUR if bar["is_ours"] else BAD_COLOUR if bar["lost"] else OTHER_COLOUR
    axis.barh(position, middle, height=BAR_HEIGHT, color=colour, zorder=2)
    if len(values) > 1:
        spread = [[middle - min(values)], [max(values) - middle]]
        axis.errorbar(middle, position, xerr=spread, color=TEXT_COLOUR, linewidth=1, capsize=2.5, zorder=4)
    lost = f"   {bar['lost']:.0f} of {bar['rows']} rows lost" if bar["lost"] else ""
    rejected = f"   {bar['rejected_ratio']:.1%} of requests rejected" if bar["rejected_ratio"] is not None else ""
    axis.annotate(
        f"{middle:.3g}{rejected}{lost}",
        (max(values), position),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=TEXT_COLOUR if bar["is_ours"] else MUTED_COLOUR,
        zorder=5,
    )


def _bars(job: Mapping[str, Any], results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Collects the bars of a job, in the order of the contenders."""
    bars = []
    for contender in results["contenders"]:
        runs = [
            m for m in results["measurements"] if (m["contender"], m["job"]) == (contender["name"], job["letter"])
        ]
        for processes in sorted({run["processes"] for run in runs}):
            case_runs = [run for run in runs if run["processes"] == processes]
            succeeded = [run for run in case_runs if not run["failure"] and job["headline"] in run["figures"]]
            is_ours = contender["name"].partition(",")[0] == OURS
            suffix = f" ×{processes}" if is_ours and len(job["processes"]) > 1 else ""
            bars.append(
                {
                    "name": f"{contender['name']}{suffix}",
                    "is_ours": is_ours,
                    "values": [run["figures"][job["headline"]] for run in succeeded],
                    "lost": median([run["figures"].get("lost", 0) for run in succeeded]) if succeeded else 0,
                    "rejected_ratio": _rejected_ratio(job, succeeded),
                    "rows": case_runs[0]["rows"],
                    "failure": next((run["failure"] for run in case_runs if run["failure"]), ""),
                }
            )
    return bars


def _rejected_ratio(job: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the share of 429s if it has a target, as high utilisation with many 429s is not an advantage."""
    if not runs or not any(target["figure"] == "rejected_ratio" for target in job["targets"]):
        return None
    return float(median(run["figures"]["rejected_ratio"] for run in runs))


if __name__ == "__main__":
    main()
