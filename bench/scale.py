"""Measures the cost per row of a job without a model's latency: `python -m bench.scale [--rows 10000 100000]`.

Runs the job with the `echo` model and short rows on the local runner, and a minimal Beam graph that reads the same
file, hashes each row, groups by the hash and writes: the least that an exactly-once job has to do. Prints seconds,
CPU seconds and memory of both, each in a new process with its start-up, and their ratios. On a busy machine only
those of CPU time and memory say anything.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.machine import speed
from bench.rows import write_rows

_GRAPH = """
import hashlib, sys
import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
source, target = sys.argv[1:]
with beam.Pipeline(runner=FnApiRunner()) as pipeline:
    (
        pipeline
        | beam.io.ReadFromText(source)
        | beam.Map(lambda line: (hashlib.sha256(line.encode()).hexdigest(), line))
        | beam.GroupByKey()
        | beam.FlatMap(lambda group: group[1])
        | beam.io.WriteToText(target)
    )
"""


@dataclass(frozen=True)
class Cost:
    """Cost of one process.

    Attributes:
        seconds: Time from start to end, in seconds.
        memory_gib: Largest resident memory, in GiB.
        cpu_seconds: CPU time of the process, in seconds.
    """

    seconds: float
    memory_gib: float
    cpu_seconds: float

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.cpu_seconds:.1f} s of CPU, {self.memory_gib:.2f} GiB"

    def ratios(self, other: Cost) -> str:
        """Returns the ratios of these figures to those of another process."""
        of_seconds, of_cpu = self.seconds / other.seconds, self.cpu_seconds / other.cpu_seconds
        return f"{of_seconds:.2f}, {of_cpu:.2f} of CPU, {self.memory_gib / other.memory_gib:.2f} of memory"


def main() -> None:
    """Measures and prints the costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows",
        type=int,
        nargs="+",
        default=[10_000, 100_000],
        metavar="N",
        help="numbers of rows (default: 10000 100000)",
    )
    _print(f"{os.cpu_count()} cores, {speed()}")
    for rows in parser.parse_args().rows:
        with tempfile.TemporaryDirectory(prefix="llmbeam-bench-") as directory:
            ours, graph = measure(rows, Path(directory))
        _print(f"{rows:,} rows: {ours}; minimal graph {graph}; ratios {ours.ratios(graph)}")


def measure(rows: int, directory: Path) -> tuple[Cost, Cost]:
    """Runs the job and the minimal graph with the same rows.

    Args:
        rows: Number of rows.
        directory: Empty directory for input and output.

    Returns:
        The costs of the job and of the graph.
    """
    source = directory / "rows.jsonl"
    write_rows(source, (f"row {number}" for number in range(rows)))
    spec = {
        "name": "scale",
        "source": {"uri": str(source), "key": ["id"]},
        "prompt": {"template": "Say it: {{ row.text }}"},
        "model": {"type": "echo"},
        "sink": {"uri": f"{directory}/out"},
    }
    (directory / "spec.json").write_text(json.dumps(spec))
    ours = cost_of(["-m", "airflow_provider_llmbeam.pipeline", f"--spec={directory}/spec.json"])
    return ours, cost_of(["-c", _GRAPH, str(source), f"{directory}/graph"])


def cost_of(arguments: Sequence[str]) -> Cost:
    """Runs Python and waits for it.

    Raises:
        subprocess.CalledProcessError: It failed; its output is printed.
    """
    started_at = time.monotonic()
    with subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started_at
    if process.returncode:
        sys.stderr.write(errors.decode(errors="replace"))
        raise subprocess.CalledProcessError(process.returncode, arguments)
    return Cost(seconds, usage.ru_maxrss / 2**20, usage.ru_utime + usage.ru_stime)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
