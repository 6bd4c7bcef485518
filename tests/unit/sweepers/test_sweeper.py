"""The order of a sweep, and what it does with errors and with what is not removed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider_llmbeam.exceptions import CloudUnavailableError
from airflow_provider_llmbeam.sweepers.sweeper import Leftover, Reason, Sweep, SweepManifest

pytestmark = pytest.mark.promise(3)


def leftover(name: str, calls: list[str], returns: Reason | Exception | None = None, **fields: Any) -> Leftover:
    """Returns something that is due, whose calls are recorded."""

    def remove() -> Reason | None:
        calls.append(f"remove {name}")
        if isinstance(returns, Exception):
            raise returns
        return returns

    return Leftover(names=(name,), remove=remove, **fields)


def swept(*due: Leftover, dry_run: bool = False) -> SweepManifest:
    return Sweep(logging.getLogger(), dry_run=dry_run).run([lambda sweep: due])


def test_jobs_are_cancelled_before_a_removal_is_requested_and_each_is_requested_before_one_is_waited_for() -> None:
    calls: list[str] = []
    request: Callable[[str], Callable[[], None]] = lambda name: lambda: calls.append(f"request {name}")  # noqa: E731
    things = [leftover(name, calls, request=request(name)) for name in ("a", "b")]
    manifest = swept(*things, leftover("job", calls, is_job=True), leftover("file", calls))
    assert calls == ["remove job", "request a", "request b", "remove a", "remove b", "remove file"]
    assert (manifest.cancelled, manifest.deleted) == (["job"], ["a", "b", "file"])


def test_what_is_kept_is_named_and_what_somebody_else_has_removed_is_not() -> None:
    manifest = swept(leftover("a", [], "kept"), leftover("b", [], "gone"), leftover("c", [], "gone", is_job=True))
    assert manifest == SweepManifest(kept=["a"])


def test_an_error_of_any_kind_stops_neither_the_rest_of_its_source_nor_another(caplog) -> None:
    def fail() -> None:
        raise CloudUnavailableError("503.")

    def broken(sweep: Sweep) -> Iterator[Leftover]:
        yield leftover("a", [], ZeroDivisionError("x"), failure="A may be left:")
        yield leftover("b", [], request=fail)
        raise CloudUnavailableError("No list.")

    manifest = Sweep(logging.getLogger(), dry_run=False).run([broken, lambda sweep: [leftover("c", [])]])
    assert manifest.deleted == ["b", "c"]
    assert manifest.failed == ["No list.", "A may be left: ZeroDivisionError: x"]
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == manifest.failed


def test_a_dry_run_names_what_is_due_and_calls_nothing() -> None:
    calls: list[str] = []
    manifest = swept(leftover("a", calls), leftover("job", calls, is_job=True), dry_run=True)
    assert (manifest.cancelled, manifest.deleted, calls) == (["job"], ["a"], [])
