"""Command line of the verdict."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path

from bench.machine import facts
from bench.verdict import __doc__ as description
from bench.verdict.cases import Case, EndpointCase, digest_of, make_endpoint_plan, make_plan
from bench.verdict.checker import check, paid_again
from bench.verdict.gpu import record_endpoints
from bench.verdict.history import History
from bench.verdict.page import verdict_of, write_page
from bench.verdict.record import record

PAGE = Path("docs/evidence/verdict.md")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the cases of a seed and judges their histories.

    Returns:
        0, or 1 if a history does not keep what it has to.
    """
    options = _parser().parse_args(arguments)
    prism = str(options.prism or "")
    plan = [case for case in make_plan(options.seed) if prism or case.runner != "prism"]
    plan = [case for case in plan if options.cases in case.name]
    endpoints = [case for case in make_endpoint_plan(options.seed) if options.cases in case.name]
    began_at = time.monotonic()
    histories = options.out / "histories"
    histories.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="llmbeam-verdict-") as home:
        found = _run(plan, endpoints, Path(home), prism, options.at_once)
    for history in found:
        (histories / f"{history.case}.json").write_text(json.dumps(history.fields(), indent=1) + "\n")
    plan_digest, verdict = digest_of([*plan, *endpoints]), verdict_of(found)
    _print(f"plan {plan_digest} of seed {options.seed}, verdict {verdict.digest}, {len(found)} cases")
    for line in verdict.lines:
        _print(line)
    if options.page:
        write_page(PAGE, options.seed, plan_digest, found, facts(()), time.monotonic() - began_at)
    return int(not verdict.is_passed)


def _run(
    plan: Sequence[Case], endpoints: Sequence[EndpointCase], home: Path, prism: str, at_once: int
) -> list[History]:
    from tests.postgres_server import postgres_server

    with postgres_server() as dsn, ThreadPoolExecutor(at_once) as pool:
        of_endpoints = pool.submit(record_endpoints, endpoints, home) if endpoints else None
        found = list(pool.map(partial(_record, home=home, dsn=dsn, prism=prism), plan))
        return [*found, *(of_endpoints.result() if of_endpoints else ())]


def _record(case: Case, home: Path, dsn: str, prism: str) -> History:
    directory = home / case.name
    directory.mkdir()
    history = record(case, directory, dsn, prism)
    rules = Counter(violation.rule for violation in check(history))
    kept = "; ".join(f"{rule} × {count}" for rule, count in rules.items()) or "kept"
    seconds = history.ended_at - history.began_at
    _print(f"{case.name}: {len(history.kills)} kills, {paid_again(history)} paid again, {seconds:.1f} s: {kept}")
    return history


def _prism_of_cache() -> Path | None:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    binary = home / f"llmbeam/prism-{version('apache-beam')}/prism"
    return binary if binary.is_file() else None


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench verdict",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the plan (default: 1)")
    parser.add_argument(
        "--cases", default="", metavar="TEXT", help="run only cases with this in their name, e.g. process-gemini"
    )
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="cases at the same time (default: 2)")
    parser.add_argument(
        "--prism",
        type=Path,
        default=_prism_of_cache(),
        metavar="BINARY",
        help="binary of Prism (default: that of scripts/build-prism; without one its cases are left out)",
    )
    parser.add_argument("--page", action="store_true", help=f"write {PAGE}")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bench/results/verdict"),
        metavar="DIRECTORY",
        help="folder of the histories",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
