"""Plots latencies as one image: `python -m bench.stream.plot RESULTS.json OUT.png`. Requires only matplotlib."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

#: What is drawn, and its colours, as in `bench.plot`.
FIGURE = "produced to visible, less the model"
COLOURS = {"worker": "#0b6e6e", "plain loop": "#b9c1c9"}


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draws percentiles as bars, one panel for each load."""
    mpl.use("Agg")
    figure, axes = plt.subplots(1, len(results), figsize=(10, 3.2), squeeze=False, layout="constrained")
    for axis, (load, by_contender) in zip(axes[0], results.items(), strict=True):
        for number, (contender, figures) in enumerate(by_contender.items()):
            values = figures[FIGURE]
            places = [place + number * 0.4 for place in range(len(values))]
            bars = axis.bar(places, values.values(), width=0.38, label=contender, color=COLOURS[contender])
            axis.bar_label(bars, fmt="%.0f", fontsize=8)
        axis.set_xticks([place + 0.2 for place in range(len(values))], values)
        axis.set_title(load, loc="left", fontsize=9)
        axis.set_ylabel(f"ms, {FIGURE}", fontsize=8)
        axis.legend(fontsize=8, frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120, facecolor="white")


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
