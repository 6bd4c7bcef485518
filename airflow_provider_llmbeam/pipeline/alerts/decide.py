"""What raises an alert. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_llmbeam.pipeline.reporting.comparison import Comparison
from airflow_provider_llmbeam.spec.alerts import Alerts
from airflow_provider_llmbeam.spec.protocol.alert import Alert
from airflow_provider_llmbeam.spec.protocol.counts import Counts, duration, usd

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
    comparison: Comparison | None,
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


def _budget(rules: Alerts, run: RunFacts, cost_usd: float) -> Iterator[Alert]:
    if not run.budget_usd:
        return
    ratio = cost_usd / run.budget_usd
    reached = [each for each in rules.budget_ratios if ratio >= each]
    if reached:  # a run that jumps over several ratios is one piece of news
        message = f"The answers have cost {usd(cost_usd)}, {ratio:.0%} of the budget of {usd(run.budget_usd)}."
        yield Alert(kind="budget", message=message, value=round(ratio, 4), threshold=max(reached), job=run.job)


def _drift(comparison: Comparison, least: float) -> tuple[str, float] | None:
    """Returns what has drifted most, and its index; an index that chance alone may give is none."""
    indexes = [("The lengths of the answers", comparison.lengths_psi, comparison.lengths_psi_expected)]
    indexes += [(f"The labels of {each.field!r}", each.psi, each.psi_expected) for each in comparison.labels]
    found = [
        (what, psi) for what, psi, chance in indexes if psi is not None and psi >= max(least, 3 * (chance or 0))
    ]
    return max(found, key=lambda each: each[1], default=None)
