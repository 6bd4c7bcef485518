"""Command line of the simulation of servers whose quota the governor is not told."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_llmbeam.engine.pacing.unknown_quota.learned_rate import LearnedRate
from bench.simulation import __doc__ as description
from bench.simulation.bounds import TABLES, lines_of
from bench.simulation.cases import SHAPES, Case, CaseResult, run_twice
from bench.simulation.chances import cases as chance_cases
from bench.simulation.chances import chances_table, simulate_chance
from bench.simulation.hours import hours_table, simulate_hour
from bench.simulation.outages import cases as outage_cases
from bench.simulation.outages import outages_table, simulate_outage
from bench.simulation.token_cases import RequestsOnly, TokenCase
from bench.simulation.traces import traces
from bench.venvs import plot_python


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cases; returns 0, or 1 if a bound of `--bounds` is missed."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300, metavar="N", help="number of cases (default: 300)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="seed of the first (default: 0)")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="number of processes (default: 2)")
    parser.add_argument(
        "--tokens", action="store_true", help="prompts of 20 to 50,000 tokens, also quotas of tokens"
    )
    parser.add_argument("--requests-only", action="store_true", help="a law that counts requests only")
    parser.add_argument("--machines", type=int, nargs="+", metavar="N", help="simulate an hour of each number")
    parser.add_argument("--outages", action="store_true", help="servers that reject all requests for some time")
    parser.add_argument(
        "--chances", action="store_true", help="servers that reject a share by chance, at any rate"
    )
    parser.add_argument("--bounds", action="store_true", help="check the bounds of all tables; takes two minutes")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="plot the rate over time for three servers")
    parser.add_argument("--all", action="store_true", help="print every case that misses a bound")
    options = parser.parse_args(arguments)
    if options.plot is not None:
        return _plot(options.plot)
    with _mapping(options.processes) as run:
        if options.bounds:
            return _check_bounds(run, options.cases)
        if options.machines:
            hours = run(simulate_hour, *zip(*itertools.product(SHAPES[:-1], options.machines), strict=True))
            sys.stdout.write(hours_table([*hours]) + "\n")
            return 0
        if options.outages:
            sys.stdout.write(outages_table([*run(simulate_outage, *zip(*outage_cases(), strict=True))]) + "\n")
            return 0
        if options.chances:
            sys.stdout.write(chances_table([*run(simulate_chance, chance_cases())]) + "\n")
            return 0
        draw = TokenCase.draw if options.tokens else Case.draw
        make_rate = RequestsOnly if options.requests_only else LearnedRate
        cases = [draw(options.first_seed + number) for number in range(options.cases)]
        results = [*run(partial(run_twice, make_rate=make_rate), cases)]
    for title, of_run in zip(("first run", "next run"), zip(*results, strict=True), strict=True):
        if options.all:
            for result in of_run:
                if not (result.is_frugal and result.is_fast):
                    sys.stdout.write(_line(result) + "\n")
        sys.stdout.write(f"{title}\n{_table(of_run)}\n\n")
    return 0


@contextmanager
def _mapping(processes: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """Yields `map` over processes; over this one alone if there is to be no other."""
    if processes == 1:
        yield map
    else:
        with ProcessPoolExecutor(processes) as pool:
            yield pool.map


def _check_bounds(run: Callable[..., Iterable[Any]], most_cases: int) -> int:
    """Prints the figures of so many cases of each table; returns 1 if one does not lie where it may."""
    is_kept = True
    for table in TABLES:
        bounds = [*table.bounds([*run(table.simulate, table.cases[:most_cases])])]
        sys.stdout.write(f"{lines_of(table, bounds)}\n\n")
        is_kept = is_kept and all(bound.is_kept for bound in bounds)
    return int(not is_kept)


def _plot(path: Path) -> int:
    """Plots with an interpreter that has matplotlib; returns its exit status."""
    command = [str(plot_python()), "-m", "bench.simulation.plot", str(path.resolve())]
    content = json.dumps([asdict(trace) for trace in traces()])
    return subprocess.run(command, input=content, text=True, check=False).returncode


def _line(result: CaseResult) -> str:
    case = result.case
    return (
        f"{case.seed:>5} {case.title:<23}{case.rps:>7.2f}/s {case.seconds:>5.1f} s  {case.advice:<14}"
        f"latency {case.latency_seconds:>5.2f}/{case.rejection_seconds:>5.3f} s  rows {case.rows:>6}"
        f"  429s {result.rejected:>5} ({result.rejected / result.requests:>6.1%})  time {result.time_ratio:>5.2f}"
        f"{'' if result.is_frugal else '  429s!'}{'' if result.is_fast else '  time!'}"
    )


def _table(results: Sequence[CaseResult]) -> str:
    by_shape: dict[str, list[CaseResult]] = defaultdict(list)
    for result in results:
        by_shape[result.case.title].append(result)
        by_shape["all"].append(result)
    lines = [f"{'shape':<24}{'cases':>6}{'few 429s':>10}{'in time':>9}{'time: median':>14}{'90 %':>7}{'most':>7}"]
    for shape, found in by_shape.items():
        ratios = sorted(result.time_ratio for result in found)
        lines.append(
            f"{shape:<24}{len(found):>6}{sum(r.is_frugal for r in found) / len(found):>10.0%}"
            f"{sum(r.is_fast for r in found) / len(found):>9.0%}{ratios[len(ratios) // 2]:>14.2f}"
            f"{ratios[int(0.9 * len(ratios))]:>7.2f}{ratios[-1]:>7.2f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
