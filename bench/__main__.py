"""Command line of the benchmark: runs the contenders, prints ratios, and writes JSON and a plot."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench import venvs
from bench.contenders.contender import Contender
from bench.jobs import JOBS, Job, quick
from bench.machine import facts
from bench.measure import Measurement
from bench.registry import CONTENDERS
from bench.run import Case, environment_of, run_case
from bench.summary import verdicts
from bench.table import number, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark.

    Returns:
        0, or 1 if `--check` was given and our engine missed a target.
    """
    options = _parser().parse_args(arguments)
    # SIGTERM is handled like Ctrl-C, so that the measured processes are terminated as well.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    jobs = [quick(job) if options.quick else job for job in JOBS if job.letter in options.jobs]
    contenders = _select_contenders(options.contenders, with_peers=options.peers)
    if options.processes:
        jobs = [_with_processes(job, options.processes) for job in jobs]
    left_out = venvs.create(contenders) if options.peers else {}
    left_out |= {name: reason for name, reason in _not_installed(contenders) if name not in left_out}
    machine = facts(contenders)
    measurements: list[Measurement] = []
    repeats = 1 if options.quick else options.repeats
    for case in _cases(jobs, [c for c in contenders if c.name not in left_out], repeats):
        measurements.append(run_case(case))
        _print_progress(_progress_line(case, measurements[-1]))
    target_verdicts = verdicts(jobs, measurements)
    text = table(jobs, contenders, measurements, target_verdicts, left_out)
    sys.stdout.write(f"{text}\n")
    result: dict[str, Any] = {
        "machine": machine,
        "is_quick": options.quick,
        "repeats": repeats,
        "jobs": [asdict(job) for job in jobs],
        "contenders": [
            {
                "name": c.name,
                "remarks": c.remarks,
                "left_out": left_out.get(c.name, ""),
                "not_run": dict(c.not_run),
            }
            for c in contenders
        ],
        "measurements": [asdict(measurement) for measurement in measurements],
        "targets": [asdict(verdict) | {"is_reached": verdict.is_reached} for verdict in target_verdicts],
    }
    _write(options.out, result, text)
    return int(options.check and not all(verdict.is_reached for verdict in target_verdicts))


def _print_progress(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _cases(jobs: Sequence[Job], contenders: Sequence[Contender], repeats: int) -> Iterator[Case]:
    """Yields the cases, repeats outermost, so that temporary load affects all contenders equally."""
    for repeat in range(repeats):
        for job in jobs:
            for contender in contenders:
                if job.letter not in contender.jobs:
                    continue
                for processes in contender.process_counts(job.processes):
                    python = venvs.python_of(contender)
                    yield Case(job=job, contender=contender, python=python, processes=processes, repeat=repeat)


def _with_processes(job: Job, processes: tuple[int, ...]) -> Job:
    return replace(job, processes=processes) if len(job.processes) > 1 else job


def _select_contenders(names: str | None, *, with_peers: bool) -> list[Contender]:
    if names is None:
        return [contender for contender in CONTENDERS if with_peers or not contender.is_peer]
    wanted = [name.strip() for name in names.split(",")]
    known = {contender.environment_name for contender in CONTENDERS} | {c.name for c in CONTENDERS}
    if unknown := sorted(set(wanted) - known):
        raise SystemExit(
            f"`--contenders` must be names from {', '.join(sorted(known))}; got {', '.join(unknown)}."
        )
    return [c for c in CONTENDERS if c.name in wanted or c.environment_name in wanted]


def _not_installed(contenders: Sequence[Contender]) -> Iterator[tuple[str, str]]:
    for contender in contenders:
        try:
            venvs.python_of(contender)
        except venvs.NotInstalledError as error:
            yield contender.name, str(error)


def _progress_line(case: Case, measurement: Measurement) -> str:
    head = f"[{case.repeat + 1}] {case.job.letter} {case.contender.name} ×{case.processes}"
    if measurement.failure:
        return f"{head}: failed: {measurement.failure}"
    shown = [
        f"{name} {number(measurement.figures[name])}" for name in case.job.columns if name in measurement.figures
    ]
    return f"{head}: {', '.join(shown)}"


def _write(out: Path, result: dict[str, Any], text: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    result_path, plot_path = out / "results.json", out / "results.png"
    result_path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    (out / "results.txt").write_text(text + "\n")
    written = [str(result_path), str(out / "results.txt")]
    try:
        python = venvs.plot_python()
    except venvs.NotInstalledError as error:
        _print_progress(f"No plot: matplotlib {error}.")
    else:
        command = [str(python), "-m", "bench.plot", str(result_path.resolve()), str(plot_path.resolve())]
        if not subprocess.run(command, env=environment_of({}), check=False).returncode:
            written.append(str(plot_path))
    sys.stdout.write(f"Written: {', '.join(written)}\n")


def _parser() -> argparse.ArgumentParser:
    letters = "".join(job.letter for job in JOBS)
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Compares our engine with stock Beam and other libraries (the peers)."
    )
    parser.add_argument(
        "--jobs", type=_letters, default=letters, metavar="A,B", help=f"jobs from {letters} (default: all)"
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="number of repeats (default: 3)")
    parser.add_argument(
        "--contenders",
        metavar="NAMES",
        help="contenders to run, e.g. ours,stock_beam,litellm (default: all, the peers only with --peers)",
    )
    parser.add_argument(
        "--processes",
        type=_numbers,
        metavar="1,2,4",
        help="numbers of worker processes of our engine in jobs B, E and F",
    )
    parser.add_argument(
        "--peers", action="store_true", help="create the peers' virtual environments, and run the peers"
    )
    parser.add_argument("--quick", action="store_true", help="run one repeat with a quarter of the rows")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if our engine misses a target")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bench/results"),
        metavar="DIRECTORY",
        help="directory for the results (default: bench/results)",
    )
    return parser


def _letters(text: str) -> str:
    letters = text.replace(",", "").upper()
    if unknown := sorted(set(letters) - {job.letter for job in JOBS}):
        raise argparse.ArgumentTypeError(f"unknown job: {', '.join(unknown)}")
    return letters


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
