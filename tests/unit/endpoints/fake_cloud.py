"""Vertex AI and Cloud Run as plain values: resources, operations and a bill, on a clock that a test moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from airflow_provider_llmbeam.endpoints.fault import Fault
from airflow_provider_llmbeam.endpoints.platform import Answer, EndpointPlan
from airflow_provider_llmbeam.endpoints.platforms.vertex_ai_requests import (
    DEPLOYING_STEPS,
    is_from_garden,
    missing,
)
from airflow_provider_llmbeam.endpoints.resource import EndpointSnapshot, Resource, RunningOperation
from airflow_provider_llmbeam.exceptions import CloudError, CloudUnavailableError, RequestRefusedError
from airflow_provider_llmbeam.spec.endpoint.identity import (
    TRY_LABEL,
    display_name,
    endpoint_id,
    known_labels,
    service_id,
)

OPERATION_SECONDS = 20.0
NEVER = float("inf")
#: Steps whose result is billed.
BILLED = ("deployment", "replicas", "canary", "service")
CANCELLED = Fault("failed", "The operation was cancelled.")


@dataclass
class Charge:
    """Time in which one GPU is billed; `is_ending` once its removal was requested, or it is known to fail."""

    since: float
    until: float = NEVER
    is_ending: bool = False


@dataclass
class Operation:
    """A long-running operation: `finish` or, after a fault, `undo` is called when its time comes.

    Attributes:
        name: Full resource name.
        began_at: Time of the request, in seconds.
        ends_at: Time of its end, in seconds.
        deploys: Endpoint to which it deploys a model, and the id of the deployed model: `…/endpoints/e/1`.
        creates: Whether it creates something.
    """

    name: str
    began_at: float
    ends_at: float
    deploys: str | None = None
    creates: bool = True
    finish: Callable[[], object] = lambda: None
    undo: Callable[[], object] = lambda: None
    fault: Fault | None = None
    is_done: bool = False


@dataclass
class Cloud:
    """The state of all locations.

    Attributes:
        now: Clock, in seconds.
        is_held: Whether operations last until `end_operations`.
        is_stubborn: Whether operations cannot be cancelled.
        garden_resources: When endpoint and model of a deployment from Model Garden exist, as in the sandbox.
        requests: What was requested, reads excepted.
        at_request: Called before and after each request, with its number and whether it has taken effect.
        poll_errors, create_errors, answers: What the next requests meet; those that create something billed are
            refused with a `Fault`, or their reply is lost with an error.
    """

    now: float = 0.0
    is_held: bool = True
    is_stubborn: bool = False
    garden_resources: Literal["at_once", "when_deployed"] = "at_once"
    at_request: Callable[[int, bool], object] = lambda number, is_done: None
    resources: dict[str, Resource] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    charges: dict[str, list[Charge]] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    poll_errors: list[Exception] = field(default_factory=list)
    create_errors: list[Fault | CloudError] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    count: int = 0

    # What a test does.

    def sleep(self, seconds: float) -> None:
        """Lets time pass, and operations end."""
        until = self.now + seconds
        while due := [one for one in self.running if one.ends_at <= until]:
            first = min(due, key=lambda one: one.ends_at)
            self.now = max(self.now, first.ends_at)
            self._end(first)
        self.now = until

    def end_operations(self, fault: Fault | None = None) -> None:
        """Ends the running operations; with a fault, those that create something fail."""
        for one in self.running:
            one.fault = one.fault or (fault if one.creates else None)
            self._end(one)

    def free(self) -> None:
        """From now on, operations end by themselves and every request succeeds."""
        self.is_held = False
        self.at_request = Cloud.at_request
        for queue in (self.poll_errors, self.create_errors, self.answers):
            queue.clear()
        for one in self.running:
            one.ends_at = min(one.ends_at, self.now + OPERATION_SECONDS)

    @property
    def running(self) -> list[Operation]:
        return [one for one in self.operations if not one.is_done]

    @property
    def billing(self) -> list[Charge]:
        return [one for charges in self.charges.values() for one in charges if one.until == NEVER]

    @property
    def at_once(self) -> int:
        """The largest number of GPUs that were billed at the same time."""
        found = [one for charges in self.charges.values() for one in charges if one.until > one.since]
        return max((sum(one.since <= at.since < one.until for one in found) for at in found), default=0)

    @property
    def is_empty(self) -> bool:
        return not (self.resources or self.running or self.billing)

    # What platforms do.

    def request(self, what: str | None, effect: Callable[[], object]) -> object:
        """Takes effect, and counts the request."""
        self.count += 1
        number = self.count
        self.at_request(number, False)
        if what:
            self.requests.append(what)
        try:
            return effect()
        finally:
            self.at_request(number, True)

    def begin(self, parent: str, **options) -> Operation:
        ends_at = NEVER if self.is_held else self.now + OPERATION_SECONDS
        name = f"{parent}/operations/{len(self.operations)}"
        self.operations.append(Operation(name, self.now, ends_at, **options))
        return self.operations[-1]

    def bill(self, name: str) -> None:
        self.charges.setdefault(name, []).append(Charge(self.now))

    def unbill(self, name: str) -> None:
        for one in self.charges.get(name, ()):
            one.until, one.is_ending = min(one.until, self.now), True

    def _end(self, operation: Operation) -> None:
        operation.is_done = True
        (operation.undo if operation.fault else operation.finish)()


class Platform:
    """What both services have in common; see `endpoints.platform.EndpointPlatform`."""

    project = "gpu-project-1"

    def __init__(self, cloud: Cloud, location: str) -> None:
        self.cloud, self.location = cloud, location
        self.parent = f"projects/gpu-project-1/locations/{location}"

    def check(self, plan):
        pass

    def poll(self, plan, operation, lost=None):
        return self.cloud.request(None, lambda: self._poll_or_fail(plan, operation, lost))

    def create(self, step, plan):
        return self.cloud.request(f"create {step}", lambda: self._create_or_fail(step, plan))

    def probe(self, plan, snapshot):
        answers = self.cloud.answers
        return self.cloud.request("ask", lambda: answers.pop(0) if answers else Answer())

    def find(self, key):
        return self.cloud.request(None, lambda: (self._find(key), None))

    def running_operations(self, key):
        return self.cloud.request(None, lambda: self._running(key))

    def started_operations(self, sent):
        return self.cloud.request(None, lambda: self._started(sent))

    def remove(self, resource):
        verb = "undeploy" if resource.deployed else f"delete {resource.kind}"
        return self.cloud.request(verb, lambda: self._remove(resource))

    def cancel(self, operation):
        return self.cloud.request("cancel", lambda: self._cancel(operation))

    def model_spec(self, plan, snapshot):
        return {"name": plan.spec.model}

    def _poll_or_fail(self, plan, operation, lost):
        if self.cloud.poll_errors:
            raise self.cloud.poll_errors.pop(0)
        return self._poll(plan, operation, lost)

    def _create_or_fail(self, step, plan):
        errors = self.cloud.create_errors if step in BILLED else ()
        error = errors.pop(0) if errors else None
        if isinstance(error, Fault):
            return error
        operation = self._create(step, plan)
        if error is not None:
            raise error
        return operation and operation.name

    def _find(self, key):
        found = [one for one in self.cloud.resources.values() if one.location == self.location]
        return [one for one in found if key in (None, one.key)]

    def _running_at(self, *parents):
        """Finds the operations of resources."""
        return [as_running(one) for one in self.cloud.running if one.name.partition("/operations/")[0] in parents]

    def _named(self, name):
        return next((one for one in self.cloud.operations if one.name == name), None)

    def _cancel(self, name):
        operation = self._named(name)
        if not self.cloud.is_stubborn:
            operation.fault = CANCELLED
            operation.ends_at = min(operation.ends_at, self.cloud.now + OPERATION_SECONDS)
            self._doom(operation.deploys or name.partition("/operations/")[0])

    def _doom(self, name):
        for billed, charges in self.cloud.charges.items():
            if billed.startswith(name):
                for one in charges:
                    one.is_ending = True

    def _label(self, name, labels):
        self.cloud.resources[name] = replace(self.cloud.resources[name], labels=dict(labels))


class VertexPlatform(Platform):
    """An endpoint, a model, and a GPU that bills from the start of the deployment to the end of its removal.

    The endpoint shows the deployed model when the deployment has ended.
    """

    def adopt(self, plan, snapshot):
        names = [one.name for one in snapshot.resources]
        self.cloud.request("adopt", lambda: [self._label(name, plan.labels) for name in names])
        return True

    def _poll(self, plan: EndpointPlan, name, lost):
        last, running = self._named(name), self._running(plan.key)
        if last and not last.is_done and as_running(last) not in running:
            running.append(as_running(last))
        endpoint = self.cloud.resources.get(self._endpoint(plan.key))
        model = self.cloud.resources.get(self._model(plan.key))
        is_deployed = endpoint is not None and bool(endpoint.deployed)
        if not running and not is_deployed:
            running = self._unsure(plan.spec, lost, name)
        deployed = endpoint.deployed if endpoint is not None else ()
        state = {"endpoint": endpoint is not None, "model": model is not None, "deployed": deployed}
        step = missing(plan.spec, running=bool(running), **state)
        return EndpointSnapshot(
            resources=tuple(filter(None, (endpoint, model))),
            operations=tuple(running),
            missing=step,
            is_up=is_deployed and step is None and not running,
            fault=last.fault if last and last.is_done else None,
            base_url="https://vertex",
        )

    def _create(self, step, plan):
        cloud, endpoint, model = self.cloud, self._endpoint(plan.key), self._model(plan.key)
        if step == "deployment":
            if endpoint in cloud.resources or model in cloud.resources:
                return None
            labels = known_labels({}, display_name(plan.labels))

            def show():
                self._add("endpoint", endpoint, labels)
                self._add("model", model, labels)

            if cloud.garden_resources == "when_deployed":
                return self._deploy(plan.key, self.parent, show)
            show()
            return self._deploy(plan.key, self.parent)
        if own := DEPLOYING_STEPS.get(step):
            return self._deploy(plan.key, endpoint, own=own)
        name = {"endpoint": endpoint, "model": model}[step]
        return cloud.begin(name, finish=lambda: self._add(step, name, plan.labels))

    def _deploy(self, key, parent, show=lambda: None, own="1"):
        cloud, endpoint = self.cloud, self._endpoint(key)
        billed = f"{endpoint}/{own}"

        def finish():
            show()
            deployed = cloud.resources[endpoint].deployed if endpoint in cloud.resources else {}
            deployed = {**deployed, own: f"{self._model(key)}@{own}"}
            self._change(endpoint, deployed=deployed, usd_per_hour=1.15 * len(deployed))

        cloud.bill(billed)
        return cloud.begin(parent, deploys=billed, finish=finish, undo=lambda: cloud.unbill(billed))

    def _remove(self, resource):
        cloud, name, endpoint = self.cloud, resource.name, self._endpoint(resource.key)
        if any(
            one.name.startswith(f"{name}/") or (one.deploys or "").startswith(f"{endpoint}/")
            for one in cloud.running
        ) or any(one.deployed and resource.kind == "model" for one in self._find(resource.key)):
            raise RequestRefusedError(f"FAILED_PRECONDITION: {name} is in use.")

        # While one is undeployed, the request for another is refused.
        own = next(iter(resource.deployed), None)

        def undeploy():
            deployed = cloud.resources[name].deployed if name in cloud.resources else {}
            self._change(name, deployed={each: model for each, model in deployed.items() if each != own})
            cloud.unbill(f"{name}/{own}")

        self._doom(f"{name}/{own}")
        finish = undeploy if resource.deployed else lambda: cloud.resources.pop(name, None)
        cloud.begin(name, creates=False, finish=finish)

    def _running(self, key):
        return self._running_at(self._endpoint(key), self._model(key))

    def _started(self, sent):
        last = self._named(sent.operation)
        if last and f"/locations/{self.location}/" in last.name:
            if not last.is_done:
                return [as_running(last)]
            if last.fault == CANCELLED:
                return []
        return self._unsure(sent.spec, sent.lost, sent.operation)

    def _unsure(self, spec, lost, known):
        if lost is None or not is_from_garden(spec):
            return []
        began_at = {one.name: one.began_at for one in self.cloud.running}
        return [
            replace(one, is_sure=False)
            for one in self._running_at(self.parent)
            if one.name != known and lost.may_have_started(began_at[one.name])
        ]

    def _add(self, kind, name, labels):
        self.cloud.resources[name] = Resource(kind, name, dict(labels))

    def _change(self, name, **fields):
        if name in self.cloud.resources:
            self.cloud.resources[name] = replace(self.cloud.resources[name], **fields)

    def _endpoint(self, key):
        return f"{self.parent}/endpoints/{endpoint_id(key)}"

    def _model(self, key):
        return f"{self.parent}/models/{endpoint_id(key)}"


class CloudRunPlatform(Platform):
    """One service, which bills until it is deleted or its start has failed."""

    def adopt(self, plan, snapshot):
        if snapshot.operations:
            return False
        names = [one.name for one in snapshot.resources]
        self.cloud.request("adopt", lambda: [self._label(name, plan.labels) for name in names])
        return True

    def _poll(self, plan, operation, lost):
        name = self._service(plan.key)
        service = self.cloud.resources.get(name)
        if service is None:
            return EndpointSnapshot(missing="service")
        running = self._running_at(name)[-1:]
        fault = None if running else self.cloud.faults.get(name)
        is_up = not running and fault is None
        return EndpointSnapshot((service,), tuple(running), is_up=is_up, fault=fault, base_url="https://run")

    def _create(self, step, plan):
        cloud, name = self.cloud, self._service(plan.key)
        if name in cloud.resources:
            return None
        cloud.resources[name] = Resource("service", name, dict(plan.labels), usd_per_hour=1.42)
        cloud.faults.pop(name, None)
        cloud.bill(name)

        def undo():
            cloud.faults[name] = operation.fault
            cloud.unbill(name)

        operation = cloud.begin(name, undo=undo)
        return operation

    def _remove(self, resource):
        cloud, name = self.cloud, resource.name
        cloud.resources[name] = replace(cloud.resources[name], is_being_deleted=True)
        self._doom(name)

        def finish():
            cloud.resources.pop(name, None)
            cloud.unbill(name)
            for one in cloud.operations:
                one.is_done |= one.name.startswith(f"{name}/")

        cloud.begin(name, creates=False, finish=finish)

    def _running(self, key):
        return []

    def _started(self, sent):
        return []

    def _service(self, key):
        return f"{self.parent}/services/{service_id(key)}"


def as_running(operation: Operation) -> RunningOperation:
    return RunningOperation(operation.name, creates=operation.creates)


def owner_of(cloud: Cloud) -> set[str | None]:
    """Returns the tries whose labels endpoints and services have."""
    return {one.labels.get(TRY_LABEL) for one in cloud.resources.values() if one.kind != "model"}


def lost_reply() -> CloudUnavailableError:
    return CloudUnavailableError("503: the reply was lost.")
