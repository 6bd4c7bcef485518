"""`inference_endpoint`: an endpoint for the tasks of one `with` block, and never for longer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TaskGroup, XComArg

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.endpoint import (
    ProvisionEndpointOperator,
    ReserveEndpointOperator,
    TeardownEndpointOperator,
)


@dataclass(frozen=True, slots=True)
class InferenceEndpoint:
    """The tasks around a block.

    Attributes:
        model: For `RunInferenceOperator(model=…)`: the XCom of `provision`.
        reserve: Names the endpoint.
        provision: Brings it up.
        teardown: Removes it.
        done: Comes after the work: what comes after the block comes after it.
    """

    model: XComArg
    reserve: ReserveEndpointOperator
    provision: ProvisionEndpointOperator
    teardown: TeardownEndpointOperator
    done: EmptyOperator


@contextmanager
def inference_endpoint(
    *,
    endpoint: Any,
    group_id: str = "endpoint",
    gcp_conn_id: str = "google_cloud_default",
    impersonation_chain: str | Sequence[str] | None = None,
    deferrable: bool = True,
    provision: dict[str, Any] | None = None,
    teardown: dict[str, Any] | None = None,
) -> Iterator[InferenceEndpoint]:
    """Brings up an endpoint before the tasks of the block, and removes it after them, however they end.

        with inference_endpoint(endpoint=VertexEndpoint(…)) as gemma:
            RunInferenceOperator(task_id="ask", model=gemma.model, …)

    `reserve >> provision >> work >> teardown`, the first two as its setups: with one, a provision that fails
    leaves its teardown `upstream_failed`. The teardown fails the run when it fails; `work >> done` lets failed
    work do the same. Tasks of the block that have nothing before them in it wait for the endpoint.

    Args:
        endpoint: See `spec.VertexEndpoint` and `spec.CloudRunEndpoint`.
        group_id: Of the task group around it all, whose name the tasks carry: another one for each block.
        gcp_conn_id: Connection whose credentials ask.
        impersonation_chain: Service account to act as, or several, each acting as the next.
        deferrable: Whether no worker slot is taken while the GPU boots.
        provision: Other arguments of `ProvisionEndpointOperator`, e.g. `{"retries": 2}`.
        teardown: Other arguments of `TeardownEndpointOperator`.

    Raises:
        JobSpecError: The Dag has a `dagrun_timeout`, which skips teardowns, or the block has no task.
    """
    account: dict[str, Any] = {"gcp_conn_id": gcp_conn_id, "impersonation_chain": impersonation_chain}
    with TaskGroup(group_id=group_id) as group:
        _check_no_timeout(group.dag)
        reserve = ReserveEndpointOperator(task_id="reserve")
        bring_up = ProvisionEndpointOperator(
            task_id="provision",
            endpoint=endpoint,
            name=reserve.output,
            deferrable=deferrable,
            **account,
            **(provision or {}),
        )
        take_down = TeardownEndpointOperator(
            task_id="teardown", endpoint=endpoint, name=reserve.output, **account, **(teardown or {})
        )
        done = EmptyOperator(task_id="done")
        yield InferenceEndpoint(bring_up.output, reserve, bring_up, take_down, done)
    own = {reserve.task_id, bring_up.task_id, take_down.task_id, done.task_id}
    work = {task.task_id: task for task in group.iter_tasks() if task.task_id not in own}
    if not work:
        raise JobSpecError(
            f"`inference_endpoint`: the block {group.group_id!r} has no task; a GPU would do nothing."
        )
    _check_no_timeout(group.dag)
    for task in work.values():
        if work.keys().isdisjoint(task.upstream_task_ids):
            bring_up >> task
        if work.keys().isdisjoint(task.downstream_task_ids):
            task >> take_down
            # A teardown in the block, of an endpoint in this one, is no work that may fail the run.
            if not task.is_teardown:
                task >> done
    take_down.as_teardown(setups=[reserve, bring_up], on_failure_fail_dagrun=True)


def _check_no_timeout(dag: DAG | None) -> None:
    if dag is not None and dag.dagrun_timeout is not None:
        raise JobSpecError(
            f"Dag {dag.dag_id!r} has `dagrun_timeout={dag.dagrun_timeout}`. When that is over, Airflow skips the "
            "teardown, and the GPU bills on. Use `deadline=DeadlineAlert(…)` of `airflow.sdk`, which tells "
            "somebody, and `execution_timeout` of the tasks, which ends them."
        )
