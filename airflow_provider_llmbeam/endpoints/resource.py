"""The resources of an endpoint and their state at one moment: plain values, no client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from airflow_provider_llmbeam.endpoints.fault import Fault
from airflow_provider_llmbeam.spec.endpoint.identity import KEY_LABEL, TRY_LABEL, expires_at
from airflow_provider_llmbeam.spec.fields.names import DEPLOYMENT_LABEL

#: `EndpointSnapshot.missing` of an endpoint that serves another version of the registered model.
OTHER_VERSION = "version of the model"

#: Largest difference between the clocks of this machine and of the service, in seconds.
CLOCK_SECONDS = 30.0

ResourceKind = Literal["endpoint", "model", "service"]


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of Google Cloud.

    Attributes:
        kind: An endpoint or a model on Vertex AI, or a service on Cloud Run.
        name: Full resource name, `projects/…`.
        labels: Labels, including those that its display name encodes.
        deployed: Names of the models that an endpoint has deployed, by the id of the deployed model.
        usd_per_hour: Minimum cost per hour, in US dollars; `None` if it is unknown.
        is_being_deleted: Whether the service is deleting it.
    """

    kind: ResourceKind
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    deployed: Mapping[str, str] = field(default_factory=dict)
    usd_per_hour: float | None = None
    is_being_deleted: bool = False

    @property
    def key(self) -> str | None:
        """Identity of its endpoint; `None` if this package did not create it."""
        return self.labels.get(KEY_LABEL)

    @property
    def deployment(self) -> str:
        """Airflow deployment that created it; empty if it is not known."""
        return self.labels.get(DEPLOYMENT_LABEL, "")

    @property
    def attempt(self) -> str | None:
        """The try that owns it."""
        return self.labels.get(TRY_LABEL)

    @property
    def expires_at(self) -> float | None:
        """Expiry in seconds of the Unix epoch; `None` if this package did not create it."""
        return expires_at(self.labels)

    @property
    def id(self) -> str:
        """Last segment of the name."""
        return self.name.rpartition("/")[2]

    @property
    def location(self) -> str:
        """Region."""
        return self.name.split("/")[3]

    @property
    def is_billed(self) -> bool:
        """Whether it holds a GPU: a model, or an endpoint without a deployed model, costs nothing."""
        return self.kind == "service" or bool(self.deployed)

    @property
    def delete_command(self) -> str:
        """Shell command that removes it."""
        _, project, _, location, *_ = self.name.split("/")
        where = f"--region={location} --project={project} --quiet"
        if self.kind == "service":
            return f"gcloud run services delete {self.id} {where}"
        if self.kind == "model":
            return f"gcloud ai models delete {self.id} {where}"
        return f"{self.undeploy_command} && gcloud ai endpoints delete {self.id} {where}".removeprefix(" && ")

    @property
    def undeploy_command(self) -> str:
        """Shell command that undeploys the models of an endpoint; empty without any."""
        _, project, _, location, *_ = self.name.split("/")
        where = f"--region={location} --project={project} --quiet"
        clear = f"gcloud ai endpoints update {self.id} --clear-traffic-split {where}"
        undeploy = [
            f"gcloud ai endpoints undeploy-model {self.id} --deployed-model-id={deployed} {where}"
            for deployed in self.deployed
        ]
        return " && ".join([clear, *undeploy] if len(undeploy) > 1 else undeploy)


@dataclass(frozen=True, slots=True)
class RunningOperation:
    """An unfinished long-running operation.

    Attributes:
        name: Full resource name, `projects/…`.
        creates: Whether it creates or deploys something; otherwise it removes something.
        is_sure: Whether it belongs to the endpoint. Otherwise it may, or to another run that deploys the same
            model: the reply that would name it was lost. It is waited for and never cancelled.
    """

    name: str
    creates: bool = True
    is_sure: bool = True


