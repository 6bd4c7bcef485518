"""The alerts of a process are read while their file grows."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_llmbeam.jobs.process import AlertFile

LINE = '{"kind": "drift", "message": "%s", "value": 0.5, "threshold": 0.25, "job": "job"}\n'


@pytest.fixture
def alerts(tmp_path):
    return AlertFile(tmp_path / "alerts.jsonl", logging.getLogger("task"))


def messages(alerts):
    return [alert.message for alert in alerts.new()]


def test_each_alert_is_read_once_and_a_torn_line_when_it_is_whole(alerts):
    assert messages(alerts) == []
    alerts.path.write_text(LINE % "first" + (LINE % "sécond")[:40])
    assert messages(alerts) == ["first"]
    assert messages(alerts) == []
    alerts.path.write_text(LINE % "first" + LINE % "sécond" + LINE % "third")
    assert messages(alerts) == ["sécond", "third"]


@pytest.mark.parametrize("line", ["{", "[]", '{"kind": "drift"}', (LINE % "x").replace("drift", "noise").strip()])
def test_a_line_that_is_no_alert_is_logged_and_passed_over(alerts, line, caplog):
    alerts.path.write_text(f"{line}\n{LINE % 'next'}")
    assert messages(alerts) == ["next"]
    assert "An alert of the job cannot be read" in caplog.text
