"""Cloud Run's Admin API v2 of services."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from aiohttp import web

from llmbeam_sandbox.billing.settings import EndpointSettings
from llmbeam_sandbox.billing.state import Bill
from llmbeam_sandbox.cloud_run.checks import Plan, check_id, read_plan
from llmbeam_sandbox.cloud_run.responses import WORDING, busy, over_quota
from llmbeam_sandbox.cloud_run.state import (
    FAILED,
    RECONCILING,
    SUCCEEDED,
    Instances,
    RunService,
)
from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.checks import check_labels, check_location
from llmbeam_sandbox.core.clock import Timeline, timestamp
from llmbeam_sandbox.core.faults import Fault
from llmbeam_sandbox.core.methods import Method, Methods
from llmbeam_sandbox.core.operations import Operation, Operations, failure
from llmbeam_sandbox.core.resource_filter import listed, paged
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import RestCall, RestError, Route, Service

Work = Callable[[RestCall], Reply]
METHODS = Methods(
    names=(
        "run.services.create",
        "run.services.delete",
        "run.services.get",
        "run.services.getIamPolicy",
        "run.services.list",
        "run.services.patch",
        "run.services.setIamPolicy",
        "run.operations.delete",
        "run.operations.get",
        "run.operations.list",
        "run.operations.wait",
    ),
    operations=frozenset({"run.services.create", "run.services.delete", "run.services.patch"}),
    accelerators=frozenset({"run.services.create", "run.services.patch"}),
)
_TYPE = "type.googleapis.com/google.cloud.run.v2.Service"
_PARENT = r"/v2/(?P<parent>projects/[^/]+/locations/[^/:]+)"
_SERVICE = r"/v2/(?P<parent>projects/[^/]+/locations/[^/:]+)/services/(?P<service>[^/:]+)"
_OPERATION = r"/v2/(?P<name>projects/[^/]+/locations/[^/:]+/operations/[^/:]+)"
#: `Condition.CommonReason` of a failure that a fault asks for, by its `google.rpc.Code`; others are UNKNOWN.
_REASONS = {5: "CONTAINER_MISSING", 7: "CONTAINER_PERMISSION_DENIED", 13: "REVISION_FAILED"}
_OUTPUT = frozenset(
    {
        "name",
        "uid",
        "generation",
        "createTime",
        "updateTime",
        "deleteTime",
        "conditions",
        "terminalCondition",
        "uri",
    }
    | {"urls", "latestReadyRevision", "latestCreatedRevision", "reconciling", "etag", "observedGeneration"}
    | {"trafficStatuses", "creator", "lastModifier", "expireTime", "satisfiesPzs"}
)


class CloudRun:
    """The methods of Cloud Run.

    Args:
        backend: Faults, request log and clock.
        timeline: Scheduled actions.
        bill: Charges for running instances.
        settings: Durations and the quota of accelerators.
        has_secret: Returns whether a version of a secret exists, given project, name and version.
    """

    def __init__(
        self,
        backend: Backend,
        timeline: Timeline,
        bill: Bill,
        settings: EndpointSettings,
        *,
        has_secret: Callable[[str, str, str], bool],
    ) -> None:
        self.timeline = timeline
        self.instances = Instances(timeline=timeline, bill=bill, settings=settings)
        self._settings = settings
        self._has_secret = has_secret
        self._operations = Operations(timeline=timeline, seconds=settings.operation_seconds)
        self._services: dict[str, RunService] = {}
        self._count = 0
        self.service = Service(backend, WORDING, self._routes(), is_slow=False)

    @property
    def services(self) -> list[dict[str, Any]]:
        """All services as the API returns them."""
        with self.timeline.settled():
            return [service.resource() for service in self._services.values()]

    def at(self, host: str) -> RunService | None:
        """Returns the service with a host, if any. Called under the timeline's lock."""
        url = f"https://{host}"
        return next((one for one in self._services.values() if one.serving and url in one.urls), None)

    def clear(self) -> None:
        """Removes all services."""
        with self.timeline.lock:
            self._services.clear()
            self._operations.clear()

    def _routes(self) -> list[Route]:
        return [
            self._route("POST", f"{_PARENT}/services", "run.services.create", self._create),
            self._route("GET", f"{_PARENT}/services", "run.services.list", self._list),
            self._route("GET", _SERVICE, "run.services.get", self._get),
            self._route("PATCH", _SERVICE, "run.services.patch", self._patch),
            self._route("DELETE", _SERVICE, "run.services.delete", self._delete),
            self._route("POST", f"{_SERVICE}:setIamPolicy", "run.services.setIamPolicy", self._set_policy),
            self._route("GET", f"{_SERVICE}:getIamPolicy", "run.services.getIamPolicy", self._get_policy),
            self._route("GET", _OPERATION, "run.operations.get", self._operation),
            self._route("POST", f"{_OPERATION}:wait", "run.operations.wait", self._operation),
            self._route("DELETE", _OPERATION, "run.operations.delete", self._forget),
            self._route("GET", f"{_PARENT}/operations", "run.operations.list", self._list_operations),
        ]

    def _route(self, verb: str, path: str, method: Method, work: Work) -> Route:
        def checked(call: RestCall) -> Reply:
            if "parent" in call.names:
                check_location(call.names["parent"].rpartition("/")[2])
            with self.timeline.settled():
                return work(call)

        return Route(verb=verb, pattern=re.compile(path), method=method, work=checked)

    # Services

    def _create(self, call: RestCall) -> Reply:
        own, fields = call.query.get("serviceId", ""), _settable(call.fields())
        check_id(own)
        check_labels(fields.get("labels") or {})
        where = call.names["parent"]
        name = f"{where}/services/{own}"
        if name in self._services:
            raise RestError(409, f"Resource '{own}' already exists.")
        plan = read_plan(fields, name)
        self._check_quota(name, plan, call.fault)
        now = self.timeline.now()
        service = RunService(name=name, fields=fields, plan=plan, created_at=now, updated_at=now)
        if call.query.get("validateOnly") == "true":
            return json_reply({"name": f"{where}/operations/{uuid5(NAMESPACE_URL, name)}"})
        self._services[name] = service
        return self._roll_out(service, plan, call.fault)

    def _roll_out(self, service: RunService, plan: Plan, fault: Fault | None) -> Reply:
        """Starts an instance of a new configuration; the operation succeeds if it starts."""
        now = self.timeline.now()
        service.state, service.message, service.plan = RECONCILING, "", plan
        if not service.instances:
            self.instances.start(service, plan, max(plan.least, 1), now)
        missing = [secret for secret in plan.secrets if not self._has_secret(*secret)]
        foreseen, reason = _outcome(service, plan, fault, missing)

        def finish(at: float) -> dict[str, Any]:
            service.state, service.serving, service.updated_at = SUCCEEDED, plan, at
            self.instances.start(service, plan, plan.least, at)
            service.warm_at = at if plan.least else None
            return {"@type": _TYPE, **service.resource()}

        def undo(at: float) -> None:
            failed = operation.failure or {}
            service.state, service.message, service.updated_at = FAILED, str(failed.get("message", "")), at
            service.reason = reason if failed is foreseen else {"reason": _REASONS.get(failed["code"], "UNKNOWN")}
            kept = service.serving
            self.instances.start(service, kept or plan, kept.least if kept else 0, at)
            service.warm_at = at if kept and kept.least else None

        operation = Operation(
            name=self._operation_name(service),
            metadata={"@type": _TYPE, **service.resource()},
            finish=finish,
            undo=undo,
            failure=foreseen,
        )
        return json_reply(self._operations.start(operation, fault).resource())

    def _patch(self, call: RestCall) -> Reply:
        service, fields = self._find(call), _settable(call.fields())
        mask = [part for part in call.query.get("updateMask", "").split(",") if part]
        if self._operations_on(service):
            raise busy(service)
        merged = _masked(service.fields, fields, mask)
        check_labels(merged.get("labels") or {})
        plan = read_plan(merged, service.name)
        self._check_quota(service.name, plan, call.fault)
        service.fields, service.generation = merged, service.generation + 1
        return self._roll_out(service, plan, call.fault)

    def _delete(self, call: RestCall) -> Reply:
        service = self._find(call)
        if self._operations_on(service):
            raise busy(service)

        def finish(at: float) -> dict[str, Any]:
            self.instances.stop(service, at)
            self._services.pop(service.name, None)
            return {"@type": _TYPE, **service.resource(), "deleteTime": timestamp(at)}

        operation = Operation(
            name=self._operation_name(service),
            metadata={"@type": _TYPE, **service.resource()},
            finish=finish,
            undo=lambda at: None,
            failure=None,
        )
        return json_reply(self._operations.start(operation, call.fault).resource())

    def _get(self, call: RestCall) -> Reply:
        return json_reply(self._find(call).resource())

    def _list(self, call: RestCall) -> Reply:
        return listed(call, "services", call.names["parent"], self._services)

    def _set_policy(self, call: RestCall) -> Reply:
        service = self._find(call)
        service.policy = {"version": 1, "bindings": [], **(call.fields().get("policy") or {})}
        return json_reply(service.policy)

    def _get_policy(self, call: RestCall) -> Reply:
        return json_reply(self._find(call).policy)

    def _find(self, call: RestCall) -> RunService:
        found = self._services.get(f"{call.names['parent']}/services/{call.names['service']}")
        if found is None:
            raise RestError(
                404,
                f"Resource '{call.names['service']}' of kind 'SERVICE' in region "
                f"'{call.names['parent'].rpartition('/')[2]}' in project "
                f"'{call.names['parent'].split('/')[1]}' does not exist.",
            )
        return found

    def _check_quota(self, name: str, plan: Plan, fault: Fault | None) -> None:
        if plan.gpu is None:
            return
        _, project, _, location, *_ = name.split("/")
        limit = self._settings.gpu_limit(location, plan.gpu.name)
        others = sum(
            one.plan.most * one.plan.gpus
            for other, one in self._services.items()
            if other != name
            and other.startswith(f"projects/{project}/locations/{location}/")
            and one.plan.gpu is plan.gpu
        )
        is_over = limit is not None and others + plan.most * plan.gpus > limit
        if is_over or (fault is not None and fault.kind == "quota"):
            raise over_quota(plan)

    # Operations

    def _operation_name(self, service: RunService) -> str:
        self._count += 1
        where = service.name.partition("/services/")[0]
        return f"{where}/operations/{uuid5(NAMESPACE_URL, f'{service.name}/{self._count}')}"

    def _operations_on(self, service: RunService) -> bool:
        where = service.name.partition("/services/")[0]
        return any(
            one.metadata["name"] == service.name and not one.is_done for one in self._operations.under(where)
        )

    def _operation(self, call: RestCall) -> Reply:
        return json_reply(self._operations.get(call.names["name"]).resource())

    def _forget(self, call: RestCall) -> Reply:
        self._operations.forget(call.names["name"])
        return json_reply({})

    def _list_operations(self, call: RestCall) -> Reply:
        found = [one.resource() for one in self._operations.under(f"{call.names['parent']}/operations")]
        return json_reply(paged(call, "operations", found, is_filtered=False))


