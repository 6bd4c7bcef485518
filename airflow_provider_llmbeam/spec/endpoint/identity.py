"""By which names and labels an endpoint is found again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

#: Whose it is: the same for every try of a run. What lacks it is not ours.
KEY_LABEL = "llmbeam-key"
#: Seconds of the Unix epoch from which on anybody may remove it.
EXPIRES_LABEL = "llmbeam-expires"
DAG_LABEL = "llmbeam-dag"
RUN_LABEL = "llmbeam-run"
#: The try that answers for it now: a try that ends late leaves alone what another has taken over.
TRY_LABEL = "llmbeam-try"
#: Of a Dataflow job: the id of the endpoint that it asks.
ENDPOINT_LABEL = "llmbeam-endpoint"

_PREFIX = "llmbeam-"
_MAX_SERVICE_ID = 49
_DIGEST = 12
#: The two addresses of a service on Cloud Run. Source: cloud.google.com/run/docs/triggering/https-request
_RUN_ADDRESS = re.compile(
    rf"https://({_PREFIX}[a-z0-9-]*[0-9a-f]{{{_DIGEST}}})-"
    r"(?:[a-z0-9]{10}-[a-z0-9]+\.a|[0-9]+\.[a-z0-9-]+)\.run\.app"
)
_DISPLAY_NAME = re.compile(r"llmbeam (?P<key>[a-z0-9-]+) expires (?P<at>\d+)")


def endpoint_id(key: str) -> str:
    """Id of the endpoint and of the uploaded model on Vertex AI: at most 63 of a-z, 0-9 and -.

    Args:
        key: See `identity.identity`.
    """
    return f"{_PREFIX}{key}"


def service_id(key: str) -> str:
    """Id of the service on Cloud Run, which takes at most 49 of a-z, 0-9 and -."""
    readable, _, digest = key.rpartition("-")
    room = _MAX_SERVICE_ID - len(_PREFIX) - len(digest) - 1
    return f"{_PREFIX}{'-'.join(filter(None, (readable[:room].strip('-'), digest)))}"


def label_value(text: str) -> str:
    """Any text as a label takes it; what differs stays different."""
    value = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-")
    if value == text and len(value) <= 63:
        return value
    return f"{value[:50].rstrip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]}".lstrip("-")


def endpoint_labels(key: str, *, expires_at: float, dag_id: str, run_id: str, attempt: str) -> dict[str, str]:
    """The labels of everything that is made for an endpoint.

    Args:
        key: See `identity.identity`.
        expires_at: Seconds of the Unix epoch.
        dag_id: Of the task.
        run_id: Of the task.
        attempt: Of the try, any text.
    """
    return {
        KEY_LABEL: key,
        EXPIRES_LABEL: str(int(expires_at)),
        DAG_LABEL: label_value(dag_id),
        RUN_LABEL: label_value(run_id),
        TRY_LABEL: label_value(attempt),
    }


def display_name(labels: Mapping[str, str]) -> str:
    """A name that says as much as the sweeper needs: a deployment from Model Garden takes no labels."""
    return f"llmbeam {labels[KEY_LABEL]} expires {labels[EXPIRES_LABEL]}"


def known_labels(labels: Mapping[str, str], name: str) -> dict[str, str]:
    """The labels of a resource; where it has none of ours, those that its display name stands for."""
    if KEY_LABEL in labels or not (said := _DISPLAY_NAME.fullmatch(name)):
        return dict(labels)
    return {**labels, KEY_LABEL: said["key"], EXPIRES_LABEL: said["at"]}


def expires_at(labels: Mapping[str, str]) -> float | None:
    """When a resource of ours expires, in seconds of the Unix epoch; `None` for what is not ours."""
    value = labels.get(EXPIRES_LABEL, "")
    return float(value) if KEY_LABEL in labels and value.isdecimal() else None


def endpoint_of_model(model: object) -> str | None:
    """The id of our endpoint or service that a model spec asks, if it is one of ours."""
    name = str(getattr(model, "endpoint", "") or "").rpartition("/")[2]
    if name.startswith(_PREFIX):
        return name
    return run_service_of(str(getattr(model, "id_token_audience", "") or ""))


def run_service_of(address: str) -> str | None:
    """The id of our service on Cloud Run that an address is of."""
    found = _RUN_ADDRESS.match(address)
    return found[1] if found else None
