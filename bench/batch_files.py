"""Measures the files of batch inference: `python -m bench.batch_files [--rows 100000 1000000]`.

Prepares the request files of distinct prompts, and harvests result files with their lines in random order: for the
Developer API, which returns the key of a request, and for Vertex AI, whose results are joined by a digest of the
request. Prints the rows per second and the memory of both steps, each in a new process with its start-up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from apache_beam import Pipeline
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from airflow_provider_llmbeam.pipeline.batch_inference.harvest import harvest
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import RequestFile, Sums
from airflow_provider_llmbeam.pipeline.batch_inference.prepare import FileLimits, prepare, read_prepared
from airflow_provider_llmbeam.pipeline.batch_inference.run import MAX_FILE_BYTES
from airflow_provider_llmbeam.spec import JobSpec
from bench.machine import speed
from bench.rows import write_rows
from bench.scale import cost_of

#: Models by provider.
MODELS = {
    "Developer API": {"type": "gemini"},
    "Vertex AI": {"type": "gemini", "project": "project"},
}
_LIMITS = FileLimits(max_rows=180_000, max_bytes=MAX_FILE_BYTES)


def main() -> None:
    """Measures and prints the figures, or runs one step of a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000], metavar="N")
    parser.add_argument("--step", choices=["prepare", "harvest"], help=argparse.SUPPRESS)
    parser.add_argument("--spec", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step is not None:
        _run(options.step, JobSpec.parse(json.loads(options.spec.read_text())))
        return
    _print(f"{os.cpu_count()} cores, {speed()}")
    for rows in options.rows:
        for provider in MODELS:
            with tempfile.TemporaryDirectory(prefix="llmbeam-bench-") as directory:
                for line in measure(rows, provider, Path(directory)):
                    _print(f"{rows:,} rows, {provider}: {line}")


def measure(rows: int, provider: str, directory: Path) -> Iterator[str]:
    """Runs both steps for distinct prompts, and yields a line of text about each.

    Args:
        rows: Number of prompts.
        provider: One of `MODELS`.
        directory: Empty directory for all files.

    Raises:
        ValueError: A row is missing in the files, or in the journal.
    """
    write_rows(directory / "rows.jsonl", (f"text {number} " * 8 for number in range(rows)))
    spec = directory / "spec.json"
    job = {
        "name": "files",
        "source": {"uri": f"{directory}/rows.jsonl", "key": ["id"]},
        "prompt": {"template": "Say it: {{ row.text }}"},
        "model": MODELS[provider],
        "sink": {"uri": f"{directory}/out"},
    }
    spec.write_text(json.dumps(job))
    parsed = JobSpec.parse(job)
    cost = cost_of(["-m", "bench.batch_files", "--step=prepare", f"--spec={spec}"])
    files = read_prepared(parsed)
    if sum(file.rows for file in files) != rows:
        raise ValueError(f"{sum(file.rows for file in files):,} of {rows:,} rows are in the request files.")
    yield f"prepared {len(files)} files in {cost}, {rows / cost.seconds:,.0f} rows/s"
    for file in files:
        _answer(file, parsed)
    cost = cost_of(["-m", "bench.batch_files", "--step=harvest", f"--spec={spec}"])
    sums = Sums.total(Sums.model_validate_json(_sums(file, parsed).read_text()) for file in files)
    if (sums.answered, sums.failed, sums.malformed) != (rows, 0, 0):
        raise ValueError(f"{sums!r} is not the sum of {rows:,} answers.")
    yield f"harvested in {cost}, {rows / cost.seconds:,.0f} rows/s"


def _run(step: str, spec: JobSpec) -> None:
    if step == "prepare":
        with Pipeline(runner=FnApiRunner()) as pipeline:
            prepare(pipeline, spec, _LIMITS)
        return
    for file in read_prepared(spec):
        with Pipeline(runner=FnApiRunner()) as pipeline:
            harvest(pipeline, spec, file, [str(_results(file, spec))], str(_sums(file, spec)), "job", since=0.0)


def _answer(file: RequestFile, spec: JobSpec) -> None:
    """Writes the results of a request file, in random order."""
    lines = Path(spec.paths.requests_uri(file.digest)).read_bytes().splitlines()
    random.Random(file.digest).shuffle(lines)
    with _results(file, spec).open("w") as results:
        for number, line in enumerate(lines):
            usage = {"promptTokenCount": 40, "candidatesTokenCount": 20, "totalTokenCount": 60}
            content = {"role": "model", "parts": [{"text": f"Answer {number}, about as long as a sentence is."}]}
            response = {"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": usage}
            request = json.loads(line)
            echoed = {"key": request["key"]} if "key" in request else {"request": request["request"], "status": ""}
            results.write(json.dumps({**echoed, "response": response}) + "\n")


def _results(file: RequestFile, spec: JobSpec) -> Path:
    return Path(f"{spec.paths.requests_uri(file.digest)}.results")


def _sums(file: RequestFile, spec: JobSpec) -> Path:
    return Path(f"{spec.paths.requests_uri(file.digest)}.sums")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
