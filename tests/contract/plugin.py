"""Checks each exchange of every test with a sandbox, and fails the test that made one which deviates."""

from __future__ import annotations

from collections import Counter, deque

import pytest

from tests.contract.exchanges import Exchange, Recorder

_waiting: deque[Exchange] = deque()
_totals: Counter[str] = Counter()
_methods: set[str] = set()
# Checked at the end of a test and in its thread, so that the sandbox answers as fast as without.
Recorder(_waiting.append).install()


def deviations() -> list[str]:
    """Checks the exchanges since the last call; returns each deviation once, with its number."""
    from tests.contract.checker import CHECKER

    found: Counter[str] = Counter()
    while _waiting:
        found.update(CHECKER.check(_waiting.popleft()))
    return [f"{number} × {fault}" for fault, number in found.items()]


@pytest.fixture(autouse=True)
def published_definitions():
    """Fails a test whose exchanges with a sandbox deviate from the published definitions."""
    yield
    if _waiting and (found := deviations()):
        pytest.fail(
            "The exchanges of this test deviate from the published definitions. Correct the product or the "
            "emulator, or list the deviation in tests/contract/deviations.py:\n" + "\n".join(found),
            pytrace=False,
        )


def pytest_sessionfinish(session):
    """Hands the numbers of a worker of pytest-xdist to the process that reports."""
    import sys

    checker = sys.modules.get("tests.contract.checker")
    if checker is not None:
        one = checker.CHECKER
        _totals.update(exchanges=one.exchanges, undefined=one.undefined, validated=one.validated)
        _methods.update(one.methods)
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["contract"] = (dict(_totals), sorted(_methods))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Adds the numbers of a worker."""
    totals, methods = getattr(node, "workeroutput", {}).get("contract", ({}, ()))
    _totals.update(totals)
    _methods.update(methods)


def pytest_terminal_summary(terminalreporter):
    """Prints how much was checked."""
    if _totals["exchanges"]:
        terminalreporter.write_line(
            f"contract: {_totals['exchanges']} exchanges of {len(_methods)} methods checked against published "
            f"definitions, {_totals['undefined']} without a definition; {_totals['validated']} distinct messages"
        )
