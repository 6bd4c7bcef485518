"""Notifiers of Airflow get each alert."""

from __future__ import annotations

import logging
from typing import ClassVar

from airflow.sdk import DAG, BaseNotifier

from airflow_provider_llmbeam.operators.notify import notify
from airflow_provider_llmbeam.spec.protocol.alert import Alert

ALERTS = [Alert(kind="drift", message=message, job="job") for message in ("first", "second")]


class Recording(BaseNotifier):
    template_fields = ("text",)
    sent: ClassVar[list[str]] = []

    def __init__(self, text):
        super().__init__()
        self.text = text

    def notify(self, context):
        self.sent.append(self.text)


class Failing(BaseNotifier):
    def notify(self, context):
        raise OSError("no route to host")


def test_a_template_of_a_notifier_has_the_alert_and_the_context_of_the_task(caplog):
    Recording.sent.clear()
    context = {"dag": DAG("nightly", schedule=None), "run_id": "tonight"}
    notifier = Recording("{{ run_id }} {{ llmbeam_alert.kind }}: {{ llmbeam_alert.message }}")
    for alert in ALERTS:
        notify([Failing(), notifier], alert, context, logging.getLogger("task"))
    assert Recording.sent == ["tonight drift: first", "tonight drift: second"]
    assert set(context) == {"dag", "run_id"}, "the context of the task is as it was"
    assert "Failing could not send the alert 'first': no route to host" in caplog.text
