"""Services of the emulated Cloud Run: what each is, and which of its instances run. No HTTP."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from airflow_provider_llmbeam.sandbox.billing.bill import CLOUD_RUN, Bill, Rent
from airflow_provider_llmbeam.sandbox.cloud_run.checks import Plan
from airflow_provider_llmbeam.sandbox.core.timeline import Timeline
from airflow_provider_llmbeam.sandbox.storage.state import timestamp
from airflow_provider_llmbeam.sandbox.vertex.checks import project_number

SUFFIX = ".run.app"
RECONCILING = "CONDITION_RECONCILING"
SUCCEEDED = "CONDITION_SUCCEEDED"
FAILED = "CONDITION_FAILED"
# Source: the addresses of services in these regions.
_CODES = {
    "us-central1": "uc",
    "us-east1": "ue",
    "us-east4": "uk",
    "us-west1": "uw",
    "europe-west1": "ew",
    "europe-west4": "ez",
    "asia-east1": "de",
    "asia-northeast1": "an",
    "asia-south1": "el",
    "asia-southeast1": "as",
}


@dataclass(kw_only=True)
class RunService:
    """A service.

    Attributes:
        name: In full, as the caller wrote the project.
        fields: As created and patched.
        plan: What these ask for.
        created_at: Seconds since the epoch.
        updated_at: Seconds since the epoch.
        generation: How often it has been changed, from 1.
        state: One of the conditions above.
        message: Why it failed.
        policy: Who may do what.
        serving: What runs now serves this; None before the first success.
        instances: How many run.
        warm_at: Since when they answer, or will, in seconds since the epoch; None while none runs.
        asked_at: When the last request came, in seconds since the epoch.
        starts: How many instances there have been.
    """

    name: str
    fields: dict[str, Any]
    plan: Plan
    created_at: float
    updated_at: float
    generation: int = 1
    state: str = RECONCILING
    message: str = ""
    policy: dict[str, Any] = field(default_factory=lambda: {"version": 1, "bindings": []})
    serving: Plan | None = None
    instances: int = 0
    warm_at: float | None = None
    asked_at: float = 0.0
    starts: int = 0

    @property
    def labels(self) -> Mapping[str, str]:
        """As they are now."""
        labels: Mapping[str, str] = self.fields.get("labels") or {}
        return labels

    @property
    def id(self) -> str:
        """The last part of its name."""
        return self.name.rpartition("/")[2]

    @property
    def uri(self) -> str:
        """Where it answers."""
        _, project, _, location, *_ = self.name.split("/")
        number = project_number(project)
        digest = hashlib.sha256(f"{number}/{location}".encode()).hexdigest()
        letters = "".join(chr(ord("a") + int(digest[index : index + 2], 16) % 26) for index in range(0, 20, 2))
        return f"https://{self.id}-{letters}-{_CODES.get(location, 'xx')}.a{SUFFIX}"

    @property
    def urls(self) -> tuple[str, str]:
        """Both its addresses."""
        _, project, _, location, *_ = self.name.split("/")
        return f"https://{self.id}-{project_number(project)}.{location}{SUFFIX}", self.uri

    @property
    def is_public(self) -> bool:
        """Whether everybody may ask it."""
        return any(
            binding.get("role") == "roles/run.invoker" and "allUsers" in (binding.get("members") or ())
            for binding in self.policy.get("bindings") or ()
        )

    def resource(self) -> dict[str, Any]:
        """Return it as the API shows it."""
        at, updated = timestamp(self.created_at), timestamp(self.updated_at)
        condition = {"type": "Ready", "state": self.state, "lastTransitionTime": updated}
        if self.message:
            condition |= {"message": self.message, "reason": "UNKNOWN", "severity": "ERROR"}
        revision = f"{self.name}/revisions/{self.id}-{self.generation:05d}-abc"
        ready = {"latestReadyRevision": revision} if self.state == SUCCEEDED else {}
        return {
            **self.fields,
            "name": self.name,
            "uid": str(uuid5(NAMESPACE_URL, f"{self.name}/{self.created_at}")),
            "generation": str(self.generation),
            "observedGeneration": str(self.generation),
            "createTime": at,
            "updateTime": updated,
            "terminalCondition": condition,
            "conditions": [condition],
            "latestCreatedRevision": revision,
            **ready,
            "reconciling": self.state == RECONCILING,
            **({"uri": self.uri, "urls": list(self.urls)} if self.serving is not None else {}),
        }


@dataclass(frozen=True, kw_only=True)
class Instances:
    """Starts and ends the instances of services; called under the timeline's lock.

    Attributes:
        timeline: When an idle one ends.
        bill: For those that run.
        cold_start_seconds: From the start of an instance to its first answer.
        idle_seconds: After its last request, one that is not kept ends.
    """

    timeline: Timeline
    bill: Bill
    cold_start_seconds: float
    idle_seconds: float

    def start(self, service: RunService, plan: Plan, count: int, at: float) -> None:
        """Have `count` instances run rather than those that do; times in seconds since the epoch."""
        self.stop(service, at)
        for number in range(count):
            rent = Rent(
                kind=CLOUD_RUN, name=service.name, gpu=plan.gpu, gpus=plan.gpus, labels=lambda: service.labels
            )
            self.bill.start(f"{service.name}/{number}", at, rent)
        service.instances, service.starts = count, service.starts + count

    def stop(self, service: RunService, at: float) -> None:
        """End all instances of a service."""
        for number in range(service.instances):
            self.bill.stop(f"{service.name}/{number}", at)
        service.instances, service.warm_at = 0, None

    def ask(self, service: RunService, now: float) -> bool:
        """Return whether an instance answers a request; one is started when none runs."""
        service.asked_at = now
        if service.warm_at is None and service.serving is not None:
            self.start(service, service.serving, 1, now)
            service.warm_at = now + self.cold_start_seconds
            self._watch(service, service.starts, now)
        return service.warm_at is not None and service.warm_at <= now

    def _watch(self, service: RunService, starts: int, at: float) -> None:
        def look(when: float) -> None:
            if service.starts != starts or service.warm_at is None:
                return
            idle_at = max(service.asked_at, service.warm_at) + self.idle_seconds
            if idle_at <= when:
                self.stop(service, when)
            else:
                self.timeline.at(idle_at, look)

        self.timeline.at(at + self.cold_start_seconds + self.idle_seconds, look)