@dataclass(frozen=True, slots=True)
class LostReply:
    """A time in which a create request may have started an operation whose name is not known.

    Attributes:
        since: Start, in seconds of the Unix epoch.
        until: End, in seconds of the Unix epoch; `None` if another process may still send requests.
    """

    since: float
    until: float | None = None

    def unite(self, other: LostReply | None) -> LostReply:
        """Returns the time from the start of the earlier one to the end of the later one."""
        if other is None:
            return self
        ends = (self.until, other.until)
        until = None if None in ends else max(end for end in ends if end is not None)
        return LostReply(min(self.since, other.since), until)

    def may_have_started(self, created_at: float | None) -> bool:
        """Whether an operation may be that of the request.

        Args:
            created_at: When the service created the operation, in seconds of the Unix epoch; `None` if unknown.
        """
        if created_at is None:
            return True
        is_before_end = self.until is None or created_at <= self.until + CLOCK_SECONDS
        return created_at >= self.since - CLOCK_SECONDS and is_before_end


@dataclass(frozen=True, slots=True)
class EndpointSnapshot:
    """State of one endpoint in one location.

    Attributes:
        resources: Existing resources of the endpoint.
        operations: Unfinished operations of the endpoint, and those that may be.
        missing: Resource to create next; `None` if there is none; or `OTHER_VERSION`.
        is_up: Whether the service reports the endpoint as ready.
        fault: Reason why the last create operation failed.
        base_url: URL of the model server.
        predict_url: URL that takes all requests in a peered network; `None` without one.
    """

    resources: tuple[Resource, ...] = ()
    operations: tuple[RunningOperation, ...] = ()
    missing: str | None = None
    is_up: bool = False
    fault: Fault | None = None
    base_url: str | None = None
    predict_url: str | None = None

    @property
    def attempts(self) -> frozenset[str | None]:
        """The tries that own the resources; models are left out because their labels may be older."""
        return frozenset(resource.attempt for resource in self.resources if resource.kind != "model")

    @property
    def is_empty(self) -> bool:
        """Whether there are neither resources nor operations that are surely those of the endpoint."""
        return not self.resources and not any(operation.is_sure for operation in self.operations)

    @property
    def unsure(self) -> tuple[RunningOperation, ...]:
        """Operations that may be those of the endpoint."""
        return tuple(operation for operation in self.operations if not operation.is_sure)

    @property
    def is_being_deleted(self) -> bool:
        """Whether a resource is being deleted or a removing operation is running."""
        return any(resource.is_being_deleted for resource in self.resources) or any(
            not operation.creates for operation in self.operations
        )


def still_billing(resources: Iterable[Resource], operations: Iterable[RunningOperation] = ()) -> str:
    """Returns sentences that name what is left, its cost, and the command that removes it."""
    resources = list(resources)
    billed = [resource for resource in resources if resource.is_billed]
    parts = [f"{one.kind} {one.name!r} is still billing, {_price(one)}." for one in billed]
    parts += [f"{one.kind} {one.name!r} is left and costs nothing." for one in resources if not one.is_billed]
    parts += [f"operation {one.name!r} is still running and may bill{_doubt(one)}." for one in operations]
    # A deployed model cannot be deleted, so the commands for endpoints come first.
    commands = [one.delete_command for one in sorted(resources, key=lambda one: one.kind == "model")]
    remove = f" To remove it: `{' && '.join(commands)}`." if commands else ""
    return " ".join(f"{part[0].upper()}{part[1:]}" for part in parts) + remove


def _doubt(operation: RunningOperation) -> str:
    if operation.is_sure:
        return ""
    return (
        ": it deploys the same model and began when the reply to a create request was lost, so it is of this "
        "endpoint or of another run. If it is of this endpoint, what it creates is found by name once it is done"
    )


def _price(resource: Resource) -> str:
    known = resource.usd_per_hour
    return "at an unknown price" if known is None else f"about ${known:,.2f} an hour"
