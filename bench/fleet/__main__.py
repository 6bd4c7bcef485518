"""Command line of the simulation of a job on many machines."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

from bench.fleet import __doc__ as description
from bench.fleet.case import HUNDRED_MILLION, PAPER, FleetCase
from bench.fleet.governors import BIN_SECONDS, Sharing, share_quota
from bench.fleet.journal import FleetJournal, write_all, write_batch
from bench.fleet.tables import bounds_table, paper_table, sharing_table, totals_table
from bench.fleet.totals import Totals, totals_of
from bench.venvs import plot_python

#: `expected_workers`: the number of machines, four times as many, a fourth, and none stated.
EXPECTED_WORKERS = (50, 200, 12, 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; returns 0."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, metavar="PNG", help="plot the shares of the quota over time")
    options = parser.parse_args(arguments)
    with ProcessPoolExecutor(2) as pool:
        sharings = list(pool.map(partial(share_quota, HUNDRED_MILLION), EXPECTED_WORKERS))
    totals, journal = _totals(HUNDRED_MILLION, sharings[0].seconds_for(HUNDRED_MILLION.quota_seconds))
    tables = (
        sharing_table(sharings),
        bounds_table(totals),
        totals_table(totals, journal),
        paper_table(PAPER, *_totals(PAPER, PAPER.quota_seconds)),
    )
    sys.stdout.write("\n\n".join(tables) + "\n")
    return 0 if options.plot is None else _plot(options.plot, sharings)


def _totals(case: FleetCase, seconds: float) -> tuple[Totals, FleetJournal]:
    journal = write_all(case, write_batch(case))
    return totals_of(case, journal, seconds), journal


def _plot(path: Path, sharings: Sequence[Sharing]) -> int:
    """Plots with an interpreter that has matplotlib; returns its exit status."""
    command = [str(plot_python()), "-m", "bench.fleet.plot", str(path.resolve())]
    content = json.dumps({"bin_seconds": BIN_SECONDS, "sharings": [asdict(sharing) for sharing in sharings]})
    return subprocess.run(command, input=content, text=True, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
