"""Services of the emulated Cloud Run and their instances. No HTTP."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from llmbeam_sandbox.billing.settings import EndpointSettings
from llmbeam_sandbox.billing.state import CLOUD_RUN, Bill, Rent
from llmbeam_sandbox.cloud_run.checks import Plan
from llmbeam_sandbox.core.checks import project_number
from llmbeam_sandbox.core.clock import Timeline, timestamp

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
        name: Full name, with the project as the caller wrote it.
        fields: Fields as created and patched.
        plan: Configuration of these fields.
        created_at: Time of creation, in seconds since the epoch.
        updated_at: Time of the last change, in seconds since the epoch.
        generation: Number of the generation, from 1.
        state: Condition: `RECONCILING`, `SUCCEEDED` or `FAILED`.
        message: Message of the failure.
        reason: Reason of the failure, as a field of a `Condition`.
        policy: IAM policy.
        serving: Configuration of the instances that run; None before the first success.
        instances: Number of running instances.
        warm_at: Time from which instances answer, in seconds since the epoch; None while none runs.
        requested_at: Time of the last request, in seconds since the epoch.
        starts: Number of instances started so far.
    """

    name: str
    fields: dict[str, Any]
    plan: Plan
    created_at: float
    updated_at: float
    generation: int = 1
    state: str = RECONCILING
    message: str = ""
    reason: Mapping[str, str] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=lambda: {"version": 1, "bindings": []})
    serving: Plan | None = None
    instances: int = 0
    warm_at: float | None = None
    requested_at: float = 0.0
    starts: int = 0

    @property
    def labels(self) -> Mapping[str, str]:
        """Current labels."""
        labels: Mapping[str, str] = self.fields.get("labels") or {}
        return labels

    @property
    def id(self) -> str:
        """Last part of its name."""
        return self.name.rpartition("/")[2]

    @property
    def uri(self) -> str:
        """Address in the newer format."""
        _, project, _, location, *_ = self.name.split("/")
        number = project_number(project)
        digest = hashlib.sha256(f"{number}/{location}".encode()).hexdigest()
        letters = "".join(chr(ord("a") + int(digest[index : index + 2], 16) % 26) for index in range(0, 20, 2))
        return f"https://{self.id}-{letters}-{_CODES.get(location, 'xx')}.a{SUFFIX}"

    @property
    def urls(self) -> tuple[str, str]:
        """Both addresses."""
        _, project, _, location, *_ = self.name.split("/")
        return f"https://{self.id}-{project_number(project)}.{location}{SUFFIX}", self.uri

    @property
    def is_public(self) -> bool:
        """Whether every caller may invoke it."""
        return any(
            binding.get("role") == "roles/run.invoker" and "allUsers" in (binding.get("members") or ())
            for binding in self.policy.get("bindings") or ()
        )

    def resource(self) -> dict[str, Any]:
        """Returns the service as the API returns it."""
        at, updated = timestamp(self.created_at), timestamp(self.updated_at)
        condition = {"type": "Ready", "state": self.state, "lastTransitionTime": updated}
        if self.message:
            condition |= {"message": self.message, **self.reason, "severity": "ERROR"}
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
        timeline: Scheduler of the ends of idle instances.
        bill: Charges for running instances.
        settings: Durations of cold starts and idle times.
    """

    timeline: Timeline
    bill: Bill
    settings: EndpointSettings

    def start(self, service: RunService, plan: Plan, count: int, at: float) -> None:
        """Replaces the running instances by `count` new ones at `at`, in seconds since the epoch."""
        self.stop(service, at)
        for number in range(count):
            rent = Rent(
                kind=CLOUD_RUN, name=service.name, gpu=plan.gpu, gpus=plan.gpus, labels=lambda: service.labels
            )
            self.bill.start(f"{service.name}/{number}", at, rent)
        service.instances, service.starts = count, service.starts + count

    def stop(self, service: RunService, at: float) -> None:
        """Ends all instances of a service."""
        for number in range(service.instances):
            self.bill.stop(f"{service.name}/{number}", at)
        service.instances, service.warm_at = 0, None

    def admit(self, service: RunService, now: float) -> bool:
        """Returns whether an instance can answer a request; starts one if none runs."""
        service.requested_at = now
        if service.warm_at is None and service.serving is not None:
            self.start(service, service.serving, 1, now)
            service.warm_at = now + self.settings.cold_start_seconds
            self._end_when_idle(service, service.starts, now)
        return service.warm_at is not None and service.warm_at <= now

    def _end_when_idle(self, service: RunService, starts: int, at: float) -> None:
        def check(when: float) -> None:
            if service.starts != starts or service.warm_at is None:
                return
            idle_at = max(service.requested_at, service.warm_at) + self.settings.idle_seconds
            if idle_at <= when:
                self.stop(service, when)
            else:
                self.timeline.at(idle_at, check)

        self.timeline.at(at + self.settings.cold_start_seconds + self.settings.idle_seconds, check)
