"""`python -m bench`: runs the contenders side by side, prints ratios, writes JSON and a plot."""

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
from bench.lineup import CONTENDERS
from bench.machine import facts
from bench.measure import Measurement
from bench.run import Case, environment_of, measured
from bench.summary import verdicts
from bench.table import number, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark.

    Returns:
        0, or 1 when `--check` was given and our engine missed a target.
    """
    options = _parser().parse_args(arguments)
    # Handled like Ctrl-C, so that the measured processes are terminated as well.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    jobs = [quick(job) if options.quick else job for job in JOBS if job.letter in options.jobs]
    contenders = _chosen(options.contenders, with_peers=options.peers)
    if options.processes:
        jobs = [_with_processes(job, options.processes) for job in jobs]
    left_out = venvs.make(contenders) if options.peers else {}
    left_out |= {name: why for name, why in _not_installed(contenders) if name not in left_out}
    about = facts(contenders)
    found: list[Measurement] = []
    repeats = 1 if options.quick else options.repeats
    for case in _cases(jobs, [c for c in contenders if c.name not in left_out], repeats):
        found.append(measured(case))
        _say(_line(case, found[-1]))
    judged = verdicts(jobs, found)
    text = table(jobs, contenders, found, judged, left_out)
    sys.stdout.write(f"{text}\n")
    result: dict[str, Any] = {
        "machine": about,
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
        "measurements": [asdict(measurement) for measurement in found],
        "targets": [asdict(verdict) | {"is_reached": verdict.is_reached} for verdict in judged],
    }
    _write(options.out, result, text)
    return int(options.check and not all(verdict.is_reached for verdict in judged))


def _say(text: str) -> None:
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


def _chosen(names: str | None, *, with_peers: bool) -> list[Contender]:
    if names is None:
        return [contender for contender in CONTENDERS if with_peers or not contender.is_peer]
    wanted = [name.strip() for name in names.split(",")]
    known = {contender.environment_name for contender in CONTENDERS} | {c.name for c in CONTENDERS}
    if unknown := sorted(set(wanted) - known):
        raise SystemExit(f"`--contenders` takes names of {', '.join(sorted(known))}; got {', '.join(unknown)}.")
    return [c for c in CONTENDERS if c.name in wanted or c.environment_name in wanted]


def _not_installed(contenders: Sequence[Contender]) -> Iterator[tuple[str, str]]:
    for contender in contenders:
        try:
            venvs.python_of(contender)
        except venvs.NotInstalledError as error:
            yield contender.name, str(error)


def _line(case: Case, measurement: Measurement) -> str:
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
        _say(f"No plot: matplotlib {error}.")
    else:
        command = [str(python), "-m", "bench.plot", str(result_path.resolve()), str(plot_path.resolve())]
        if not subprocess.run(command, env=environment_of({}), check=False).returncode:
            written.append(str(plot_path))
    sys.stdout.write(f"Written: {', '.join(written)}\n")


def _parser() -> argparse.ArgumentParser:
    letters = "".join(job.letter for job in JOBS)
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Our engine beside stock Beam and the peers."
    )
    parser.add_argument(
        "--jobs", type=_letters, default=letters, metavar="A,B", help=f"of {letters} (default: all)"
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--contenders", metavar="NAMES", help="e.g. ours,stock_beam,litellm (default: no peers)")
    parser.add_argument(
        "--processes", type=_numbers, metavar="1,2,4", help="worker processes of ours in B, E and F"
    )
    parser.add_argument(
        "--peers", action="store_true", help="make the peers' environments, and let them take part"
    )
    parser.add_argument("--quick", action="store_true", help="one repeat of a quarter of the rows")
    parser.add_argument("--check", action="store_true", help="exit with 1 when our engine misses a target")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), metavar="DIRECTORY")
    return parser


def _letters(text: str) -> str:
    letters = text.replace(",", "").upper()
    if unknown := sorted(set(letters) - {job.letter for job in JOBS}):
        raise argparse.ArgumentTypeError(f"no such job: {', '.join(unknown)}")
    return letters


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
