"""Operators that reserve, provision and tear down a model server with GPUs for the tasks of one run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_llmbeam.endpoints.monitor import EndpointMonitor, ProvisioningResult
from airflow_provider_llmbeam.endpoints.platform import EndpointPlatform, SentRequests, platform_factory
from airflow_provider_llmbeam.endpoints.provisioning import ProvisioningHistory
from airflow_provider_llmbeam.endpoints.resource import LostReply
from airflow_provider_llmbeam.endpoints.teardown import removal_round, remove
from airflow_provider_llmbeam.exceptions import CloudError, EndpointRefusedError, JobSpecError, StillBillingError
from airflow_provider_llmbeam.hooks.deployment import require_deployment
from airflow_provider_llmbeam.operators.arguments import check_arguments
from airflow_provider_llmbeam.operators.errors import errors_of_airflow, retry_failed_reads
from airflow_provider_llmbeam.operators.identity import job_name
from airflow_provider_llmbeam.operators.links import EndpointLink, StoresLinks, endpoint_url
from airflow_provider_llmbeam.operators.literal import is_pending, plain
from airflow_provider_llmbeam.operators.written import WrittenInDag
from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.spec.endpoint import parse_endpoint
from airflow_provider_llmbeam.spec.endpoint.cloud_run import CloudRunEndpoint
from airflow_provider_llmbeam.spec.endpoint.identity import (
    ENDPOINT_LABEL,
    endpoint_id,
    endpoint_labels,
    label_value,
    service_id,
)
from airflow_provider_llmbeam.spec.endpoint.vertex_ai import VertexEndpoint
from airflow_provider_llmbeam.spec.fields.registered_model import RegisteredModel
from airflow_provider_llmbeam.spec.identity import identity
from airflow_provider_llmbeam.triggers.airflow_compat import TaskDeferralError, TaskDeferralTimeout
from airflow_provider_llmbeam.triggers.endpoint import EndpointTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

#: Time limits of the removal, in seconds: for a worker that is being stopped, and for one that is not.
KILL_SECONDS = 40.0
ABANDON_SECONDS = 600.0
#: Prefix of the XCom key under which a provision records what it is about to create; the name's identity follows.
RECORD_KEY = "endpoint_"
#: Prefix of the XCom key of a provision that ended and knows what became of each of its requests.
SETTLED_KEY = "settled_"

Endpoint = VertexEndpoint | CloudRunEndpoint


class ReserveEndpointOperator(BaseOperator):
    """Returns the name of an endpoint, the same for every try of a run. It creates nothing and always succeeds.

    A separate setup task: with `ProvisionEndpointOperator` as the only setup, a provision that fails or is killed
    would leave its teardown `upstream_failed`.

    XCom:
        The name.
    """

    def execute(self, context: Context) -> str:
        """Returns the name."""
        with errors_of_airflow():
            return job_name(context["ti"])


class ProvisionEndpointOperator(WrittenInDag, StoresLinks, BaseOperator):
    """Provisions an endpoint, or takes over that of an earlier try, and probes its model.

    All resources that it creates are named after `name` and labelled. If the endpoint does not start, or the task
    is killed, it removes them. After a kill -9, `TeardownEndpointOperator` and `SweepEndpointsOperator` remove
    them. Use `inference_endpoint`, which connects these tasks as Airflow requires.

    Args:
        endpoint: Endpoint to provision, see `spec.VertexEndpoint` and `spec.CloudRunEndpoint`. A registered model
            must have the number of its version, e.g. from a `ResolveModelOperator`.
        name: Name of the endpoint: the XCom of a `ReserveEndpointOperator`.
        ready_within_seconds: Time limit from the start to the first completion, in all locations, in seconds. The
            first poll after it still asks an endpoint that is up.
        poll_interval_seconds: Interval between polls, in seconds.
        gcp_conn_id: Airflow connection of type Google Cloud; without a default connection, the credentials of the
            worker.
        impersonation_chain: Service account to impersonate, or a chain of them.
        deferrable: Whether the task releases its worker slot while the GPU boots.

    Templated:
        `endpoint`, `name`, `gcp_conn_id`, `impersonation_chain`.

    XCom:
        A model spec for `RunInferenceOperator(model=…)`; `cold_start_seconds` under a key of its own. Before the
        first resource is created, the endpoint with its project, identity and time, for its removal; then also
        the operation that creates it.

    Raises:
        JobSpecError: A literal argument is invalid; raised when the Dag is parsed.
        AirflowFailException: A retry would repeat the error; nothing is billed.
        EndpointError: The endpoint could not be provisioned.
    """

    template_fields: Sequence[str] = ("endpoint", "name", "gcp_conn_id", "impersonation_chain")
    template_fields_renderers = dict.fromkeys(template_fields[:1], "json")
    links = (EndpointLink(),)
    ui_color = "#e6f4ea"

    def __init__(
        self,
        *,
        endpoint: VertexEndpoint | CloudRunEndpoint | Mapping[str, Any] | XComArg,
        name: str | XComArg,
        ready_within_seconds: float = 3_600.0,
        poll_interval_seconds: float = 15.0,
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        check_arguments(type(self), kwargs)
        super().__init__(**kwargs)
        self.endpoint = plain(endpoint)
        self.name = name
        self.ready_within_seconds = ready_within_seconds
        self.poll_interval_seconds = poll_interval_seconds
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        self.deferrable = deferrable
        self._monitor: EndpointMonitor | None = None
        check_literal(self.task_id, self.endpoint)
        if isinstance(self.endpoint, Mapping):
            _check_versions(self.endpoint)

    def execute(self, context: Context) -> dict[str, Any]:
        """Provisions the endpoint."""
        with errors_of_airflow():
            trigger = self._trigger(context)
            self._monitor = monitor = trigger.make_poller(self.log)
            started = monitor.provisioner.history
            since = started.started_at if started.lost is None else started.lost.since
            record = {"endpoint": trigger.endpoint, "key": trigger.key, "since": since, "operation": None}
            self._push(context, RECORD_KEY, record)

            def poll() -> Wait | ProvisioningResult:
                result, operation = monitor.poll(), monitor.provisioner.history.operation
                if operation != record["operation"]:  # its teardown cancels it also after a `kill -9`
                    record["operation"] = operation
                    self._push(context, RECORD_KEY, record)
                return result

            try:
                result = poll()
                while isinstance(result, Wait) and (result.seconds == 0 or not self.deferrable):
                    time.sleep(result.seconds)
                    result = poll()
            except BaseException as error:  # such as Airflow's `execution_timeout`
                self._monitor = None
                monitor.abandon(f"The task ended with {type(error).__name__}.", within_seconds=ABANDON_SECONDS)
                raise
            self._monitor = None
            if isinstance(result, Wait):
                trigger.history = monitor.provisioner.history.for_another_process(time.time()).to_dict()
                self.defer(trigger=trigger, method_name="execute_complete", timeout=self.execution_timeout)
            return self._conclude(result, context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Resumes after the event of the trigger; Airflow calls it."""
        with errors_of_airflow():
            return self._conclude(ProvisioningResult.from_event(event), context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Removes the endpoint when waiting for it failed, or took longer than `execution_timeout`."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralError, TaskDeferralTimeout) as error:
            # Airflow has replaced the arguments with the error; names and labels are the same throughout a try.
            monitor = self._trigger(context, is_resumed=True).make_poller(self.log)
            reason = f"Waiting ended with {type(error).__name__}."
            if monitor.abandon(reason, within_seconds=ABANDON_SECONDS):
                self._push(context, SETTLED_KEY, True)  # the teardown need not look for a lost reply again
            raise

    def on_kill(self) -> None:
        """Removes what was created so far."""
        if self._monitor is not None:
            self._monitor.abandon("The task was killed.", within_seconds=KILL_SECONDS)

    def _trigger(self, context: Context, *, is_resumed: bool = False) -> EndpointTrigger:
        parsed = parse_endpoint(self.endpoint)
        _check_versions(parsed.model_dump())
        self._check_allowed({"endpoint": parsed})
        ti, deployment, now = context["ti"], require_deployment(), time.time()
        key = identity(_check_name(self.name), deployment)
        history = ProvisioningHistory(now)
        if ti.try_number > 1:
            history = replace(history, lost=LostReply(_run_after(context), now))
        if is_resumed and (found := _read_records(self.name, [self.task_id], context)):
            parsed, key = found[0].endpoint, found[0].key
            history = replace(history, operation=found[0].operation, lost=LostReply(found[0].since, now))
        spec = with_connection(parsed, self.gcp_conn_id, self.impersonation_chain)
        labels = endpoint_labels(
            key,
            deployment=deployment,
            expires_at=now + spec.expires_after_seconds,
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            attempt=label_value(f"{ti.try_number}-{str(ti.id)[-12:]}"),
        )
        return EndpointTrigger(
            endpoint=spec.model_dump(mode="json"),
            key=key,
            labels=labels,
            history=history.to_dict(),
            gcp_conn_id=self.gcp_conn_id,
            impersonation_chain=self.impersonation_chain,
            poll_interval_seconds=self.poll_interval_seconds,
            ready_within_seconds=self.ready_within_seconds,
        )

    def _push(self, context: Context, prefix: str, value: Any) -> None:
        context["ti"].xcom_push(key=f"{prefix}{identity(str(self.name))}", value=value)

    def _conclude(self, end: ProvisioningResult, context: Context) -> dict[str, Any]:
        if end.is_settled:
            self._push(context, SETTLED_KEY, True)
        if end.error is not None:
            raise end.error
        assert end.model is not None
        self.log.info("%s", end.message)
        context["ti"].xcom_push(key="cold_start_seconds", value=end.cold_start_seconds)
        context["ti"].xcom_push(key="location", value=end.location)
        self.store_link(context, EndpointLink(), endpoint_url(end.model))
        return end.model


class TeardownEndpointOperator(BaseOperator):
    """Removes an endpoint with all its resources, and polls until they are gone.

    It covers every location of the endpoint, by name and by label: it cancels the Dataflow jobs there that use it,
    undeploys models, and deletes endpoints, models and services. If nothing is left, it does nothing. It does not
    look for jobs in other regions or another project.

    Type, project, locations and identity are those that an upstream `ProvisionEndpointOperator` recorded for this
    name, whatever the Dag, its variables, the connection and `[llmbeam] deployment` say by now.

    Args:
        endpoint: Endpoint to remove, as passed to `ProvisionEndpointOperator`; used if none was recorded.
        name: Name of the endpoint: the XCom of the `ReserveEndpointOperator`.
        gone_within_seconds: Time limit of one try in each location, in seconds.
        gcp_conn_id: Airflow connection of type Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.

    Templated:
        `endpoint`, `name`, `gcp_conn_id`, `impersonation_chain`.

    XCom:
        If it removed an endpoint: `gpu_hours` from the start of its provision, `gpu_usd` at the list price of its
        least replicas (`None` if that is unknown).

    Raises:
        StillBillingError: A resource is left; the message names it, its cost per hour, and how to remove it. Or
            the connection could not be read, so that nothing was looked for; Airflow's retries apply.
    """

    template_fields: Sequence[str] = ("endpoint", "name", "gcp_conn_id", "impersonation_chain")
    template_fields_renderers = dict.fromkeys(template_fields[:1], "json")
    ui_color = "#fce8e6"

    def __init__(
        self,
        *,
        endpoint: VertexEndpoint | CloudRunEndpoint | Mapping[str, Any] | XComArg,
        name: str | XComArg,
        gone_within_seconds: float = 1_200.0,
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        # By the default rule its priority is the lowest of its Dag: in a backfill it would get no slot, while the
        # endpoint bills, until the work of all later runs has one.
        super().__init__(**{"retries": 3, "weight_rule": "upstream", **kwargs})
        self.endpoint = plain(endpoint)
        self.name = name
        self.gone_within_seconds = gone_within_seconds
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        check_literal(self.task_id, self.endpoint)

    def execute(self, context: Context) -> None:
        """Removes the endpoint."""
        with errors_of_airflow():
            spec, deployment = parse_endpoint(self.endpoint), require_deployment()
            key = identity(_check_name(self.name), deployment)
            where = ", ".join(map(repr, spec.locations))
            again = (
                "A retry or a clear of this task tries again; the sweeper does so "
                f"{spec.expires_after_seconds / 3600:.1f} h after its start."
            )
            with retry_failed_reads(self.gcp_conn_id, f"Endpoint {key!r} in {where}", again):
                found = _read_records(self.name, self._provisions(), context)
                found = found or [_Record(spec, key, _run_after(context))]
                sites = [(one, platform) for one in found for platform in self._platforms(one.endpoint)]
            has_started, billed = False, []
            for one, platform in sites:  # a location that does not answer takes minutes, and the others bill
                self._cancel_jobs(one.endpoint, one.key, deployment, platform.location)
                with suppress(CloudError):  # raised again below
                    first = removal_round(platform, one.key, self.log, sent=one.sent_requests(None))
                    has_started |= first.shows_what_was_started
                    billed += [(one.since, each.usd_per_hour) for each in first.resources if each.is_billed]
            until = None if has_started else time.time()
            left = []
            for one, platform in sites:
                location = platform.location
                try:
                    said = remove(
                        platform,
                        one.key,
                        within_seconds=self.gone_within_seconds,
                        log=self.log,
                        sent=one.sent_requests(until),
                    )
                except CloudError as error:
                    said = f"In {location!r} it may still be billing, and cannot be listed: {error}"
                left += [said] if said else []
            if left:
                raise StillBillingError(f"Endpoint {key!r} could not be removed. {' '.join(left)} {again}")
            self.log.info("Nothing is left of endpoint %r: nothing bills.", key)
            for name, value in gpu_use(billed, time.time()).items():
                context["ti"].xcom_push(key=name, value=value)

    def _provisions(self) -> list[str]:
        """Returns the ids of the tasks before this one that may have provisioned the endpoint."""
        return [
            task.task_id
            for task in self.get_flat_relatives(upstream=True)
            if issubclass(getattr(task, "operator_class", type(task)), ProvisionEndpointOperator)
        ]

    def _platforms(self, spec: Endpoint) -> list[EndpointPlatform]:
        connect = platform_factory(spec.type, spec.project, self.gcp_conn_id, self.impersonation_chain)
        return [connect(location) for location in spec.locations]

    def _cancel_jobs(self, spec: Endpoint, key: str, deployment: str, location: str) -> None:
        """Cancels the jobs of this deployment that use the endpoint; errors are logged."""
        from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook

        own = service_id(key) if spec.type == "cloud_run" else endpoint_id(key)
        try:
            hook = DataflowJobHook(location, spec.project, self.gcp_conn_id, self.impersonation_chain)
            for job in hook.active():
                if job.labels.get(ENDPOINT_LABEL) == own and job.deployment == deployment:
                    self.log.warning("Cancelling job %r, which uses this endpoint.", job.job_id)
                    hook.cancel(job.job_id)
        except Exception as error:  # noqa: BLE001 - a secrets backend that fails must not keep the GPU
            self.log.warning("It is unknown whether Dataflow jobs still use this endpoint: %s", error)


def gpu_use(billed: Sequence[tuple[float, float | None]], now: float) -> dict[str, float | None]:
    """Returns the hours of removed endpoints, and their price; nothing if there was none.

    Args:
        billed: Start in seconds of the Unix epoch, and price per hour, of each.
        now: Seconds of the Unix epoch.
    """
    hours = [(max(0.0, now - since) / 3600, usd) for since, usd in billed]
    costs = [each * usd for each, usd in hours if usd is not None]
    usd = round(sum(costs), 4) if len(costs) == len(hours) else None
    return {"gpu_hours": round(sum(each for each, _ in hours), 4), "gpu_usd": usd} if hours else {}


def with_connection(spec: Endpoint, gcp_conn_id: str, impersonation_chain: str | Sequence[str] | None) -> Endpoint:
    """Returns the endpoint with its project and its key of Cloud KMS, by default those of the connection.

    Raises:
        JobSpecError: No project is set, or the endpoint cannot be encrypted with the key of the connection.
    """
    from airflow_provider_llmbeam.hooks.google.base import GoogleHook
    from airflow_provider_llmbeam.hooks.google.errors import before_submission

    with before_submission():
        hook = GoogleHook(spec.project, gcp_conn_id, impersonation_chain)
        found = {"project": hook.project, "kms_key_name": spec.kms_key_name or hook.kms_key_name}
    return parse_endpoint({**spec.model_dump(), **found})


@dataclass(frozen=True)
class _Record:
    """What a provision recorded before its first request, and after it.

    Attributes:
        endpoint: The endpoint with its project.
        key: Identity of the endpoint.
        since: Time from which requests may have been sent, in seconds of the Unix epoch.
        operation: Name of the operation that creates it; `None` if it is not known.
        is_settled: Whether the provision ended and knows what became of each of its requests.
    """

    endpoint: Endpoint
    key: str
    since: float
    operation: str | None = None
    is_settled: bool = False

    def sent_requests(self, until: float | None) -> SentRequests:
        """Returns what is known of the requests.

        Args:
            until: Time until which a request without a known reply may have been sent; `None` if every reply is
                known.
        """
        if self.is_settled:
            return SentRequests(self.endpoint)
        lost = None if until is None else LostReply(self.since, until)
        return SentRequests(self.endpoint, self.operation, lost)


def _read_records(name: Any, task_ids: Sequence[str], context: Context) -> list[_Record]:
    """Returns what tasks recorded for a name."""
    ti, found = context["ti"], []
    for task_id in sorted(task_ids):
        record, is_settled = (
            next(iter(ti.xcom_pull(task_ids=[task_id], key=f"{prefix}{identity(str(name))}") or ()), None)
            for prefix in (RECORD_KEY, SETTLED_KEY)
        )
        if record:
            fields = {**record, "endpoint": parse_endpoint(record["endpoint"])}
            found.append(_Record(**fields, is_settled=bool(is_settled)))
    return found


def _run_after(context: Context) -> float:
    """Returns the earliest time at which a task of the run may have started, in seconds of the Unix epoch."""
    return context["dag_run"].run_after.timestamp()


def _check_name(name: Any) -> str:
    """Returns the name of an endpoint.

    Raises:
        EndpointRefusedError: It is missing: all runs without one would share, and remove, one endpoint.
    """
    if name in (None, "", "None"):
        raise EndpointRefusedError(
            f"`name`: must be the XCom of a `ReserveEndpointOperator`; got {name!r}. That task may have been "
            "marked as successful without having run: clear it. This task created and removed nothing."
        )
    return str(name)


def _check_versions(endpoint: Mapping[str, Any]) -> None:
    """Rejects an alias of a registered model.

    Raises:
        JobSpecError: It is one.
    """
    canary = endpoint.get("canary")
    models = {"model": endpoint, "canary.model": canary if isinstance(canary, Mapping) else {}}
    for field, given in models.items():
        if (registered := RegisteredModel.read(given.get("model"))) and not registered.is_fixed:
            raise JobSpecError(
                f"`endpoint.{field}`: '{registered}' has an alias, which can move between two tries: use "
                "`inference_endpoint`, or the XCom of a `ResolveModelOperator`."
            )


def check_literal(task_id: str, endpoint: Any) -> None:
    """Checks the literal arguments while the Dag is parsed.

    Raises:
        JobSpecError: Names each invalid field.
    """
    if not isinstance(endpoint, Mapping):
        if is_pending(endpoint):
            return
        raise JobSpecError(
            f"Task {task_id!r}: `endpoint` must be a `VertexEndpoint` or a `CloudRunEndpoint`; got {endpoint!r}."
        )
    kinds: dict[Any, type[VertexEndpoint | CloudRunEndpoint]] = {
        "vertex": VertexEndpoint,
        "cloud_run": CloudRunEndpoint,
    }
    kind = kinds.get(endpoint.get("type"))
    if kind is None:
        if is_pending(endpoint.get("type")):
            return
        parse_endpoint(endpoint)  # names the missing fields
    elif problems := [problem for problem in kind.problems(endpoint) if not is_pending(problem.got)]:
        raise JobSpecError(f"Task {task_id!r}: {' '.join(map(str, problems))}")
