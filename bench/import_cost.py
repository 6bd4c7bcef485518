"""Measures the cost of importing our operators in a Dag file: `python -m bench.import_cost [--runs 5]`.

Prints the CPU seconds of importing `airflow.sdk`, the additional CPU seconds of importing every operator, sensor,
trigger and link, and the ratio of the two. Each time is the minimum over several new processes. The target is
0.2 s. The tests count function calls instead, because their number is the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import subprocess
import sys

import airflow_provider_llmbeam

IMPORTED_SUBPACKAGES = ("operators", "sensors", "triggers", "links", "provider_info")

_CODE = """
import importlib, json, sys, time
started_at = time.process_time()
import airflow.sdk
imported_at = time.process_time()
for name in json.loads(sys.argv[1]): importlib.import_module(name)
print(json.dumps([imported_at - started_at, time.process_time() - imported_at]))
"""


def main() -> None:
    """Measures and prints the import cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=int, default=5, metavar="N", help="number of processes to measure (default: 5)"
    )
    runs = parser.parse_args().runs
    modules = pkgutil.walk_packages(airflow_provider_llmbeam.__path__, "airflow_provider_llmbeam.")
    names = [module.name for module in modules if module.name.split(".")[1] in IMPORTED_SUBPACKAGES]
    measured = [_seconds(names) for _ in range(runs)]
    airflow, ours = (min(seconds) for seconds in zip(*measured, strict=True))
    sys.stdout.write(
        f"airflow.sdk: {airflow:.2f} CPU seconds; our modules add {ours:.2f} s, {ours / airflow:.0%} of that\n"
    )


def _seconds(names: list[str]) -> tuple[float, float]:
    command = [sys.executable, "-c", _CODE, json.dumps(names)]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    airflow, ours = json.loads(completed.stdout.splitlines()[-1])
    return airflow, ours


if __name__ == "__main__":
    main()
