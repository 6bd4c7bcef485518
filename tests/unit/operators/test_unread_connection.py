"""Removals whose connection Airflow does not return, because it is missing or a secrets backend failed."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.google.common.hooks.base_google import GoogleBaseHook
from airflow.sdk import DAG

from airflow_provider_llmbeam.endpoints.teardown import RemovalRound
from airflow_provider_llmbeam.exceptions import StillBillingError
from airflow_provider_llmbeam.operators.endpoint import ProvisionEndpointOperator, TeardownEndpointOperator
from airflow_provider_llmbeam.operators.sweep import SweepEndpointsOperator

RUN = SimpleNamespace(run_after=datetime(2026, 11, 1, tzinfo=UTC))
CONTEXT: Any = {"ti": SimpleNamespace(dag_id="d", run_id="r", try_number=1), "dag_run": RUN}
GARDEN = {
    "type": "vertex",
    "model": "google/gemma3@gemma-3-4b-it",
    "accept_eula": True,
    "locations": ["us-central1"],
}
REMOVALS = [
    TeardownEndpointOperator(
        task_id="teardown", name="etl", gcp_conn_id="my_gcp", endpoint={**GARDEN, "project": "acme-gpu"}
    ),
    SweepEndpointsOperator(task_id="sweep", locations=["us-central1"], project="acme-gpu", gcp_conn_id="my_gcp"),
]
LEFT = {
    "teardown": r"Endpoint 'etl-\w+' in 'us-central1' may still be billing, as nothing was looked for or removed",
    "sweep": "What has expired in 'us-central1' may still be billing, as nothing was looked for or removed",
}


@pytest.mark.parametrize("task", REMOVALS, ids=lambda task: task.task_id)
def test_a_removal_whose_connection_is_not_found_is_retried_and_names_what_may_be_billing(task: Any) -> None:
    with pytest.raises(StillBillingError, match=LEFT[task.task_id]) as raised:
        task.execute(CONTEXT)
    assert raised.value.retryable
    assert "the connection 'my_gcp' (`gcp_conn_id`)" in str(raised.value)
    assert "Add it under Admin, Connections" in str(raised.value)
    assert "A retry or " in str(raised.value)


@pytest.mark.parametrize("task", REMOVALS, ids=lambda task: task.task_id)
def test_a_removal_whose_secrets_backend_fails_names_what_may_be_billing(
    task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(conn_id: str) -> None:
        raise RuntimeError("503 of the secrets backend")

    monkeypatch.setattr(GoogleBaseHook, "get_connection", fail)
    with pytest.raises(StillBillingError, match=LEFT[task.task_id]) as raised:
        task.execute(CONTEXT)
    assert "could not be read: 503 of the secrets backend. If the connection exists" in str(raised.value)


def test_a_teardown_removes_the_endpoint_though_the_connection_cannot_be_read_again_for_its_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(conn_id: str) -> None:
        raise RuntimeError("503 of the secrets backend")

    def connect(*connection: Any) -> Any:
        return lambda location: SimpleNamespace(location=location)

    removed = []
    monkeypatch.setattr(GoogleBaseHook, "get_connection", fail)
    monkeypatch.setattr("airflow_provider_llmbeam.operators.endpoint.platform_factory", connect)
    monkeypatch.setattr(
        "airflow_provider_llmbeam.operators.endpoint.removal_round", lambda *_, **options: RemovalRound()
    )
    monkeypatch.setattr(
        "airflow_provider_llmbeam.operators.endpoint.remove",
        lambda platform, key, **options: removed.append(platform.location),
    )
    REMOVALS[0].execute(CONTEXT)
    assert removed == ["us-central1"]


def test_a_teardown_that_cannot_read_the_recorded_project_is_retried_and_removes_nothing_elsewhere() -> None:
    def fail(**arguments: Any) -> None:
        raise RuntimeError("503 of the API server")

    with DAG("gpu", schedule=None):
        up = ProvisionEndpointOperator(task_id="up", endpoint=GARDEN, name="etl")
        down = TeardownEndpointOperator(task_id="down", endpoint=GARDEN, name="etl")
        up >> down
    with pytest.raises(StillBillingError, match=LEFT["teardown"]) as raised:
        down.execute({"ti": SimpleNamespace(dag_id="d", run_id="r", try_number=1, xcom_pull=fail), "dag_run": RUN})
    assert "503 of the API server" in str(raised.value)
