"""Names and labels by which an endpoint is found again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from airflow_provider_llmbeam.spec.fields.names import DEPLOYMENT_LABEL

#: Owner of a resource, the same for every attempt of a run. A resource without it was not made by this package.
KEY_LABEL = "llmbeam-key"
#: Unix time in seconds after which the sweeper may delete the resource.
EXPIRES_LABEL = "llmbeam-expires"
DAG_LABEL = "llmbeam-dag"
TASK_LABEL = "llmbeam-task"
RUN_LABEL = "llmbeam-run"
#: The attempt that owns the resource now: an attempt that ends late leaves a resource of another one alone.
TRY_LABEL = "llmbeam-try"
#: Label of a Dataflow job: id of the endpoint that it uses.
ENDPOINT_LABEL = "llmbeam-endpoint"

_PREFIX = "llmbeam-"
_MAX_SERVICE_ID = 49
_DIGEST = 12
#: The two addresses of a service on Cloud Run. Source: cloud.google.com/run/docs/triggering/https-request
_RUN_ADDRESS = re.compile(
    rf"https://({_PREFIX}[a-z0-9-]*[0-9a-f]{{{_DIGEST}}})-"
    r"(?:[a-z0-9]{10}-[a-z0-9]+\.a|[0-9]+\.[a-z0-9-]+)\.run\.app"
)
_DISPLAY_NAME = re.compile(r"llmbeam (?P<key>[a-z0-9-]+) expires (?P<at>\d+)( for (?P<deployment>[a-z0-9-]+))?")


def endpoint_id(key: str) -> str:
    """Returns the id of the endpoint and of the uploaded model on Vertex AI: at most 63 of a-z, 0-9 and -.

    Args:
        key: Result of `spec.identity.identity`.
    """
    return f"{_PREFIX}{key}"


def service_id(key: str) -> str:
    """Returns the id of the service on Cloud Run: at most 49 of a-z, 0-9 and -."""
    readable, _, digest = key.rpartition("-")
    room = _MAX_SERVICE_ID - len(_PREFIX) - len(digest) - 1
    return f"{_PREFIX}{'-'.join(filter(None, (readable[:room].strip('-'), digest)))}"


def label_value(text: str) -> str:
    """Converts a text to the value of a label; different texts get different values."""
    value = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-")
    if value == text and len(value) <= 63:
        return value
    return f"{value[:50].rstrip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]}".lstrip("-")


def endpoint_labels(
    key: str, *, deployment: str, expires_at: float, dag_id: str, run_id: str, attempt: str
) -> dict[str, str]:
    """Returns the labels of every resource of an endpoint.

    Args:
        key: Result of `spec.identity.identity`.
        deployment: Airflow deployment of the task.
        expires_at: Unix time in seconds.
        dag_id: Dag of the task.
        run_id: Dag run of the task.
        attempt: Identifier of the attempt, any text.
    """
    return {
        KEY_LABEL: key,
        DEPLOYMENT_LABEL: deployment,
        EXPIRES_LABEL: str(int(expires_at)),
        DAG_LABEL: label_value(dag_id),
        RUN_LABEL: label_value(run_id),
        TRY_LABEL: label_value(attempt),
    }


def display_name(labels: Mapping[str, str]) -> str:
    """Returns a display name with the labels for the sweeper: a deployment from Model Garden has none."""
    return f"llmbeam {labels[KEY_LABEL]} expires {labels[EXPIRES_LABEL]} for {labels[DEPLOYMENT_LABEL]}"


def known_labels(labels: Mapping[str, str], name: str) -> dict[str, str]:
    """Returns the labels of a resource; if it has none of this package, those encoded in its display name."""
    if KEY_LABEL in labels or not (match := _DISPLAY_NAME.fullmatch(name)):
        return dict(labels)
    encoded = {KEY_LABEL: match["key"], EXPIRES_LABEL: match["at"], DEPLOYMENT_LABEL: match["deployment"] or ""}
    return {**labels, **encoded}


def expires_at(labels: Mapping[str, str]) -> float | None:
    """Returns the expiry of a resource, in Unix seconds; `None` if it was not made by this package."""
    value = labels.get(EXPIRES_LABEL, "")
    return float(value) if KEY_LABEL in labels and value.isdecimal() else None


def endpoint_of_model(model: object) -> str | None:
    """Returns the id of the endpoint or service of a model, if it was made by this package."""
    name = str(getattr(model, "endpoint", "") or "").rpartition("/")[2]
    if name.startswith(_PREFIX):
        return name
    return run_service_of(str(getattr(model, "id_token_audience", "") or ""))


def run_service_of(address: str) -> str | None:
    """Returns the id of the service on Cloud Run at an address, if it was made by this package."""
    found = _RUN_ADDRESS.match(address)
    return found[1] if found else None
