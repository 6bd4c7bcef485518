"""Compares the cost of prompts online, by flex and by batch inference: `python -m bench.costs [--rows 10000]`.

The prompts are docstrings of the installed packages, each a different one. Every job runs in a process of its own
against the sandbox, whose batch inference returns the results in random order. Prints, for each provider and way,
the rows that have an answer, the answers that the sandbox has billed, the cost in the report of the job and on the
bill of the sandbox, and its ratio to the online cost.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from sysconfig import get_paths
from typing import Any

from llmbeam_sandbox import Proxy, Sandbox

from bench.machine import speed
from bench.rows import write_rows

MAX_CHARACTERS = 2000
HEAD = "Judge the text by these rules. " + "Rule: say what the text is about, in one word. " * 500
PRICE = {
    "input_usd_per_million_tokens": 0.30,
    "output_usd_per_million_tokens": 2.50,
    "cached_input_usd_per_million_tokens": 0.03,
}
#: What differs between the ways; the first one is that to which the others are compared.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "online": {"prefix_cache": False},
    "flex": {"service_tier": "flex", "prefix_cache": False},
    "batch": {"mode": "batch", "prefix_cache": False},
}
WAYS_WITH_HEAD: Mapping[str, Mapping[str, Any]] = {
    "online": {"prefix_cache": False},
    "prefix cache": {},
    "flex, prefix cache": {"service_tier": "flex"},
}


@dataclass(frozen=True)
class Cost:
    """Cost of one job.

    Attributes:
        answered: Rows that have an answer.
        billed: Answers on the bill of the sandbox.
        reported_usd: Cost in the report of the job, in US dollars.
        billed_usd: The same on the bill of the sandbox.
    """

    answered: int
    billed: int
    reported_usd: float
    billed_usd: float


def main() -> None:
    """Runs the jobs and prints their costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000, metavar="N", help="number of prompts (default: 10000)")
    rows = parser.parse_args().rows
    _print(f"{os.cpu_count()} cores, {speed()}; {rows:,} prompts")
    with tempfile.TemporaryDirectory(prefix="llmbeam-bench-") as directory:
        source = Path(directory, "rows.jsonl")
        write_prompts(source, rows)
        for provider in ("developer", "vertex", "openai"):
            _compare(provider, "", WAYS, source)
        for provider in ("developer", "vertex"):
            _compare(provider, HEAD, WAYS_WITH_HEAD, source)


def write_prompts(target: Path, rows: int) -> None:
    """Writes different docstrings of the installed packages as rows with `id` and `text`.

    Raises:
        ValueError: There are fewer.
    """
    found: dict[str, None] = {}
    for text in docstrings(Path(get_paths()["purelib"])):
        found[text[:MAX_CHARACTERS]] = None
        if len(found) == rows:
            break
    else:
        raise ValueError(f"The installed packages have {len(found):,} different docstrings; expected {rows:,}.")
    write_rows(target, found)


def docstrings(folder: Path) -> Iterator[str]:
    """Yields the docstrings of a folder of packages, in the order of their files."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(folder.rglob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                yield text


def cost_of(provider: str, template: str, inference: Mapping[str, Any], source: Path) -> Cost:
    """Runs a job against a sandbox of its own."""
    with Sandbox(buckets=("rows",)) as sandbox, Proxy(sandbox) as proxy, tempfile.TemporaryDirectory() as home:
        models = {
            "developer": {"type": "gemini", "base_url": sandbox.gemini_url},
            "vertex": {"type": "gemini", "base_url": sandbox.gemini_url, "project": proxy.project},
            "openai": {"type": "openai", "name": "gpt-5-mini"},
        }
        spec = {
            "name": "costs",
            "source": {"uri": str(source), "key": ["id"]},
            "prompt": {"template": template + "{{ row.text }}"},
            "model": models[provider],
            "generation": {"max_output_tokens": 100},
            "limits": {"price": PRICE},
            "inference": dict(inference),
            "sink": {"uri": "gs://rows/out" if provider == "vertex" else f"{home}/out"},
        }
        Path(home, "spec.json").write_text(json.dumps(spec))
        ended = subprocess.run(
            [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", f"--spec={home}/spec.json"],
            env={**os.environ, **proxy.environment(), "OPENAI_API_KEY": "k"},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        manifest = json.loads(ended.stdout)
        bill = sandbox.token_bill
        return Cost(
            answered=manifest["rows"]["answered"],
            billed=sum(charge.answers for charge in bill.charges),
            reported_usd=manifest["cost_usd"],
            billed_usd=bill.nano_usd / 1e9,
        )


def _compare(provider: str, head: str, ways: Mapping[str, Mapping[str, Any]], source: Path) -> None:
    first: Cost | None = None
    for way, inference in ways.items():
        cost = cost_of(provider, head, inference, source)
        first = first or cost
        _print(
            f"{provider}{', long head' if head else ''}, {way}: {cost.answered:,} rows answered, "
            f"{cost.billed:,} answers billed, report ${cost.reported_usd:.6f}, bill ${cost.billed_usd:.6f}, "
            f"ratio {cost.billed_usd / first.billed_usd:.4f}"
        )


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