def routes(cloud_run: CloudRun) -> list[web.RouteDef]:
    """Returns the routes of Cloud Run's Admin API."""
    return [web.route("*", "/v2/projects/{tail:.*}", cloud_run.service.serve)]


def _outcome(
    service: RunService, plan: Plan, fault: Fault | None, missing: list[Any]
) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Returns the failure in which the start of an instance will end, and its reason; None if it will succeed."""
    location = service.name.split("/")[3]
    if fault is not None and fault.kind == "stock-out":
        text = (
            f"The region {location} does not have enough resources available to fulfill the request: no "
            f"{plan.gpu.cloud_run_name if plan.gpu else 'CPU'} could be allocated. Please try again later."
        )
        return failure(fault.http_status or 429, fault.message or text), {"reason": "UNKNOWN"}
    for project, name, version in missing:
        failed = failure(
            400,
            f"Revision '{service.id}-{service.generation:05d}-abc' is not ready and cannot serve traffic. Secret "
            f"projects/{project}/secrets/{name}/versions/{version} was not found",
        )
        return failed, {"reason": "SECRETS_ACCESS_CHECK_FAILED"}
    if plan.served.failure:
        # Source: cloud.google.com/run/docs/troubleshooting. The sandbox adds the last line of the log.
        failed = failure(
            400,
            f"Revision '{service.id}-{service.generation:05d}-abc' is not ready and cannot serve traffic. The "
            "user-provided container failed to start and listen on the port defined provided by the PORT=8000 "
            "environment variable within the allocated timeout. Logs for this revision might contain more "
            f"information. : {plan.served.failure}",
        )
        return failed, {"revisionReason": "HEALTH_CHECK_CONTAINER_ERROR"}
    return None, {}


def _settable(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _OUTPUT}


def _masked(old: Mapping[str, Any], new: Mapping[str, Any], mask: list[str]) -> dict[str, Any]:
    """Returns the fields after an update: all new ones without a mask, else those that it names.

    Args:
        old: Current fields.
        new: Fields as sent.
        mask: Paths such as "template.scaling", in camel or snake case; "*" is all.
    """
    if not mask or "*" in mask:
        return dict(new)
    merged: dict[str, Any] = dict(old)
    for path in mask:
        names = [re.sub(r"_([a-z])", lambda found: found[1].upper(), part) for part in path.split(".")]
        source: Any = new
        target = merged
        for name in names[:-1]:
            target[name] = dict(target.get(name) or {})
            target, source = target[name], (source or {}).get(name)
        if isinstance(source, Mapping) and names[-1] in source:
            target[names[-1]] = source[names[-1]]
        else:
            target.pop(names[-1], None)
    return merged
