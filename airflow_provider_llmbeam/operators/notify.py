"""Hands an alert to notifiers."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.polling.poller import TaskLog
from airflow_provider_llmbeam.spec.protocol.alert import Alert

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier, Context

#: Name of an alert in the context of a notifier.
CONTEXT_KEY = "llmbeam_alert"


def notify(notifiers: Iterable[BaseNotifier], alert: Alert, context: Context, log: TaskLog) -> None:
    """Calls each notifier with the context of the task, and the alert in it as `llmbeam_alert`.

    A notifier that fails is logged: the job goes on.
    """
    for notifier in notifiers:
        # A call renders the templates of a notifier in place, so each alert has its own copy.
        own: Any = copy.copy(notifier)
        try:
            own({**context, CONTEXT_KEY: alert.plain()})
        except Exception as error:  # noqa: BLE001 - an alert is not the job
            log.warning("%s could not send the alert %r: %s", type(notifier).__name__, alert.message, error)
