"""Command line of the simulation of batch inference."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

from bench.batch_simulation import __doc__ as description
from bench.batch_simulation.cases import SHAPES, Case, CaseResult, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cases; returns 1 if a run missed its deadline."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200, metavar="N", help="cases of each shape (default: 200)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="seed of the first (default: 0)")
    options = parser.parse_args(arguments)
    seeds = range(options.first_seed, options.first_seed + options.cases)
    results = {shape: [run(Case.draw(shape, seed)) for seed in seeds] for shape in SHAPES}
    sys.stdout.write(table(results) + "\n")
    return int(any(result.spare_seconds < 0 for found in results.values() for result in found))


def table(results: dict[str, list[CaseResult]]) -> str:
    """Returns a line for each shape: mean costs over those of all rows online, least spare time."""
    titles = f"{'cost':>8}{'oracle':>8}{'over oracle: median':>21}{'p90':>8}{'polls':>8}{'spare min':>11}"
    lines = [f"{'jobs':<28}{'late':>6}{titles}"]
    for shape, found in results.items():
        over = sorted(result.cost / result.oracle - 1 for result in found)
        lines.append(
            f"{shape:<28}{sum(result.spare_seconds < 0 for result in found):>6}"
            f"{statistics.mean(result.cost for result in found):>8.3f}"
            f"{statistics.mean(result.oracle for result in found):>8.3f}"
            f"{statistics.median(over):>20.1%} {over[len(over) * 9 // 10]:>7.1%}"
            f"{statistics.median(result.polls for result in found):>8.0f}"
            f"{min(result.spare_seconds for result in found) / 60:>11.1f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
