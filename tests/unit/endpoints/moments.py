"""The moments of an endpoint: what happens in its life, and what provisioning requests then.

`python -m tests.unit.endpoints.moments` writes the tables of `docs/reference/endpoint-cases.md`. `test_moments.py`
and, for what Airflow does, `tests/integration/test_endpoint_cases.py` play each row.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from airflow_provider_llmbeam.endpoints.fault import Fault
from airflow_provider_llmbeam.endpoints.monitor import EndpointMonitor, ProvisioningResult
from airflow_provider_llmbeam.endpoints.platform import Answer, EndpointPlan
from airflow_provider_llmbeam.endpoints.provisioning import MAX_REFUSED_SECONDS, Provisioner, ProvisioningHistory
from airflow_provider_llmbeam.endpoints.resource import LostReply
from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudUnavailableError
from airflow_provider_llmbeam.spec import parse_endpoint
from airflow_provider_llmbeam.spec.endpoint.identity import endpoint_labels
from airflow_provider_llmbeam.spec.identity import identity
from tests.unit.endpoints.fake_cloud import Cloud, CloudRunPlatform, VertexPlatform, lost_reply

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "endpoint-cases.md"
KEY, OTHER = identity("gpu-0123456789ab"), identity("gpu-ba9876543210")
LOCATIONS = ("us-central1", "europe-west4")
READY_SECONDS = 3_600.0
EXPIRES_SECONDS = 21_600.0

GARDEN = {"type": "vertex", "model": "google/gemma3@gemma-3-4b-it", "accept_eula": True}
CONTAINER = {
    "type": "vertex",
    "model": "Qwen/Qwen3-4B",
    "container_image": "vllm/vllm-openai:v0.11.0",
    "machine_type": "g2-standard-12",
}
CLOUD_RUN = {"type": "cloud_run", "model": "Qwen/Qwen3-4B"}
_REGISTERED = f"projects/gpu-project-1/locations/{LOCATIONS[0]}/models/support"
CANARY = {
    "type": "vertex",
    "model": f"{_REGISTERED}@3",
    "canary": {"model": f"{_REGISTERED}@4"},
    "machine_type": "g2-standard-12",
    "locations": LOCATIONS[:1],
}
KINDS = {"garden": GARDEN, "garden_late": GARDEN, "container": CONTAINER, "cloud_run": CLOUD_RUN}
#: Every kind; a canary has one location, and lives of its own.
SPECS = {**KINDS, "canary": CANARY}
PLATFORMS = {"vertex": VertexPlatform, "cloud_run": CloudRunPlatform}
NAMES = {
    "garden": "Model Garden",
    "garden_late": "Model Garden, later",
    "container": "container",
    "cloud_run": "Cloud Run",
}

STOCK_OUT, QUOTA = Fault("stock_out", "No GPU is free."), Fault("quota", "The GPU quota is 0.")
#: What happens before a poll.
EVENTS = {
    "done": lambda cloud: cloud.end_operations(),
    "stock-out": lambda cloud: cloud.end_operations(STOCK_OUT),
    "fails": lambda cloud: cloud.end_operations(Fault("failed", "The server never came up.")),
    "no quota": lambda cloud: cloud.create_errors.append(QUOTA),
    "refused": lambda cloud: cloud.create_errors.append(Fault("refused", "No such machine.")),
    "reply lost": lambda cloud: cloud.create_errors.append(lost_reply()),
    "loading": lambda cloud: cloud.answers.append(Answer("HTTP 503.", may_help_to_wait=True)),
    "model 403": lambda cloud: cloud.answers.append(Answer("HTTP 403.")),
    "5 minutes": lambda cloud: cloud.sleep(MAX_REFUSED_SECONDS),
    "late": lambda cloud: cloud.sleep(READY_SECONDS),
    "503": lambda cloud: cloud.poll_errors.append(CloudUnavailableError("503.")),
    "403": lambda cloud: cloud.poll_errors.append(AccessDeniedError("403.")),
    "crash": lambda cloud: cloud.poll_errors.append(KeyError("state")),
}


@dataclass(frozen=True)
class Life:
    """What happens to an endpoint that is provisioned.

    Attributes:
        name: What is special.
        kind: Key of `SPECS`.
        steps: One for each poll, separated by ` · `: events, separated by `, ` and ended by `:`; then the expected
            requests, `wait` if there is none; at the end, the outcome.
    """

    name: str
    kind: str
    steps: str

    def __str__(self) -> str:
        return f"{self.name}, {NAMES.get(self.kind, self.kind)}"

    @property
    def gpus(self) -> int:
        """Number of GPUs of the endpoint."""
        return 2 if "canary" in SPECS[self.kind] else 1

    @property
    def moments(self) -> list[tuple[list[str], str]]:
        """The events before each poll, and what is expected of it."""
        found = [step.rpartition(": ") for step in self.steps.split(" · ")]
        return [(events.split(", ") if events else [], expected) for events, _, expected in found]


_VERTEX = {
    "asks": "ask",
    "deletes": "delete endpoint, delete model · wait",
    "undeploys": "undeploy · wait · done: delete endpoint, delete model · wait",
    "cancels": "cancel · cancel · done: delete endpoint, delete model · wait",
}
#: What the words of `CASES` are on each platform.
WORDS = {
    "garden": {
        "requests": "create deployment",
        "looks": "adopt · wait",
        "clears": "",
        **_VERTEX,
    },
    "garden_late": {
        "requests": "create deployment",
        "looks": "wait",
        "clears": "",
        **_VERTEX,
        "asks": "adopt · ask",
        "deletes": "wait",
        "cancels": "cancel · cancel",
    },
    "container": {
        "requests": "create endpoint · done: create model · done: create replicas",
        "looks": "wait",
        "clears": ", delete endpoint, delete model",
        **_VERTEX,
    },
    "cloud_run": {
        "requests": "create service",
        "looks": "wait",
        "clears": "",
        "asks": "ask",
        "deletes": "delete service · wait",
        "undeploys": "delete service · wait",
        "cancels": "delete service · wait",
    },
}
BOOTS = "{requests} · {looks}"
CASES = {
    "no failure": f"{BOOTS} · done, loading: {{asks}} · ask, ready",
    "no GPU is free in the first location": (
        f"{BOOTS} · stock-out: {{deletes}} · done: next location · {BOOTS} · done: {{asks}}, ready"
    ),
    "no GPU quota in any location": (
        "no quota: {requests}{clears} · done: next location · no quota: {requests}{clears} · done: stock_out"
    ),
    "the machine is refused": "refused: {requests}{clears} · done: refused",
    "the deployment fails half-way": f"{BOOTS} · fails: {{deletes}} · done: failed",
    "the GPU boots for too long": f"{BOOTS} · late: {{cancels}} · done: failed",
    "the GPU comes up while nobody polls": f"{BOOTS} · done, late: {{asks}}, ready",
    "the model refuses to answer": (
        f"{BOOTS} · done, model 403: {{asks}} · 5 minutes, model 403: ask, {{undeploys}} · done: refused"
    ),
    "the reply to the request is lost": f"reply lost: {BOOTS} · done: {{asks}}, ready",
    "polls fail while the GPU boots": f"{BOOTS} · 503: wait · crash: wait · 503: wait · done: {{asks}}, ready",
    "the permission is withdrawn": f"{BOOTS} · 403: wait · 403: wait · 403: still_billing",
}
_DEPLOYS = "create endpoint · done: create replicas · done{}: create canary · wait"
LIVES = [
    *(Life(name, kind, steps.format(**WORDS[kind])) for name, steps in CASES.items() for kind in KINDS),
    Life("both versions come up", "canary", f"{_DEPLOYS.format('')} · done, loading: ask · ask, ready"),
    Life("the reply to its request is lost", "canary", f"{_DEPLOYS.format(', reply lost')} · done: ask, ready"),
    Life(
        "no GPU is free for it",
        "canary",
        f"{_DEPLOYS.format('')} · stock-out: undeploy · wait · done: delete endpoint · wait · done: stock_out",
    ),
    Life(
        "its GPU boots for too long",
        "canary",
        f"{_DEPLOYS.format('')} · late: cancel, undeploy · done: undeploy · wait · done: delete endpoint · wait "
        "· done: failed",
    ),
]


@dataclass(frozen=True)
class RunEnd:
    """What a run on a real Airflow must leave.

    Attributes:
        tasks: States of `provision`, `work` and `teardown`; with the number of tries where there were more.
        run: State of the run.
        removed_by: Who may have ended the bill.
    """

    tasks: tuple[str, str, str] = ("success", "success", "success")
    run: str = "success"
    removed_by: tuple[str, ...] = ("teardown",)


_NEVER_UP = ("failed", "upstream_failed", "success")

RUNS = {
    "work killed with its supervisor": RunEnd(("success", "failed", "success"), "failed"),
    "work cleared": RunEnd(("success (2)", "success (2)", "success")),
    "`provision` cleared while the GPU boots": RunEnd(("success (2)", "success", "success")),
    "`provision` killed while the GPU boots, and tried again": RunEnd(("success (2)", "success", "success")),
    "`provision` killed while the GPU boots, not tried again": RunEnd(_NEVER_UP, "failed"),
    "`execution_timeout` while the GPU boots": RunEnd(_NEVER_UP, "failed", ("provision", "teardown")),
    "run marked failed while the GPU boots": RunEnd(
        ("failed", "skipped", "success"), removed_by=("provision", "teardown")
    ),
    "teardown refused": RunEnd(("success", "success", "success (2)")),
    "Dag paused until the endpoint has expired": RunEnd(removed_by=("sweeper",)),
    "no triggerer runs while the GPU boots, `provision` marked failed": RunEnd(_NEVER_UP, "failed"),
    "triggerer killed while the GPU boots, and another one started": RunEnd(),
    "scheduler killed while the work runs, and another one started": RunEnd(("success", "success (2)", "success")),
    "scheduler down until the endpoint has expired": RunEnd(removed_by=("sweeper",)),
}


def garden_resources_of(kind: str) -> Literal["at_once", "when_deployed"]:
    """Returns when endpoint and model of a deployment from Model Garden exist."""
    return "when_deployed" if kind == "garden_late" else "at_once"


class Try:
    """One try of `provision`.

    Args:
        cloud: Where it provisions.
        kind: Key of `SPECS`.
        attempt: Value of its label. The first request of the tries before the second one was sent at 0 s.
        history: History of another process of this try, as JSON.
        key: Identity of the endpoint.
    """

    def __init__(
        self, cloud: Cloud, kind: str, attempt: str = "1", history: str | None = None, key: str = KEY
    ) -> None:
        spec = parse_endpoint({"project": "gpu-project-1", "locations": LOCATIONS, **SPECS[kind]})
        owner = {"dag_id": "d", "run_id": "r", "attempt": attempt}
        labels = endpoint_labels(key, deployment="prod", expires_at=cloud.now + EXPIRES_SECONDS, **owner)
        lost = None if attempt == "1" else LostReply(0.0, cloud.now)
        started = ProvisioningHistory(cloud.now, lost=lost)
        if history is not None:
            started = ProvisioningHistory.from_dict(json.loads(history)).in_new_process(cloud.now)
        self.cloud, self.kind, self.attempt = cloud, kind, attempt
        self.spec, self.plan = spec, EndpointPlan(spec, key, labels)
        self.monitor = EndpointMonitor(
            lambda location: PLATFORMS[spec.type](cloud, location),
            self.plan,
            provisioner=Provisioner(
                spec.locations,
                poll_interval_seconds=15.0,
                ready_within_seconds=READY_SECONDS,
                attempt=attempt,
                history=started,
            ),
            log=logging.getLogger(__name__),
            now=lambda: cloud.now,
        )

    @property
    def history(self) -> ProvisioningHistory:
        return self.monitor.provisioner.history

    def for_another_process(self) -> str:
        """Returns the history that Airflow keeps when this process leaves the try to a triggerer."""
        return json.dumps(self.history.for_another_process(self.cloud.now).to_dict())

    def restart(self, history: str | None = None) -> Try:
        """Returns this try in another triggerer, which reads what this one, or an earlier one, has left."""
        return Try(self.cloud, self.kind, self.attempt, history or self.for_another_process())

    def poll(self) -> str:
        """Polls once, waits as told, and returns what was requested, and the outcome where there is one."""
        before, location = len(self.cloud.requests), self.monitor.provisioner.location
        result = self.monitor.poll()
        found = self.cloud.requests[before:]
        if isinstance(result, ProvisioningResult):
            return ", ".join([*found, result.outcome])
        if location not in (None, self.monitor.provisioner.location):
            found.append("next location")
        self.cloud.sleep(result.seconds)
        return ", ".join(found) or "wait"

    def poll_until_result(self) -> ProvisioningResult:
        while not isinstance(result := self.monitor.poll(), ProvisioningResult):
            self.cloud.sleep(result.seconds)
        return result

    def play(self, life: Life) -> Iterator[str]:
        """Yields what each poll of a life does."""
        for events, _ in life.moments:
            for event in events:
                EVENTS[event](self.cloud)
            yield self.poll()


def tables() -> Iterator[str]:
    """Yields the tables of the page, in order."""
    yield _table(
        ("case", "run", "`provision`", "work", "`teardown`", "billing ended by"),
        *((name, one.run, *one.tasks, " or ".join(one.removed_by)) for name, one in RUNS.items()),
    )
    yield _table(
        ("case", "what happens: what is requested"),
        *((name, re.sub(r"{(\w+)}", r" *\1*", steps).replace("  ", " ").strip()) for name, steps in CASES.items()),
    )
    yield _table(
        ("", *NAMES.values()),
        *((f"*{word}*", *(WORDS[kind][word].removeprefix(", ") for kind in KINDS)) for word in WORDS["garden"]),
    )


def with_tables(page: str) -> str:
    """Returns a page with its tables replaced."""
    new = tables()
    return re.sub(r"(?:^\|.*\n)+", lambda _: next(new), page, flags=re.MULTILINE)


def _table(head: tuple[str, ...], *rows: tuple[str, ...]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ("---",) * len(head), *rows))


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
