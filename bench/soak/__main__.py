"""Command line of the soak."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import psutil

from bench import venvs
from bench.machine import facts
from bench.run import environment_of
from bench.soak import __doc__ as description
from bench.soak.load import Load
from bench.soak.server import Books, SoakServer
from bench.soak.verdict import MIB, Check, Sample, Totals, checks

SAMPLE_SECONDS = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the soak.

    Returns:
        0, or 1 if a check failed.
    """
    options = _parser().parse_args(arguments)
    # SIGTERM is handled like Ctrl-C, so that the directory of the journal is removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.setdefault("GOOGLE_API_KEY", "bench")
    with (
        tempfile.TemporaryDirectory(prefix="llmbeam-soak-") as directory,
        SoakServer(options.rows_per_second, options.seed) as server,
    ):
        load = Load(server.url, options.rows_per_second, Path(directory, "journal"))
        sampler = _Sampler(load, server, options.sample_seconds)
        with sampler:
            load.run(options.hours * 3600)
        server.calm()
        load.finish()
        sampler.take()
        totals = totals_of(load, server.books())
    verdict = checks(sampler.samples, totals)
    is_passed = all(check.is_passed for check in verdict)
    result = {
        "machine": facts(()),
        "rows_per_second": options.rows_per_second,
        "seed": options.seed,
        "is_passed": is_passed,
        "checks": [asdict(check) for check in verdict],
        "totals": asdict(totals) | {"damaged": totals.damaged, "unexplained": totals.unexplained},
        "failed": dict(load.counts.failed),
        "repeated": load.counts.repeated,
        "samples": [asdict(sample) for sample in sampler.samples],
    }
    _print(_rate_line(sampler.samples[-1], options.rows_per_second))
    for check in verdict:
        _print(_check_line(check))
    _write(options.out, json.dumps(result, indent=1))
    return int(not is_passed)


def totals_of(load: Load, books: Books) -> Totals:
    """Returns the books of both sides."""
    counts = load.counts
    return Totals(
        issued=counts.issued,
        answered=counts.answered,
        completions=counts.completions,
        billed=books.billed,
        faults=dict(books.faults),
        restarts=books.restarts,
        misdirected=counts.misdirected,
        changed=counts.changed,
    )


class _Sampler:
    """Takes a sample every minute, on a thread of its own, while the body of the `with` block runs."""

    def __init__(self, load: Load, server: SoakServer, seconds: float) -> None:
        self.samples: list[Sample] = []
        self._load, self._server, self._seconds = load, server, seconds
        self._own, self._other = psutil.Process(), psutil.Process(server.pid)
        self._started_at = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def take(self) -> None:
        counts, books = self._load.counts, self._server.books()
        sample = Sample(
            at=time.monotonic() - self._started_at,
            phase=books.phase,
            issued=counts.issued,
            answered=counts.answered,
            failed=dict(counts.failed),
            requests=counts.requests,
            rejections=counts.rejections,
            billed=books.billed,
            memory=self._own.memory_info().rss,
            journal_index=self._load.journal_index_bytes,
            segments=self._load.segments,
            threads=self._own.num_threads(),
            files=self._own.num_fds(),
            tasks=self._load.tasks,
            engine_cpu=time.process_time(),
            server_cpu=books.cpu_seconds,
            server_memory=self._other.memory_info().rss,
        )
        self.samples.append(sample)
        _print(_sample_line(sample))

    def _run(self) -> None:
        while not self._is_over.wait(self._seconds):
            self.take()


def _sample_line(sample: Sample) -> str:
    failed = ", ".join(f"{kind} {count:,}" for kind, count in sorted(sample.failed.items())) or "none"
    cpu = (sample.engine_cpu + sample.server_cpu) / sample.at
    return (
        f"{sample.at / 60:6.1f} min  {sample.answered:>9,} of {sample.issued:>9,} rows, failed: {failed}; "
        f"{sample.requests:,} requests, {sample.rejections:,} 429s, {sample.billed:,} billed; "
        f"{sample.memory / MIB:.1f} MiB ({sample.journal_index / MIB:.1f} index), {sample.threads} threads, "
        f"{sample.files} files, {sample.tasks} tasks; {cpu:.0%} of a core, "
        f"server {sample.server_memory / MIB:.0f} MiB; {sample.phase}"
    )


def _rate_line(last: Sample, rows_per_second: float) -> str:
    return (
        f"{last.answered:,} rows in {last.at / 60:.0f} min: {last.answered / last.at:.0f} per second of "
        f"{rows_per_second:g}; processor time per request {1000 * last.engine_cpu / last.requests:.2f} ms of the "
        f"engine, {1000 * last.server_cpu / last.requests:.2f} ms of the server"
    )


def _check_line(check: Check) -> str:
    return f"  {'passed' if check.is_passed else 'FAILED'}  {check.name}: {check.value}; {check.bound}"


def _write(out: Path, text: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    result_path, plot_path = out / "soak.json", out / "soak.png"
    result_path.write_text(text + "\n")
    written = [str(result_path)]
    try:
        python = venvs.plot_python()
    except venvs.NotInstalledError as error:
        _print(f"No plot: matplotlib {error}.")
    else:
        command = [str(python), "-m", "bench.soak.plot", str(result_path.resolve()), str(plot_path.resolve())]
        if not subprocess.run(command, env=environment_of({}), check=False).returncode:
            written.append(str(plot_path))
    _print(f"Written: {', '.join(written)}")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=2.0, metavar="X", help="duration in hours (default: 2)")
    parser.add_argument(
        "--rows-per-second", type=float, default=200.0, metavar="X", help="rate of new rows (default: 200)"
    )
    parser.add_argument(
        "--sample-seconds",
        type=float,
        default=SAMPLE_SECONDS,
        metavar="X",
        help=f"interval between samples in s (default: {SAMPLE_SECONDS:g})",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the faults (default: 0)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bench/results"),
        metavar="DIRECTORY",
        help="directory for the results (default: bench/results)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
