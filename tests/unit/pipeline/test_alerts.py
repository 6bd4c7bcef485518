"""What raises an alert, and that each alert of a run is raised once, over all its tries."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline import alerts
from airflow_provider_llmbeam.pipeline.alerts import (
    SETTLED_SECONDS,
    RaisedAlerts,
    RunFacts,
    alerts_of_counts,
    alerts_of_end,
    watch_for_alerts,
)
from airflow_provider_llmbeam.pipeline.reporting.report import LabelDrift, RunComparison
from airflow_provider_llmbeam.spec import Alerts, JobSpec
from airflow_provider_llmbeam.spec.protocol.alert import Alert
from airflow_provider_llmbeam.spec.protocol.counts import NANO, Counts

NOW = 1_000_000.0


def running(rules: Alerts | None = None, answering_seconds: float = SETTLED_SECONDS, **run: Any) -> list[Any]:
    counts = run.pop("counts", Counts(rows=1000, answered=100))
    first = run.pop("first", Counts())
    facts = RunFacts(job="nightly", **run)
    return list(alerts_of_counts(rules or Alerts(), facts, counts, first, answering_seconds, NOW))


def ended(rules: Alerts | None = None, **facts: Any) -> list[Any]:
    run = RunFacts(
        job="nightly", budget_usd=facts.pop("budget_usd", None), deadline_at=facts.pop("deadline_at", None)
    )
    known = {"rows": 100, "failed": 0, "cost_usd": 1.0, "comparison": None, "now": NOW} | facts
    return list(alerts_of_end(rules or Alerts(), run, **known))


def comparison(**changes: Any) -> RunComparison:
    values: dict[str, Any] = {
        "runs": 7, "last_run": "before", "last_finished_at": 1.0, "figures": {}, "failed_ratio_difference": 0.0,
        "lengths_psi": 0.01, "lengths_psi_expected": 0.01, "labels": [], "new_models": [], "changes": [],
    }  # fmt: skip
    return RunComparison(**(values | changes))


def labels(psi: float, expected: float = 0.01) -> LabelDrift:
    return LabelDrift(
        field="mood", now={"good": 1}, before={"bad": 1}, psi=psi, psi_expected=expected,
    )  # fmt: skip


def spent(usd: float) -> Counts:
    return Counts(rows=1000, answered=100, cost_nano_usd=round(usd * NANO))


def test_a_budget_is_named_with_the_highest_ratio_that_its_cost_has_reached():
    assert running(budget_usd=10.0, counts=spent(4.99)) == []
    (half,) = running(budget_usd=10.0, counts=spent(5.0))
    assert (half.key, half.value) == ("budget 0.5", 0.5)
    assert half.message == "The answers have cost $5.00, 50% of the budget of $10.00."
    (most,) = running(budget_usd=10.0, counts=spent(9.0))
    assert most.threshold == 0.8


def test_what_batch_inference_has_cost_before_counts():
    (alert,) = running(budget_usd=10.0, spent_usd=4.0, counts=spent(1.0))
    assert alert.value == 0.5


def test_without_a_budget_or_without_ratios_there_is_no_alert():
    assert running(counts=spent(100.0)) == []
    assert running(Alerts(budget_ratios=()), budget_usd=1.0, counts=spent(100.0)) == []


@given(costs=st.lists(st.floats(0, 30), max_size=20), ratios=st.lists(st.floats(0.01, 2), max_size=5))
def test_an_alert_of_a_budget_is_raised_at_most_once_for_each_ratio(costs, ratios):
    rules = Alerts(budget_ratios=tuple(ratios))
    keys = [each.key for cost in sorted(costs) for each in running(rules, budget_usd=10.0, counts=spent(cost))]
    assert keys == sorted(keys, key=lambda key: float(key.split()[1])), "a dearer run reaches no lower ratio"
    assert len(set(keys)) <= len(set(ratios))


def test_a_rate_that_is_too_low_for_the_deadline_raises_an_alert():
    # 100 of 1,000 rows in 120 s: the other 900 take 1,080 s.
    assert running(deadline_at=NOW + 1080) == []
    (alert,) = running(deadline_at=NOW + 1000)
    assert alert.message == "At this rate the last of 900 rows will be answered 1 min 20 s after `finish_by`."
    assert alert.value == 80.0


@pytest.mark.parametrize(
    "change",
    [
        {"answering_seconds": SETTLED_SECONDS - 1},
        {"rules": Alerts(deadline=False)},
        {"counts": Counts(rows=1000)},
        {"counts": Counts(rows=1000, resumed=100)},
        {"counts": Counts(rows=1000, answered=1000)},
        {"deadline_at": None},
    ],
)
def test_a_rate_that_is_not_known_or_not_asked_about_raises_none(change):
    assert running(**({"deadline_at": NOW + 1000} | change)) == []


def test_answers_of_an_earlier_try_say_nothing_about_the_rate():
    counts = Counts(rows=1000, resumed=500, answered=100)
    (alert,) = running(deadline_at=NOW + 400, counts=counts)
    assert alert.value == 80.0, "400 rows at 100 in 120 s"


def test_rows_that_were_done_before_the_first_answer_say_nothing_about_the_rate():
    """A job of which nine in ten rows had equal prompts was told that it was late when it was."""
    first = Counts(rows=1000, duplicates=400, failed=90, answered=10)
    counts = Counts(rows=1000, duplicates=400, failed=100, answered=100)
    (alert,) = running(deadline_at=NOW + 400, counts=counts, first=first)
    assert alert.value == 80.0, "400 rows at 100 in 120 s"


def test_an_end_after_the_deadline_raises_an_alert():
    assert ended(deadline_at=NOW) == []
    (alert,) = ended(deadline_at=NOW - 90)
    assert alert.message == "The run ended 1 min 30 s after `finish_by`."
    assert ended(Alerts(deadline=False), deadline_at=NOW - 90) == []


def test_failed_rows_raise_an_alert_where_a_ratio_is_given():
    assert ended(failed=100) == []
    assert ended(Alerts(failed_row_ratio=0.05), failed=5) == []
    assert ended(Alerts(failed_row_ratio=0.0), rows=0) == []
    (alert,) = ended(Alerts(failed_row_ratio=0.05), failed=6)
    assert alert.message == "6 of 100 rows failed (6.0%; `alerts.failed_row_ratio` is 0.05)."


def test_a_new_version_of_the_model_raises_an_alert():
    new = comparison(new_models=["gemini-2.5-flash-002"])
    (alert,) = ended(comparison=new)
    assert alert.message.endswith("the last 7 runs did not have: 'gemini-2.5-flash-002'.")
    assert ended(Alerts(new_model_version=False), comparison=new) == []


def test_the_largest_drift_of_labels_and_lengths_raises_one_alert():
    drifted = comparison(labels=[labels(0.3), labels(0.4)], lengths_psi=0.35)
    (alert,) = ended(comparison=drifted)
    assert (alert.kind, alert.value, alert.threshold) == ("drift", 0.4, 0.25)
    assert alert.message == "The labels of 'mood' differ from those of the last 7 runs (PSI 0.40)."
    assert ended(Alerts(on_drift="ignore"), comparison=drifted) == []
    assert ended(Alerts(drift_psi=0.5), comparison=drifted) == []


@pytest.mark.parametrize("index", [None, 0.29])
def test_a_difference_that_chance_may_give_is_no_drift(index):
    assert ended(comparison=comparison(lengths_psi=index, lengths_psi_expected=0.1)) == []


def test_the_cost_of_an_ended_run_counts_and_an_unknown_one_does_not():
    assert [alert.key for alert in ended(budget_usd=1.0)] == ["budget 1"]
    assert ended(budget_usd=1.0, cost_usd=None) == []


HALF = Alert(kind="budget", message="half", value=0.5, threshold=0.5, job="job")
DRIFT = Alert(kind="drift", message="drift", value=0.5, threshold=0.25, job="job")


@pytest.fixture
def spec(job, tmp_path) -> JobSpec:
    return job(sink={"uri": str(tmp_path / "out")})


def lines(path: Path) -> list[Alert]:
    return [Alert.from_json(line) for line in path.read_text().splitlines()]


def test_an_alert_is_a_warning_and_a_line_and_is_not_repeated_by_the_next_try(spec, tmp_path, caplog):
    for path in (tmp_path / "first", tmp_path / "second"):
        raised = RaisedAlerts(spec, path)
        raised.raise_new([HALF, HALF])
    assert lines(tmp_path / "first") == [HALF]
    assert not (tmp_path / "second").exists()
    assert [record.message for record in caplog.records] == ["Alert: half"]
    raised.raise_new([HALF, DRIFT])
    assert lines(tmp_path / "second") == [DRIFT]
    assert stat.S_IMODE(Path(spec.paths.alerts_uri).parent.stat().st_mode) == 0o700


def test_the_next_run_of_the_same_name_raises_its_own(spec, tmp_path):
    raised = RaisedAlerts(spec, None)
    raised.raise_new([HALF])
    raised.forget()
    assert not Path(spec.paths.alerts_uri).exists()
    RaisedAlerts(spec, tmp_path / "next").raise_new([HALF])
    assert lines(tmp_path / "next") == [HALF]


@pytest.mark.parametrize("content", ["", "[", "1"])
def test_a_torn_file_repeats_an_alert_and_fails_nothing(spec, tmp_path, content, caplog):
    Path(spec.paths.alerts_uri).parent.mkdir(parents=True)
    Path(spec.paths.alerts_uri).write_text(content)
    RaisedAlerts(spec, tmp_path / "alerts").raise_new([HALF])
    assert lines(tmp_path / "alerts") == [HALF]
    assert "could not be read" in caplog.text


def test_a_directory_that_cannot_be_written_fails_nothing(spec, tmp_path, caplog):
    Path(spec.paths.alerts_uri).parent.parent.parent.mkdir(parents=True)
    Path(spec.paths.alerts_uri).parent.parent.write_text("a file where the directory would be")
    raised = RaisedAlerts(spec, tmp_path / "alerts")
    raised.raise_new([HALF])
    raised.forget()
    assert lines(tmp_path / "alerts") == [HALF]
    assert "could not be written" in caplog.text


def test_the_counts_of_a_running_job_raise_alerts(spec, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    watch = watch_for_alerts(Alerts(), RunFacts(job="job", budget_usd=1.0), RaisedAlerts(spec, None))
    for cost in (0.1, 0.5, 0.6, 0.9):
        watch(Counts(rows=10, answered=1, cost_nano_usd=round(cost * NANO)))
    assert [record.message for record in caplog.records] == [
        "Alert: The answers have cost $0.50, 50% of the budget of $1.00.",
        "Alert: The answers have cost $0.90, 90% of the budget of $1.00.",
    ]
    assert json.loads(Path(spec.paths.alerts_uri).read_text()) == ["budget 0.5", "budget 0.8"]


def test_a_full_disk_of_the_worker_fails_nothing_and_leaves_the_alert_in_the_log(spec, tmp_path, caplog):
    (tmp_path / "alerts").mkdir()  # opening it fails as writing to a full disk does, with an OSError
    RaisedAlerts(spec, tmp_path / "alerts").raise_new([HALF])
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "Alert",
        "No notifier is called for this alert",
    ]


def test_the_rate_is_that_since_the_first_answer(spec, monkeypatch, caplog):
    clock = [1_000_000.0]
    monkeypatch.setattr(alerts.time, "time", lambda: clock[0])
    run = RunFacts(job="job", deadline_at=clock[0] + 3600)
    watch = watch_for_alerts(Alerts(), run, RaisedAlerts(spec, None))
    for seconds, answered in ((0, 0), (600, 0), (610, 1), (720, 10)):
        clock[0] = 1_000_000.0 + seconds
        watch(Counts(rows=10_000, duplicates=9_000, answered=answered))
    assert caplog.text == "", "less than two minutes since the first answer"
    clock[0] += 11
    watch(Counts(rows=10_000, duplicates=9_000, answered=11))
    # 989 rows at 10 in 121 s
    assert "At this rate the last of 989 rows will be answered 2 h 31 min after `finish_by`." in caplog.text
