"""Plots the samples of a soak: `python -m bench.soak.plot SOAK.json OUT.png`. Requires only matplotlib."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

MIB = 2**20


def main() -> None:
    """Reads the samples and plots them."""
    result = json.loads(Path(sys.argv[1]).read_text())
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 9})
    draw(result, Path(sys.argv[2]))


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draws rows per second, memory, and the numbers of files, threads and tasks over time."""
    samples = result["samples"]
    minutes = [sample["at"] / 60 for sample in samples]
    figure, (rows, memory, numbers) = plt.subplots(3, 1, figsize=(11, 9), sharex=True, layout="constrained")
    pairs = list(pairwise(samples))
    rates = {
        name: [(after[name] - before[name]) / (after["at"] - before["at"]) for before, after in pairs]
        for name in ("answered", "requests", "rejections")
    }
    for name, values in rates.items():
        rows.plot(minutes[1:], values, label=name, linewidth=1.1)
    rows.set_ylabel("per second")
    memory.plot(minutes, [sample["memory"] / MIB for sample in samples], label="engine")
    own = [(sample["memory"] - sample["journal_index"]) / MIB for sample in samples]
    memory.plot(minutes, own, label="engine without the journal's index", linestyle="--")
    memory.plot(minutes, [sample["server_memory"] / MIB for sample in samples], label="server", linewidth=1)
    memory.set_ylabel("resident memory, MiB")
    memory.set_ylim(bottom=0)
    for name in ("files", "threads", "tasks"):
        numbers.plot(minutes, [sample[name] for sample in samples], label=name, linewidth=1.1)
    numbers.set_ylabel("open, of the engine")
    numbers.set_yscale("log")
    numbers.set_xlabel("minutes")
    for axis in (rows, memory, numbers):
        axis.legend(loc="upper left", frameon=False, ncols=3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="#e8ebee", linewidth=0.8)
    passed = "passed" if result["is_passed"] else "FAILED"
    figure.suptitle(f"Soak of {minutes[-1] / 60:.2f} h at {result['rows_per_second']:g} rows/s: {passed}")
    figure.savefig(path, dpi=130, facecolor="white")


if __name__ == "__main__":
    main()
