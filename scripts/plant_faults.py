"""Plants each fault of `tests/planted_faults.py` in a copy of the tree, and runs the tests that have to fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.planted_faults import PACKAGE, PLANTED_FAULTS, PlantedFault  # noqa: E402


def main(arguments: Sequence[str]) -> int:
    """Plants the faults that the arguments name, all by default; returns the exit status.

    Raises:
        SystemExit: There is no fault of a name.
    """
    names = arguments or list(PLANTED_FAULTS)
    if unknown := set(names) - PLANTED_FAULTS.keys():
        raise SystemExit(
            f"scripts/plant-faults: there is no fault {sorted(unknown)}; tests/planted_faults.py has all."
        )
    unseen = []
    for name in names:
        fault = PLANTED_FAULTS[name]
        with planted(fault) as tree:
            failed = first_failure(fault, tree)
        print(f"{fault.area:<10} {name:<34} {failed or 'NOT SEEN'}", flush=True)
        unseen += [] if failed else [name]
    print(f"{len(names) - len(unseen)} of {len(names)} faults are seen.")
    return 1 if unseen else 0


@contextmanager
def planted(fault: PlantedFault) -> Iterator[Path]:
    """Copies the tree, and plants a fault in the copy."""
    with tempfile.TemporaryDirectory(prefix="llmbeam-fault-") as folder:
        tree = Path(folder)
        for name in ("airflow_provider_llmbeam", "bench", "dags", "docs", "scripts", "tests"):
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "_build"))
        for path in ROOT.glob("*.*"):
            if path.is_file():
                shutil.copy(path, tree)
        (tree / ".venv").symlink_to(ROOT / ".venv")
        broken = tree / PACKAGE / fault.file
        broken.write_text(broken.read_text().replace(fault.old, fault.new))
        yield tree


def first_failure(fault: PlantedFault, tree: Path) -> str | None:
    """Returns the first test of the loop that fails; `None` if all pass."""
    options = ["-n", "0", "-x", "-rfE", "--no-header", "-m", "not full"]
    ended = subprocess.run(
        [".venv/bin/python", "-m", "pytest", *options, *fault.tests],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode not in (0, 1):
        raise SystemExit(
            f"scripts/plant-faults: pytest exited with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
        )
    found = re.search(r"^(?:FAILED|ERROR) (tests.*?)(?: - |$)", ended.stdout, re.MULTILINE)
    return found and found[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
