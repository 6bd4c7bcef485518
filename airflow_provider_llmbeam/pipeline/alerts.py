"""Alerts of a run: what raises one, that each is raised once, and the counts of a running job that are watched."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from airflow_provider_llmbeam.local_files import open_no_link
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.reporting.report import RunComparison
from airflow_provider_llmbeam.spec.alerts import Alerts
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.alert import Alert
from airflow_provider_llmbeam.spec.protocol.counts import Counts, duration, usd

_log = logging.getLogger("llmbeam")

#: Time after the first answer from which on the rate of a run says when it will end, in seconds.
SETTLED_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is known of a run before it starts.

    Attributes:
        job: Name of the job.
        budget_usd: Budget of the whole run; `None` for none.
        spent_usd: What batch inference has cost before.
        deadline_at: Unix time by which the answers are needed; `None` for none.
    """

    job: str
    budget_usd: float | None = None
    spent_usd: float = 0.0
    deadline_at: float | None = None


def alerts_of_counts(
    rules: Alerts, run: RunFacts, counts: Counts, first: Counts, answering_seconds: float, now: float
) -> Iterator[Alert]:
    """Yields the alerts of a run that goes on.

    Args:
        rules: What raises an alert.
        run: The run.
        counts: Its counts.
        first: Its counts when it had its first answers; rows with an equal prompt, or without one, were done then.
        answering_seconds: Time since then, in seconds.
        now: Unix time.
    """
    yield from _budget(rules, run, run.spent_usd + counts.cost_usd)
    left, asked = counts.rows - counts.done, counts.answered + counts.failed - first.answered - first.failed
    if run.deadline_at is None or not rules.deadline or not left or asked <= 0:
        return
    late = now + left * answering_seconds / asked - run.deadline_at
    if answering_seconds >= SETTLED_SECONDS and late > 0:
        message = f"At this rate the last of {left:,} rows will be answered {duration(late)} after `finish_by`."
        yield Alert(kind="deadline", message=message, value=round(late, 1), threshold=0.0, job=run.job)


def alerts_of_end(
    rules: Alerts,
    run: RunFacts,
    *,
    rows: int,
    failed: int,
    cost_usd: float | None,
    comparison: RunComparison | None,
    now: float,
) -> Iterator[Alert]:
    """Yields the alerts of a run whose last row is done.

    Args:
        rules: What raises an alert.
        run: The run.
        rows: Number of rows.
        failed: Number of failed rows.
        cost_usd: Cost of the whole run, in US dollars; `None` if it is not known.
        comparison: Comparison with earlier runs; `None` without any.
        now: Unix time.
    """
    yield from _budget(rules, run, cost_usd or 0.0)
    if rules.deadline and run.deadline_at is not None and now > run.deadline_at:
        late = now - run.deadline_at
        message = f"The run ended {duration(late)} after `finish_by`."
        yield Alert(kind="deadline", message=message, value=round(late, 1), threshold=0.0, job=run.job)
    limit = rules.failed_row_ratio
    if limit is not None and rows and failed / rows > limit:
        message = (
            f"{failed:,} of {rows:,} rows failed ({failed / rows:.1%}; `alerts.failed_row_ratio` is {limit:g})."
        )
        yield Alert(
            kind="failed_rows", message=message, value=round(failed / rows, 6), threshold=limit, job=run.job
        )
    if comparison is None:
        return
    if rules.new_model_version and comparison.new_models:
        names = ", ".join(map(repr, comparison.new_models[:3]))
        message = f"The server names a version of the model that {comparison.before} did not have: {names}."
        yield Alert(kind="model_version", message=message, job=run.job)
    if rules.on_drift != "ignore" and (drift := _drift(comparison, rules.drift_psi)) is not None:
        what, psi = drift
        message = f"{what} differ from those of {comparison.before} (PSI {psi:.2f})."
        yield Alert(kind="drift", message=message, value=psi, threshold=rules.drift_psi, job=run.job)


