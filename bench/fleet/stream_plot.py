"""Plots the latency of a stream worker against its rate: `python -m bench.fleet.streams --plot OUT.png`.

Requires only matplotlib.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

COLOURS = {50: "#0b6e6e", 100: "#d18f2c", 200: "#6b7785"}


def main() -> None:
    """Reads the latencies from standard input and plots them."""
    content = json.load(sys.stdin)
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 9, "text.color": "#22303c", "axes.edgecolor": "#6b7785"})
    figure, axis = plt.subplots(figsize=(10, 3.6), layout="constrained")
    for interval, colour in COLOURS.items():
        each = [found for found in content["latencies"] if found["interval_ms"] == interval]
        each = [found for found in each if math.isfinite(found["p95"])]
        rates = [found["rate"] for found in each]
        label = f"committed each {interval} ms"
        axis.plot(rates, [1000 * found["p95"] for found in each], color=colour, marker="o", ms=3, label=label)
        beyond = [1000 * found["beyond_p95"] for found in each]
        axis.plot(rates, beyond, color=colour, linestyle=":", linewidth=1)
    axis.axhline(1000 * content["p95_seconds"], color="#c0392b", linewidth=1)
    axis.set_ylim(0, 1000)
    axis.set_xlabel("messages per second of one process", color="#6b7785")
    axis.set_ylabel("ms", color="#6b7785")
    title = "95th percentile from a message to its visible answer; dotted: without the time of the model"
    axis.set_title(title, loc="left", fontsize=9, fontweight="bold")
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#e8ebee", linewidth=0.8)
    figure.savefig(Path(sys.argv[1]), dpi=110, facecolor="white")


if __name__ == "__main__":
    main()
