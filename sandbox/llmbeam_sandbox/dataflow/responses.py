"""Errors and messages in the format of Dataflow."""

from __future__ import annotations

import secrets

from llmbeam_sandbox.core.rest import STATUSES, RestError, StatusWording
from llmbeam_sandbox.dataflow.state import Message, timestamp

WORDING = StatusWording(
    reasons=STATUSES,
    messages={
        401: "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or "
        "other valid authentication credential.",
        403: "The caller does not have permission",
        500: "Internal error encountered.",
        503: "The service is currently unavailable.",
    },
    rate_limit=RestError(
        429,
        "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute per user' of service "
        "'dataflow.googleapis.com'.",
    ),
)


def refused(http_status: int, message: str, reason: str = "") -> RestError:
    """Returns an error with a number in front, as most errors of the service have."""
    return RestError(http_status, f"({secrets.token_hex(8)}): {message}", reason)


def not_created(cause: str) -> RestError:
    """Returns the error for a job that cannot be created."""
    message = f"The workflow could not be created. Causes: ({secrets.token_hex(8)}): {cause}"
    return refused(400, message)


def not_found(job_id: str) -> RestError:
    """Returns the error for an unknown job."""
    return refused(
        404,
        f"Information about job {job_id} could not be found in our system. Please double check the id is correct. "
        "If it is please contact customer support.",
    )


def message_resource(number: int, message: Message) -> dict[str, str]:
    """Returns a message of a job as the API returns it."""
    return {
        "id": f"JOB_MESSAGE_{number}",
        "time": timestamp(message.at),
        "messageImportance": message.importance,
        "messageText": message.text,
    }
