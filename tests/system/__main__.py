"""Runs a system test on a real account, once what it may cost is allowed:

    python -m tests.system                            the tests, with cost, time and needs of each
    python -m tests.system classify_csv --spend 0.01  runs one that costs at most that, in US dollars

Airflow has to be set up (`airflow db migrate`), and `google_cloud_default` has to reach the bucket of
`LLMBEAM_BUCKET`; `LLMBEAM_PROJECT` is the project. Each file is a Dag, so `airflow dags test` runs it, too.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from pathlib import Path

from tests.system.definition import SystemTest

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Lists the tests, or runs one; returns the exit status."""
    names = sorted(path.stem.removeprefix("example_") for path in HERE.glob("example_*.py"))
    parser = argparse.ArgumentParser(prog="python -m tests.system", description=__doc__)
    parser.add_argument("name", nargs="?", choices=names)
    parser.add_argument("--spend", type=float, default=0.0, metavar="USD", help="most that the run may cost")
    options = parser.parse_args()
    for name in [options.name] if options.name else names:
        test: SystemTest = importlib.import_module(f"tests.system.example_{name}").test
        print(f"{name}: at most ${test.usd:g} and {test.minutes:g} minutes. Needs {test.needs}.", flush=True)
        if options.name and options.spend >= test.usd:
            file = str(HERE / f"example_{name}.py")
            path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
            environment = {**os.environ, "PYTHONPATH": path, "AIRFLOW__CORE__DAGS_FOLDER": str(HERE)}
            command = [sys.executable, "-m", "airflow", "dags", "test", test.dag_id, "--dagfile-path", file]
            return subprocess.run(command, env=environment, check=False).returncode
    if options.name:
        print(f"Nothing was sent: --spend {test.usd:g} allows it.")
    return 2 if options.name else 0


if __name__ == "__main__":
    sys.exit(main())
