"""Measures the CPU time of `safety.privacy` for each row: `python -m bench.privacy [--rows 200000] [--rounds 2]`.

Runs a job with the `echo` model and short rows on the local runner, without `privacy` and with it, in turns: over
rows of which none has personal data, and over rows of which every fifth has an e-mail address or a phone number.
Each is a process of its own. The time for a row is the difference to the same job over a tenth of the rows,
divided by the number of the others, so that the start of a process is no part of it. It is CPU time, and not the
time that passes, as other work may run beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench.machine import speed
from bench.rows import write_rows
from bench.scale import cost_of

_SECRET = {"LLMBEAM_PRIVACY_KEY": "the secret of the benchmark"}


def main() -> None:
    """Measures and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, metavar="N", help="number of rows (default: 200000)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="number of rounds (default: 2)")
    options = parser.parse_args()
    os.environ.update(_SECRET)
    _print(f"{os.cpu_count()} cores, {speed()}")
    for kind in ("none", "every fifth"):
        plain, masked = measure(options.rows, options.rounds, has_findings=kind != "none")
        _print(
            f"{options.rows:,} rows, {kind} with personal data: {plain:.0f} us without `privacy`, {masked:.0f} us "
            f"with it, {masked / plain:.2f} x; {speed()}"
        )


def measure(rows: int, rounds: int, *, has_findings: bool) -> tuple[float, float]:
    """Returns the CPU time for a row without and with `privacy`, in microseconds.

    Args:
        rows: Number of rows of the larger job.
        rounds: Number of measurements of each, whose median is taken.
        has_findings: Whether every fifth row has personal data.
    """
    found: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for is_masked, times in found.items():
            few, many = (_cpu_seconds(number, is_masked, has_findings) for number in (rows // 10, rows))
            times.append((many - few) / (rows - rows // 10) * 1e6)
            _print(f"  {'with' if is_masked else 'without'} `privacy`: {times[-1]:.0f} us")
    return median(found[False]), median(found[True])


def text(number: int, *, has_findings: bool) -> str:
    """Returns the text of a row, which differs from those of the others."""
    words = f"row {number} of a table, about as long as a short comment is"
    if not has_findings or number % 5:
        return words
    return (
        f"{words}; call +49 30 {9_000_000 + number}"
        if number % 2
        else f"{words}; write to ann{number}@example.com"
    )


def _cpu_seconds(rows: int, is_masked: bool, has_findings: bool) -> float:
    with tempfile.TemporaryDirectory(prefix="llmbeam-bench-") as name:
        directory = Path(name)
        texts = (text(number, has_findings=has_findings) for number in range(rows))
        write_rows(directory / "rows.jsonl", texts)
        spec = {
            "name": "privacy",
            "source": {"uri": f"{directory}/rows.jsonl", "key": ["id"]},
            "prompt": {"template": "Say it: {{ row.text }}"},
            "model": {"type": "echo"},
            "sink": {"uri": f"{directory}/out"},
            **({"safety": {"privacy": {}}} if is_masked else {}),
        }
        (directory / "spec.json").write_text(json.dumps(spec))
        return cost_of(["-m", "airflow_provider_llmbeam.pipeline", f"--spec={directory}/spec.json"]).cpu_seconds


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
