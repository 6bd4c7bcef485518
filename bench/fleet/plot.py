"""Plots the shares of the quota over time: `python -m bench.fleet --plot OUT.png`. Requires only matplotlib."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

COLOURS = {50: "#0b6e6e", 200: "#d18f2c", 12: "#c0392b", 1: "#6b7785"}
TEXT_COLOUR, MUTED_COLOUR = "#22303c", "#6b7785"


def main() -> None:
    """Reads the shares from standard input and plots them."""
    content = json.load(sys.stdin)
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 9, "text.color": TEXT_COLOUR, "axes.edgecolor": MUTED_COLOUR})
    figure, panels = plt.subplots(2, 1, figsize=(10, 5), sharex=True, layout="constrained")
    for axis, name, title in (
        (panels[0], "admitted", "Share of the quota that 50 machines use"),
        (panels[1], "rejected", "Share of their requests that are 429s"),
    ):
        for sharing in content["sharings"]:
            minutes = [number * content["bin_seconds"] / 60 for number in range(len(sharing[name]) + 1)]
            workers = sharing["expected_workers"]
            label = f"expected_workers {workers}"
            axis.stairs(sharing[name], minutes, color=COLOURS[workers], linewidth=1.4, baseline=None, label=label)
        axis.set_title(title, loc="left", fontsize=9, fontweight="bold")
        axis.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0, decimals=0))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#e8ebee", linewidth=0.8)
        axis.set_ylim(bottom=0)
    panels[0].legend(loc="center right", frameon=False)
    panels[1].set_xlabel("minutes", color=MUTED_COLOUR)
    figure.savefig(Path(sys.argv[1]), dpi=110, facecolor="white")


if __name__ == "__main__":
    main()
