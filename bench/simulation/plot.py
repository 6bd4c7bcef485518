"""Plots traces as one image: `python -m bench.simulation --plot OUT.png`. Requires only matplotlib."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

FIRST_COLOUR, NEXT_COLOUR, LIMIT_COLOUR = "#0b6e6e", "#d18f2c", "#c0392b"
TEXT_COLOUR, MUTED_COLOUR = "#22303c", "#6b7785"
SHOWN_SECONDS = 200.0


def main() -> None:
    """Reads the traces from standard input and plots them."""
    traces = json.load(sys.stdin)
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 9, "text.color": TEXT_COLOUR, "axes.edgecolor": MUTED_COLOUR})
    figure, panels = plt.subplots(len(traces), 1, figsize=(10, 2.7 * len(traces)), layout="constrained")
    for axis, trace in zip(panels, traces, strict=True):
        _panel(axis, trace)
    panels[0].legend(loc="lower right", frameon=False, ncols=3)
    panels[-1].set_xlabel("time in seconds", color=MUTED_COLOUR)
    figure.savefig(Path(sys.argv[1]), dpi=110, facecolor="white")


def _panel(axis: Axes, trace: Mapping[str, Any]) -> None:
    highest = 3.2 * trace["first"]["limits"][0][1]
    for name, run, colour, height in (
        ("first run", trace["first"], FIRST_COLOUR, 0.97),
        ("next run", trace["following"], NEXT_COLOUR, 0.92),
    ):
        edges = [trace["bin_seconds"] * number for number in range(len(run["admitted"]) + 1)]
        axis.stairs(run["admitted"], edges, color=colour, linewidth=1.3, label=f"admitted, {name}")
        axis.plot(run["rejected"], [height * highest] * len(run["rejected"]), "|", color=colour, markersize=6)
    limits, later = trace["first"]["limits"], trace["following"]["limits"]
    # The capacity of a pool is another in each run.
    for steps, colour in (
        [(limits, LIMIT_COLOUR)] if limits == later else [(limits, FIRST_COLOUR), (later, NEXT_COLOUR)]
    ):
        times = [*(at for at, _ in steps), max(SHOWN_SECONDS, steps[-1][0])]
        rates = [*(rate for _, rate in steps), steps[-1][1]]
        axis.step(times, rates, where="post", color=colour, linestyle=(0, (4, 2)), linewidth=1, label="quota")
    axis.set_xlim(0, SHOWN_SECONDS)
    axis.set_ylim(0, highest)
    counts = ", ".join(
        f"{len(trace[key]['rejected'])} in the {name}"
        for key, name in (("first", "first run"), ("following", "next"))
    )
    axis.set_title(f"{trace['title']}  (429s: {counts})", loc="left", fontweight="bold", fontsize=9)
    axis.set_ylabel("requests per second", color=MUTED_COLOUR)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(colors=MUTED_COLOUR, labelsize=8)


if __name__ == "__main__":
    main()
