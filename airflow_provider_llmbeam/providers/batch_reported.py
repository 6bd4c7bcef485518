"""Fields of jobs as providers report them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_provider_llmbeam.providers.batch_job import BatchJob, BatchPhase
from airflow_provider_llmbeam.providers.errors import BatchUnavailableError
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.transport.server_reply import mapping_of, str_of

#: States of Google without `JOB_STATE_` (Vertex AI) or `BATCH_STATE_` (Developer API).
_GOOGLE_PHASES: Mapping[str, BatchPhase] = {
    "QUEUED": "queued",
    "PENDING": "queued",
    "PAUSED": "queued",  # it may be resumed
    "CANCELLING": "cancelling",
    "SUCCEEDED": "succeeded",
    "PARTIALLY_SUCCEEDED": "partial",
    "FAILED": "failed",
    "CANCELLED": "cancelled",
    "EXPIRED": "expired",
}
#: Google's counts are int64, which its JSON has as text.
_COUNT = re.compile(r"[0-9]{1,18}")
#: Unix times beyond this are no times, and neither are texts that stand for them: the year 3000.
_LAST_SECOND = 32_503_680_000
_ERROR_CHARACTERS = 600


def google_phase(state: str) -> BatchPhase:
    """Returns the phase of a state of Google; an unknown one is `running`."""
    return _GOOGLE_PHASES.get(state.rpartition("_STATE_")[2], "running")


def google_count(counts: Mapping[str, Any], name: str) -> int | None:
    """Returns a count, which Google's JSON leaves out if it is zero; `None` if there are no counts."""
    return count_of(counts.get(name, 0)) if counts else None


def google_next_page(page: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the parameter that a page of one of Google's lists names for the next page; none at the end."""
    token = str_of(page.get("nextPageToken"))
    return {"pageToken": token} if token else {}


def count_of(value: Any) -> int | None:
    """Returns a number of rows; `None` for anything else."""
    if isinstance(value, str) and _COUNT.fullmatch(value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**18 else None


def time_of(value: Any) -> float | None:
    """Returns the Unix time of a timestamp, as text of RFC 3339 or in seconds; `None` for anything else."""
    seconds: float | None = count_of(value)
    if seconds is None and isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
            seconds = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
    return float(seconds) if seconds is not None and 0 <= seconds < _LAST_SECOND else None


def error_of(status: Any) -> str | None:
    """Returns the error of a `google.rpc.Status` or of OpenAI, in one line; `None` if there is none."""
    if not (fields := mapping_of(status)):
        return None
    code = fields.get("code")
    if message := str_of(fields.get("message")):
        return error_text(f"{code}: {message}" if isinstance(code, str) and code else message)
    return f"code {code}, without a message" if isinstance(code, int) else "no message"


def error_text(text: str) -> str:
    """Returns a message of a server in one line, without secrets."""
    return redact(" ".join(valid_text(text[: 10 * _ERROR_CHARACTERS]).split()))[:_ERROR_CHARACTERS]


def read_job(reply: Mapping[str, Any], parse: Callable[[Mapping[str, Any]], BatchJob | None]) -> BatchJob:
    """Returns the job of a reply.

    Raises:
        BatchUnavailableError: The reply describes no job. A proxy may have sent it.
    """
    if (job := parse(reply)) is None:
        fields = error_text(", ".join(reply)) or "no fields"
        raise BatchUnavailableError(f"Expected a batch-inference job; got an object with {fields}.")
    return job
