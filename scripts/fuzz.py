"""Runs each property that is marked `fuzz` again and again, with other seeds, until the time is over.

Prints the number of examples per property, and each failing example with the way to reproduce it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PROFILE = "llmbeam-fuzz"
TESTS = Path(__file__).resolve().parent.parent / "tests"


class Fuzzing:
    """A pytest plugin that repeats the selected tests.

    Args:
        seconds: Time, in seconds. The property that then runs is completed.
        clock: Clock, in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._rounds = 0
        self._examples: Counter[str] = Counter()
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._failed: dict[str, None] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs round after round; a property that has failed is not run again."""
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        deadline = self._clock() + self._seconds
        items = list(session.items)
        while items and self._clock() < deadline:
            self._rounds += 1
            for number, item in enumerate(items):
                started_at = self._clock()
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=items[(number + 1) % len(items)])
                ended_at = self._clock()
                self._spent[item.nodeid] += ended_at - started_at
                if ended_at > deadline:
                    break
            items = [item for item in items if item.nodeid not in self._failed]
        session._setupstate.teardown_exact(None)
        return True

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Counts the examples of a property."""
        from hypothesis.statistics import collector  # pytest rewrites it first

        def count(statistics: dict[str, Any]) -> None:
            phases = (value for name, value in statistics.items() if name.endswith("-phase"))
            self._examples[item.nodeid] += sum(len(phase["test-cases"]) for phase in phases)

        with collector.with_value(count):  # type: ignore[arg-type]
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes a failure."""
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Prints the numbers, and how to see a failure again."""
        write = terminalreporter.write_line
        terminalreporter.section(f"examples in {self._rounds} rounds")
        for name, count in sorted(self._examples.items()):
            verdict = "FAILED" if name in self._failed else "ok"
            write(f"{count:>9,} {self._spent[name]:7.1f} s  {verdict:6}  {name}")
        write(f"{self._examples.total():>9,} examples of {len(self._examples)} properties")
        for name in self._failed:
            # The failing example is in `.hypothesis`, and is the first that the next run tries.
            write(f"Again: scripts/test -n 0 {name!r}")


def main() -> int:
    """Fuzzes.

    Returns:
        0, or 1 if a property failed.
    """
    parser = argparse.ArgumentParser(
        prog="scripts/fuzz", description=__doc__, epilog="Other arguments go to pytest: scripts/fuzz 1 -k journal"
    )
    parser.add_argument("minutes", type=float, nargs="?", default=10.0, help="duration in minutes (default: 10)")
    options, rest = parser.parse_known_args()
    # Importing all others would take half a minute.
    modules = [str(path) for path in sorted(TESTS.rglob("test_*.py")) if "pytest.mark.fuzz" in path.read_text()]
    arguments = ["-m", "fuzz", f"--hypothesis-profile={PROFILE}", "-n", "0", "-o", "timeout=3600", *modules]
    return int(bool(pytest.main([*arguments, *rest], plugins=[Fuzzing(60 * options.minutes)])))


if __name__ == "__main__":
    sys.exit(main())
