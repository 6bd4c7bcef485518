"""`inference_endpoint`: an endpoint for the tasks of one `with` block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow.providers.common.compat.sdk import SkipMixin
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TaskGroup, XComArg
from pydantic import TypeAdapter

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.base import InferenceJobOperator
from airflow_provider_llmbeam.operators.endpoint import (
    ProvisionEndpointOperator,
    ReserveEndpointOperator,
    TeardownEndpointOperator,
)
from airflow_provider_llmbeam.operators.literal import is_pending, plain
from airflow_provider_llmbeam.operators.model_registry import ResolveModelOperator
from airflow_provider_llmbeam.spec.endpoint.cloud_run import CloudRunEndpoint
from airflow_provider_llmbeam.spec.endpoint.vertex_ai import VertexEndpoint
from airflow_provider_llmbeam.spec.fields.registered_model import RegisteredModel
from airflow_provider_llmbeam.spec.runner import Runner, is_in_network

#: Arguments of the tasks of a block, whatever `default_args` of the Dag say: see `_check_starts`.
_STARTS: dict[str, Any] = {"depends_on_past": False, "wait_for_downstream": False}


@dataclass(frozen=True, slots=True)
class InferenceEndpoint:
    """The tasks that provision and remove the endpoint of a block.

    Attributes:
        model: Argument of `RunInferenceOperator(model=…)`: the XCom of `provision`.
        reserve: Task that names the endpoint.
        provision: Task that provisions the endpoint.
        teardown: Task that removes the endpoint.
        done: Task that follows the tasks of the block; tasks after the block follow it.
        resolve: Task that resolves the alias of a registered model; `None` if there is none.
        resolve_canary: Task that resolves the alias of its canary; `None` if there is none.
    """

    model: XComArg
    reserve: ReserveEndpointOperator
    provision: ProvisionEndpointOperator
    teardown: TeardownEndpointOperator
    done: EmptyOperator
    resolve: ResolveModelOperator | None = None
    resolve_canary: ResolveModelOperator | None = None

    @property
    def version(self) -> XComArg:
        """The version of the registered model in this run, `projects/…/locations/…/models/…@3`: XCom of `resolve`.

        Raises:
            JobSpecError: The model of the endpoint has no alias.
        """
        return _output_of(self.resolve, "version", "model")

    @property
    def canary(self) -> XComArg:
        """The version of the canary in this run, `projects/…/locations/…/models/…@4`: XCom of `resolve_canary`.

        Raises:
            JobSpecError: The canary of the endpoint has no alias, or it has no canary.
        """
        return _output_of(self.resolve_canary, "canary", "canary.model")


def _output_of(resolve: ResolveModelOperator | None, name: str, field: str) -> XComArg:
    if resolve is None:
        raise JobSpecError(
            f"`inference_endpoint`: `{name}` is that of a registered model with an alias, "
            f"'projects/…/locations/…/models/…@champion', and this `endpoint.{field}` is none."
        )
    return resolve.output


@contextmanager
def inference_endpoint(
    *,
    endpoint: VertexEndpoint | CloudRunEndpoint | Mapping[str, Any] | XComArg,
    group_id: str = "endpoint",
    gcp_conn_id: str | None = None,
    impersonation_chain: str | Sequence[str] | None = None,
    deferrable: bool = True,
    provision: dict[str, Any] | None = None,
    teardown: dict[str, Any] | None = None,
) -> Iterator[InferenceEndpoint]:
    """Provisions an endpoint before the tasks of the block, and removes it after they succeed or fail.

        with inference_endpoint(endpoint=VertexEndpoint(…)) as gemma:
            RunInferenceOperator(task_id="ask", model=gemma.model, …)

    `reserve >> provision >> work >> teardown`, with the first two as setups: with one setup, a failed provision
    would leave its teardown `upstream_failed`. A failed teardown fails the run; `work >> done` makes failed work
    fail it too. Tasks of the block without an upstream task in it wait for the endpoint.

    A branching task at the end of the block is followed by a task `after_…`: a branch skips every task directly
    after it that it does not follow, also a teardown.

    An alias of a registered model is resolved by a task `resolve` between `reserve` and `provision`: retries and
    cleared tasks of the run keep its version, unless `resolve` is cleared as well.

    Args:
        endpoint: Endpoint to provision, see `spec.VertexEndpoint` and `spec.CloudRunEndpoint`.
        group_id: Id of the task group, which prefixes the task ids; unique for each block.
        gcp_conn_id: Airflow connection of type Google Cloud; by default that of `default_args` of the Dag, or
            `google_cloud_default`.
        impersonation_chain: Service account to impersonate, or a chain of them; by default that of `default_args`.
        deferrable: Whether the task releases its worker slot while the GPU boots.
        provision: Other arguments of `ProvisionEndpointOperator`, e.g. `{"retries": 2}`.
        teardown: Other arguments of `TeardownEndpointOperator`.

    Raises:
        JobSpecError: The Dag has a `dagrun_timeout`, which skips teardowns, the block has no task, or one with
            `depends_on_past`, which may never start, or the runner of one is not in the network of the endpoint.
    """
    given_account = {"gcp_conn_id": gcp_conn_id, "impersonation_chain": impersonation_chain}
    account: dict[str, Any] = {name: value for name, value in given_account.items() if value is not None}
    with TaskGroup(group_id=group_id) as group:
        _check_no_timeout(group.dag)
        reserve = ReserveEndpointOperator(task_id="reserve", **_STARTS)
        given = plain(endpoint)
        fixed: Any = given
        canary: Any = given.get("canary") if isinstance(given, Mapping) else None

        def resolve_alias(task_id: str, model: str) -> ResolveModelOperator:
            task = ResolveModelOperator(task_id=task_id, model=model, **account, **_STARTS)
            reserve >> task
            return task

        resolve = resolve_canary = None
        if _has_alias(given):
            resolve = resolve_alias("resolve", given["model"])
            fixed = {**fixed, "model": resolve.output}
        if _has_alias(canary):
            resolve_canary = resolve_alias("resolve_canary", canary["model"])
            fixed = {**fixed, "canary": {**canary, "model": resolve_canary.output}}
        bring_up = ProvisionEndpointOperator(
            task_id="provision",
            endpoint=fixed,
            name=reserve.output,
            deferrable=deferrable,
            **account,
            **{**_STARTS, **(provision or {})},
        )
        take_down = TeardownEndpointOperator(
            task_id="teardown",
            endpoint=endpoint,
            name=reserve.output,
            **account,
            **{**_STARTS, **(teardown or {})},
        )
        done = EmptyOperator(task_id="done", **_STARTS)
        made = InferenceEndpoint(bring_up.output, reserve, bring_up, take_down, done, resolve, resolve_canary)
        yield made
    of_block = (reserve, resolve, resolve_canary, bring_up, take_down, done)
    own = {one.task_id for one in of_block if one is not None}
    work = {task.task_id: task for task in group.iter_tasks() if task.task_id not in own}
    if not work:
        raise JobSpecError(
            f"`inference_endpoint`: the block {group.group_id!r} has no task; a GPU would do nothing."
        )
    _check_no_timeout(group.dag)
    for task in group.iter_tasks():
        _check_starts(task)
    for task in work.values():
        _check_network(task, given, bring_up.output)
        if work.keys().isdisjoint(task.upstream_task_ids):
            bring_up >> task
        if work.keys().isdisjoint(task.downstream_task_ids):
            _before_teardown(task, group) >> take_down
            # The teardown of an endpoint nested in this block is not work that may fail the run.
            if not task.is_teardown:
                task >> done
    take_down.as_teardown(setups=[reserve, bring_up], on_failure_fail_dagrun=True)


def _before_teardown(task: Any, group: TaskGroup) -> Any:
    """Returns the task that the teardown follows: not one that may skip it, see `SkipMixin.skip_all_except`."""
    if not issubclass(getattr(task, "operator_class", type(task)), SkipMixin):
        return task
    label = task.task_id.removeprefix(f"{group.group_id}.").replace(".", "_")
    # With `all_success` it would be over when the first instance of a mapped task fails, and others still work.
    after = EmptyOperator(
        task_id=f"after_{label}", trigger_rule="all_done", task_group=group, dag=group.dag, **_STARTS
    )
    task >> after
    return after


def _check_network(task: Any, endpoint: Any, model: XComArg) -> None:
    """Checks that the runner of a job reaches the private address of its endpoint."""
    if not isinstance(task, InferenceJobOperator) or not isinstance(endpoint, Mapping) or task.model != model:
        return
    if endpoint.get("type") != "vertex" or any(map(is_pending, endpoint.values())):
        return
    spec = VertexEndpoint.parse(endpoint)
    network, runner = spec.network, task.runner or {"type": "direct"}
    if network is None or spec.reachable or is_pending(runner):
        return
    parsed: Runner = TypeAdapter(Runner).validate_python(runner)
    if not is_in_network(parsed, network):
        raise JobSpecError(
            f"Task {task.task_id!r}: its `runner` of type {parsed.type!r} is not in {network!r}, which alone "
            "reaches the endpoint of the block: no request would be answered while the GPU is billed. Use a "
            "runner of type 'dataflow' with `network` or `subnetwork` in it, or set `reachable=True` in the "
            "endpoint if the machines of Airflow and of the runner reach it."
        )


def _has_alias(endpoint: Any) -> bool:
    """Whether the model of an endpoint is a registered one, perhaps with a template, and not a fixed version."""
    model = endpoint.get("model") if isinstance(endpoint, Mapping) else None
    registered = RegisteredModel.read(model)
    return not registered.is_fixed if registered else isinstance(model, str) and model.startswith("projects/")


def _check_starts(task: Any) -> None:
    if task.depends_on_past:  # also with `wait_for_downstream`
        raise JobSpecError(
            f"Task {task.task_id!r} has `depends_on_past=True`. After a run in which it failed it never starts, "
            "and the GPU of the next run is billed while it waits. Set `depends_on_past=False` for it, also where "
            "`default_args` of the Dag set it. To wait for the run before, put an `EmptyOperator` with "
            "`depends_on_past=True, wait_for_downstream=True` before `reserve` of the block and before this task."
        )


def _check_no_timeout(dag: DAG | None) -> None:
    if dag is not None and dag.dagrun_timeout is not None:
        raise JobSpecError(
            f"Dag {dag.dag_id!r} has `dagrun_timeout={dag.dagrun_timeout}`. When that is over, Airflow skips the "
            "teardown, and the GPU keeps billing. Use `deadline=DeadlineAlert(…)` of `airflow.sdk`, which sends "
            "an alert, and `execution_timeout` of the tasks, which ends them."
        )
