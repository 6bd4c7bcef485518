"""The REST API of a Flink cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import requests

from airflow_provider_llmbeam.exceptions import (
    AccessDeniedError,
    CloudError,
    CloudNotFoundError,
    CloudUnavailableError,
    RequestRefusedError,
)
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.endpoint.identity import RUN_LABEL
from airflow_provider_llmbeam.spec.remote_job import Phase, RemoteJob, newest_first
from airflow_provider_llmbeam.transport.server_reply import error_text

#: All states of `JobStatus` in Flink 2.2.
PHASES: Mapping[str, Phase] = MappingProxyType(
    {
        "INITIALIZING": "running",
        "CREATED": "running",
        "RUNNING": "running",
        "RESTARTING": "running",
        "RECONCILING": "running",
        "SUSPENDED": "running",  # another job manager takes it over
        "FAILING": "running",
        "FAILED": "failed",
        "CANCELLING": "cancelling",
        "CANCELED": "cancelled",
        "FINISHED": "done",
    }
)
#: Name of a job of a run, see `spec.identity.flink_name`.
_OF_RUN = re.compile(r"(?P<name>.+-[0-9a-f]{12}-[0-9a-f]{8})-(?P<run>[0-9a-f]{8})")
#: Timeout of a request, in seconds: to connect, and between two bytes of the answer.
REQUEST_SECONDS = (5.0, 20.0)
#: Largest number of characters of an error of Flink that are quoted; it sends the stack of its own thread.
_MAX_CHARACTERS = 300
#: A frame in a stack trace of Java, or the number of those left out.
_FRAME = re.compile(r"\s+(at [\w.$/]+[(<]|\.\.\. \d+ more)|\s*at java\.base/")


class FlinkCluster:
    """Reads and cancels the jobs of one cluster.

    Every method raises a `CloudError` if the cluster refuses the request or does not answer.

    Args:
        rest_url: Address of the REST API.
    """

    def __init__(self, rest_url: str) -> None:
        self.rest_url = rest_url

    def overview(self) -> dict[str, Any]:
        """Returns version, number of task managers and slots of the cluster."""
        overview: dict[str, Any] = self._send("GET", "/overview")
        return overview

    def configuration(self) -> dict[str, str]:
        """Returns the configuration of the job manager."""
        return {entry["key"]: entry["value"] for entry in self._send("GET", "/jobmanager/config")}

    def get(self, job_id: str, within_seconds: float | None = None) -> RemoteJob:
        """Returns a job.

        Args:
            job_id: ID of the job.
            within_seconds: Timeout of the request, in seconds.
        """
        return job_of(self._send("GET", f"/jobs/{job_id}", within_seconds))

    def find(self, identity: str, *, active_only: bool = False) -> list[RemoteJob]:
        """Returns the jobs of an identity, see `spec.identity`: those of every try of one task, newest first.

        Args:
            identity: Beginning of the names.
            active_only: Whether to leave out jobs that have ended.
        """
        jobs = map(job_of, self._send("GET", "/jobs/overview")["jobs"])
        named = re.compile(rf"{re.escape(identity)}-[0-9a-f]{{8}}")  # without the digest of the run
        found = [job for job in jobs if named.fullmatch(job.name) and not (active_only and job.is_over)]
        return newest_first(found)

    def cancel(self, job_id: str) -> None:
        """Requests the cancellation of a job; a job that has ended is left unchanged."""
        try:
            self._send("PATCH", f"/jobs/{job_id}?mode=cancel")
        except RequestRefusedError:
            if not self.get(job_id).is_over:
                raise

    def error_messages(self, job_id: str) -> list[str]:
        """Returns the errors of a job without the frames of Java, oldest first, each text once.

        The last line of a text is the cause: an error of Flink, or the traceback of a worker.
        """
        reply = self._send("GET", f"/jobs/{job_id}/exceptions")
        history = reply.get("exceptionHistory", {}).get("entries", [])
        texts = [str(entry.get("stacktrace", "")) for entry in reversed(history)]
        return list(dict.fromkeys(redact(text) for text in map(_without_frames, texts) if text))

    def _send(self, method: str, path: str, within_seconds: float | None = None) -> Any:
        url = f"{self.rest_url}{path}"
        action = f"Flink did not answer {method} {url}"
        try:
            reply = requests.request(method, url, timeout=within_seconds or REQUEST_SECONDS, allow_redirects=False)
        except requests.RequestException as error:
            raise CloudUnavailableError(f"{action}: {_last(error)}.") from error
        try:
            body = reply.json()
        except ValueError:
            body = None
        if reply.ok and body is not None:
            return body
        raise _error(reply.status_code, f"{action} (HTTP {reply.status_code}): {_reason(body, reply.text)}")


def job_of(reply: Mapping[str, Any]) -> RemoteJob:
    """Reads a job of `/jobs/overview`, or that of `/jobs/ID`."""
    started = reply.get("start-time", -1)  # in milliseconds
    name, state, labels = str(reply["name"]), str(reply["state"]), dict[str, str]()
    if (named := _OF_RUN.fullmatch(name)) is not None:
        name, labels = named["name"], {RUN_LABEL: named["run"]}
    return RemoteJob(
        job_id=str(reply["jid"]),
        name=name,
        state=state,
        phase=PHASES.get(state, "unknown"),
        created_at=datetime.fromtimestamp(started / 1000, UTC) if started > 0 else None,
        labels=labels,
    )


def _without_frames(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.strip() and not _FRAME.match(line))


def _error(http_status: int, message: str) -> CloudError:
    if http_status in (401, 403):
        return AccessDeniedError(message)
    if http_status == 404:
        return CloudNotFoundError(message)
    # Anything but JSON comes from a proxy; Flink answers 503 while the job manager is elected.
    return (CloudUnavailableError if http_status >= 500 or http_status < 400 else RequestRefusedError)(message)


def _reason(body: Any, text: str) -> str:
    errors = body.get("errors") if isinstance(body, dict) else None
    quoted = str(errors[-1]) if errors else text if body is None else json.dumps(body)
    return error_text((quoted.strip().splitlines() or ["no reason."])[0])[:_MAX_CHARACTERS]


def _last(error: BaseException) -> str:
    """Returns the error of the operating system behind one of requests."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return str(getattr(error, "strerror", None) or error).rstrip(".")
