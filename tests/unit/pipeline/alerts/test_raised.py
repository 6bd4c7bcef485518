"""Each alert of a run is raised once, over all its tries."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path

import pytest

from airflow_provider_llmbeam.pipeline.alerts import watch as watch_module
from airflow_provider_llmbeam.pipeline.alerts.decide import RunFacts
from airflow_provider_llmbeam.pipeline.alerts.raised import RaisedAlerts
from airflow_provider_llmbeam.pipeline.alerts.watch import watched_by
from airflow_provider_llmbeam.spec import Alerts, JobSpec
from airflow_provider_llmbeam.spec.protocol.alert import Alert
from airflow_provider_llmbeam.spec.protocol.counts import NANO, Counts

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
    watch = watched_by(Alerts(), RunFacts(job="job", budget_usd=1.0), RaisedAlerts(spec, None))
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
    monkeypatch.setattr(watch_module.time, "time", lambda: clock[0])
    run = RunFacts(job="job", deadline_at=clock[0] + 3600)
    watch = watched_by(Alerts(), run, RaisedAlerts(spec, None))
    for seconds, answered in ((0, 0), (600, 0), (610, 1), (720, 10)):
        clock[0] = 1_000_000.0 + seconds
        watch(Counts(rows=10_000, duplicates=9_000, answered=answered))
    assert caplog.text == "", "less than two minutes since the first answer"
    clock[0] += 11
    watch(Counts(rows=10_000, duplicates=9_000, answered=11))
    # 989 rows at 10 in 121 s
    assert "At this rate the last of 989 rows will be answered 2 h 31 min after `finish_by`." in caplog.text
