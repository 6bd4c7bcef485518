"""Replies and errors in the format of Flink's REST API."""

from __future__ import annotations

from typing import Any

from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import RestError, Wording
from llmbeam_sandbox.flink.settings import FlinkSettings
from llmbeam_sandbox.flink.state import CANCELED, ENDED, FAILED, FINISHED, Job


class FlinkWording(Wording):
    """Errors in the format of Flink: a list of texts."""

    def reply(self, error: RestError) -> Reply:
        """Returns an error as JSON."""
        message = error.message or self.messages.get(error.http_status, "Internal server error.")
        return json_reply({"errors": [message]}, http_status=error.http_status)


WORDING = FlinkWording(
    reasons={},
    messages={503: "Service temporarily unavailable due to an ongoing leader election. Please refresh."},
    rate_limit=RestError(429, "Too many requests."),
)


def not_found(job_id: str) -> RestError:
    """Returns the error for an unknown job."""
    name = "org.apache.flink.runtime.rest.NotFoundException"
    return RestError(404, f"{name}: Job {job_id} not found\n\tat org.apache.flink.runtime.rest.handler.job")


def has_ended(job: Job) -> RestError:
    """Returns the error for the cancellation of a job that has ended."""
    return RestError(
        409,
        f"Job cancellation failed because the job has already reached another terminal state ({job.state}).",
    )


def overview(settings: FlinkSettings, jobs: list[Job]) -> dict[str, Any]:
    """Returns the state of the cluster."""
    states = [job.state for job in jobs]
    running = sum(state not in ENDED for state in states)
    return {
        "taskmanagers": settings.task_managers,
        "slots-total": settings.task_managers,
        "slots-available": max(0, settings.task_managers - running),
        "jobs-running": running,
        "jobs-finished": states.count(FINISHED),
        "jobs-cancelled": states.count(CANCELED),
        "jobs-failed": states.count(FAILED),
        "flink-version": settings.version,
        "flink-commit": "0000000",
    }


def job_resource(job: Job, now: float) -> dict[str, Any]:
    """Returns a job as `/jobs/overview` and `/jobs/ID` do, without its vertices."""
    ended_at = job.ended_at
    return {
        "jid": job.id,
        "name": job.name,
        "state": job.state,
        "start-time": round(job.started_at * 1000),
        "end-time": -1 if ended_at is None else round(ended_at * 1000),
        "duration": round(((now if ended_at is None else ended_at) - job.started_at) * 1000),
    }


def exceptions(job: Job) -> dict[str, Any]:
    """Returns what failed in a job, the newest first."""
    entries = [
        {"exceptionName": error.partition(":")[0], "stacktrace": error, "timestamp": round(job.started_at * 1000)}
        for error in reversed(job.errors)
    ]
    found: dict[str, Any] = {"exceptionHistory": {"entries": entries, "truncated": False}}
    return found | ({"root-exception": job.errors[-1]} if job.errors else {})