class RaisedAlerts:
    """Raises each alert of a run once: a warning in the log, and a line in a file that the task reads.

    What was raised is kept in the directory of the job, since Airflow deletes the XComs of a task at its next try.
    A task that is killed between the file and its notifiers loses an alert rather than repeat it.

    Args:
        spec: The job.
        path: File that the task reads; `None` for none.
    """

    def __init__(self, spec: JobSpec, path: Path | None) -> None:
        self._uri = spec.paths.alerts_uri
        self._path = path
        self._keys = self._read()

    def raise_new(self, alerts: Iterable[Alert]) -> None:
        """Raises those alerts that the run has not raised yet."""
        for alert in alerts:
            if alert.key in self._keys:
                continue
            self._keys.add(alert.key)
            self._write()
            _log.warning("Alert: %s", alert.message)
            self._hand_over(alert)

    def resolve(self, alerts: Iterable[Alert]) -> None:
        """Hands over that alerts are over, so that the next one of their kind is raised again."""
        for alert in alerts:
            self._keys.discard(alert.key)
            self._write()
            _log.warning("%s", alert.message)
            self._hand_over(alert)

    @property
    def keys(self) -> frozenset[str]:
        """Keys of the alerts that are raised."""
        return frozenset(self._keys)

    def forget(self) -> None:
        """Forgets what was raised: the run is over, and the next one of the same name raises its own."""
        try:
            storage.delete([self._uri] if storage.exists(self._uri) else [])
        except Exception as error:  # noqa: BLE001 - the job is complete
            _log.warning("The raised alerts %r could not be deleted: %s", self._uri, error)

    def _hand_over(self, alert: Alert) -> None:
        if self._path is None:
            return
        try:
            with os.fdopen(open_no_link(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a") as file:
                file.write(json.dumps(asdict(alert)) + "\n")
        except OSError as error:  # the job goes on, e.g. with a full disk
            _log.warning(
                "No notifier is called for this alert: %r could not be written: %s", str(self._path), error
            )

    def _read(self) -> set[str]:
        try:
            return set(json.loads(storage.read(self._uri))) if storage.exists(self._uri) else set()
        except Exception as error:  # noqa: BLE001 - an alert that is repeated is better than none
            _log.warning("The raised alerts %r could not be read, and may be repeated: %s", self._uri, error)
            return set()

    def _write(self) -> None:
        try:
            storage.make_private(self._uri.rpartition("/")[0])
            storage.replace(self._uri, json.dumps(sorted(self._keys)).encode())
        except Exception as error:  # noqa: BLE001 - the job goes on
            _log.warning("The raised alerts %r could not be written, and may be repeated: %s", self._uri, error)


def watch_for_alerts(rules: Alerts, run: RunFacts, raised: RaisedAlerts) -> Callable[[Counts], None]:
    """Returns a function that raises the alerts of the counts that it is called with."""
    first: tuple[Counts, float] | None = None

    def watch(counts: Counts) -> None:
        nonlocal first
        now = time.time()
        if first is None and counts.answered:
            first = counts, now
        then, first_at = first or (counts, now)
        raised.raise_new(alerts_of_counts(rules, run, counts, then, now - first_at, now))

    return watch


def _budget(rules: Alerts, run: RunFacts, cost_usd: float) -> Iterator[Alert]:
    if not run.budget_usd:
        return
    ratio = cost_usd / run.budget_usd
    reached = [each for each in rules.budget_ratios if ratio >= each]
    if reached:  # a run that jumps over several ratios is one piece of news
        message = f"The answers have cost {usd(cost_usd)}, {ratio:.0%} of the budget of {usd(run.budget_usd)}."
        yield Alert(kind="budget", message=message, value=round(ratio, 4), threshold=max(reached), job=run.job)


def _drift(comparison: RunComparison, least: float) -> tuple[str, float] | None:
    """Returns what has drifted most, and its index; an index that chance alone may give is none."""
    indexes = [("The lengths of the answers", comparison.lengths_psi, comparison.lengths_psi_expected)]
    indexes += [(f"The labels of {each.field!r}", each.psi, each.psi_expected) for each in comparison.labels]
    found = [
        (what, psi) for what, psi, chance in indexes if psi is not None and psi >= max(least, 3 * (chance or 0))
    ]
    return max(found, key=lambda each: each[1], default=None)
