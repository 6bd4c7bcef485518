"""What an endpoint is made of, as seen at one moment: plain values, no client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from airflow_provider_llmbeam.endpoints.fault import Fault
from airflow_provider_llmbeam.spec.endpoint.identity import KEY_LABEL, TRY_LABEL, expires_at

PartKind = Literal["endpoint", "model", "service"]


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource.

    Attributes:
        kind: An endpoint or a model on Vertex AI, or a service on Cloud Run.
        name: Whole, `projects/…`.
        labels: Also those that its display name stands for.
        deployed: Ids of what an endpoint has deployed, each with the model's name.
        usd_per_hour: What it costs at least; `None` where that is not known.
        is_leaving: Whether it is being deleted.
    """

    kind: PartKind
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    deployed: Mapping[str, str] = field(default_factory=dict)
    usd_per_hour: float | None = None
    is_leaving: bool = False

    @property
    def key(self) -> str | None:
        """Whose it is; `None`: not ours."""
        return self.labels.get(KEY_LABEL)

    @property
    def attempt(self) -> str | None:
        """The try that answers for it."""
        return self.labels.get(TRY_LABEL)

    @property
    def expires_at(self) -> float | None:
        """In seconds of the Unix epoch; `None`: not ours."""
        return expires_at(self.labels)

    @property
    def id(self) -> str:
        """The last part of the name."""
        return self.name.rpartition("/")[2]

    @property
    def location(self) -> str:
        """Region."""
        return self.name.split("/")[3]

    @property
    def bills(self) -> bool:
        """Whether it has a GPU: an endpoint without a model costs nothing, nor does a model."""
        return self.kind == "service" or bool(self.deployed)

    @property
    def command(self) -> str:
        """What a person types to remove it."""
        _, project, _, location, *_ = self.name.split("/")
        where = f"--region={location} --project={project} --quiet"
        if self.kind == "service":
            return f"gcloud run services delete {self.id} {where}"
        if self.kind == "model":
            return f"gcloud ai models delete {self.id} {where}"
        undeploy = [
            f"gcloud ai endpoints undeploy-model {self.id} --deployed-model-id={deployed} {where}"
            for deployed in self.deployed
        ]
        return " && ".join([*undeploy, f"gcloud ai endpoints delete {self.id} {where}"])


@dataclass(frozen=True, slots=True)
class RunningOperation:
    """A long-running operation that is not over.

    Attributes:
        name: Whole, `projects/…`.
        makes: Whether it makes something; else it removes.
    """

    name: str
    makes: bool = True


@dataclass(frozen=True, slots=True)
class EndpointSnapshot:
    """One location, as far as one endpoint goes.

    Attributes:
        parts: What there is of it.
        running: What is being done to it.
        missing: What has to be made next; `None`: nothing.
        is_up: Whether the service says that it is ready.
        fault: Why the last thing that was made did not succeed.
        base_url: Where it answers.
    """

    parts: tuple[Resource, ...] = ()
    running: tuple[RunningOperation, ...] = ()
    missing: str | None = None
    is_up: bool = False
    fault: Fault | None = None
    base_url: str | None = None

    @property
    def attempts(self) -> frozenset[str | None]:
        """The tries that answer for what can be labelled again."""
        return frozenset(part.attempt for part in self.parts if part.kind != "model")

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it is there, nor on its way."""
        return not self.parts and not self.running

    @property
    def is_leaving(self) -> bool:
        """Whether it is being deleted."""
        return any(part.is_leaving for part in self.parts) or any(not one.makes for one in self.running)


def still_billing(parts: Iterable[Resource], running: Iterable[RunningOperation] = ()) -> str:
    """Says what is there, what it costs, and how to remove it."""
    parts = list(parts)
    billing = [part for part in parts if part.bills]
    said = [f"{part.kind} {part.name!r} is still billing, {_rate(part)}." for part in billing]
    said += [f"{part.kind} {part.name!r} is left and costs nothing." for part in parts if not part.bills]
    said += [f"operation {one.name!r} is still running and may bill." for one in running]
    # A model that is deployed cannot be deleted: the endpoints come first.
    commands = [part.command for part in sorted(parts, key=lambda part: part.kind == "model")]
    remove = f" To remove it: `{' && '.join(commands)}`." if commands else ""
    return " ".join(f"{words[0].upper()}{words[1:]}" for words in said) + remove


def _rate(part: Resource) -> str:
    known = part.usd_per_hour
    return "at a price that is not known here" if known is None else f"about ${known:,.2f} an hour"
