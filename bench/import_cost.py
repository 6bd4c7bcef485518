"""Measures the cost of importing our operators in a Dag file: `python -m bench.import_cost [--runs 5]`.

Prints the CPU seconds of importing `airflow.sdk`, of importing every operator, sensor, trigger and link on top of
it, and the ratio of the two: the best of several new processes. The target is 0.2 s. The tests count function
calls instead, whose number is the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import subprocess
import sys

import airflow_provider_llmbeam

PARSED = ("operators", "sensors", "triggers", "links", "provider_info")

_CODE = """
import importlib, json, sys, time
begun = time.process_time()
import airflow.sdk
airflow_at = time.process_time()
for name in json.loads(sys.argv[1]): importlib.import_module(name)
print(json.dumps([airflow_at - begun, time.process_time() - airflow_at]))
"""


def main() -> None:
    """Measures and prints the import cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="processes to measure (default: 5)")
    runs = parser.parse_args().runs
    found = pkgutil.walk_packages(airflow_provider_llmbeam.__path__, "airflow_provider_llmbeam.")
    names = [each.name for each in found if each.name.split(".")[1] in PARSED]
    measured = [_seconds(names) for _ in range(runs)]
    airflow, ours = (min(each) for each in zip(*measured, strict=True))
    sys.stdout.write(f"airflow.sdk {airflow:.2f} s of CPU; ours on top {ours:.2f} s, {ours / airflow:.0%} of it\n")


def _seconds(names: list[str]) -> tuple[float, float]:
    command = [sys.executable, "-c", _CODE, json.dumps(names)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    airflow, ours = json.loads(ended.stdout.splitlines()[-1])
    return airflow, ours


if __name__ == "__main__":
    main()
