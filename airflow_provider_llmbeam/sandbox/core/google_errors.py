"""Error bodies as Google's REST APIs send them: `{"error": {code, message, status, details}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.sandbox.core.responses import Reply, json_reply
from airflow_provider_llmbeam.sandbox.models.quota import LimitName, Rejection

_TYPE = "type.googleapis.com/google.rpc."
# Source: google/rpc/code.proto, "HTTP Mapping" of each code.
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_MESSAGE = {
    429: "Resource has been exhausted (e.g. check quota).",
    500: "An internal error has occurred. Please retry or report in "
    "https://developers.generativeai.google/guide/troubleshooting",
    503: "The model is overloaded. Please try again later.",
    504: "Deadline expired before operation could complete.",
}
_QUOTA_ID: Mapping[LimitName, str] = {
    "requests-per-minute": "GenerateRequestsPerMinutePerProjectPerModel",
    "tokens-per-minute": "GenerateContentInputTokensPerModelPerMinute",
    "requests-per-day": "GenerateRequestsPerDayPerProjectPerModel",
    "window": "GenerateRequestsPerWindowPerProjectPerModel",
}
_QUOTA_METRIC = "generativelanguage.googleapis.com/generate_content_"
_VERTEX_EXHAUSTED = (
    "Resource exhausted. Please try again later. Please refer to "
    "https://cloud.google.com/vertex-ai/generative-ai/docs/error-code-429 for more details."
)
_GEMINI_EXHAUSTED = (
    "You exceeded your current quota, please check your plan and billing details. For more information "
    "on this error, head to: https://ai.google.dev/gemini-api/docs/rate-limits."
)


def google_error(http_status: int, message: str = "", details: tuple[Mapping[str, Any], ...] = ()) -> Reply:
    """Return an error reply; an empty message gives the service's usual one."""
    error: dict[str, Any] = {
        "code": http_status,
        "message": message or _MESSAGE.get(http_status, f"HTTP {http_status}."),
        "status": _STATUS.get(http_status, "UNKNOWN"),
    }
    if details:
        error["details"] = list(details)
    return json_reply({"error": error}, http_status=http_status)


def error_info(reason: str, **metadata: str) -> dict[str, Any]:
    """Return a `google.rpc.ErrorInfo` detail."""
    return {
        "@type": f"{_TYPE}ErrorInfo",
        "reason": reason,
        "domain": "googleapis.com",
        "metadata": metadata,
    }


def quota_exceeded(
    *, model: str, is_vertex: bool, rejection: Rejection | None, delay_seconds: float | None
) -> Reply:
    """Return a 429: what to do is in the body, and no `Retry-After` header is sent.

    Args:
        model: The model asked for.
        is_vertex: Chooses the wording.
        rejection: The limit that was hit; None names none.
        delay_seconds: Told as `google.rpc.RetryInfo`; None tells nothing.

    Source: bodies quoted in github.com/google-gemini/gemini-cli/issues/8437 (quota ids) and
    github.com/googleapis/python-genai/issues/2044 (`retryDelay`).
    """
    details: list[dict[str, Any]] = []
    message = _VERTEX_EXHAUSTED if is_vertex else _GEMINI_EXHAUSTED
    if rejection is not None:
        details.append({"@type": f"{_TYPE}QuotaFailure", "violations": [_violation(model, rejection)]})
    if delay_seconds is not None:
        told = f"{round(delay_seconds, 9):.9f}".rstrip("0").rstrip(".") + "s"
        details.append({"@type": f"{_TYPE}RetryInfo", "retryDelay": told})
        message += "" if is_vertex else f"\nPlease retry in {told}."
    return google_error(429, message, tuple(details))


def _violation(model: str, rejection: Rejection) -> dict[str, Any]:
    is_tokens = rejection.limit_name == "tokens-per-minute"
    return {
        "quotaMetric": _QUOTA_METRIC + ("input_token_count" if is_tokens else "requests"),
        "quotaId": _QUOTA_ID[rejection.limit_name],
        "quotaDimensions": {"location": "global", "model": model},
        "quotaValue": str(rejection.limit),
    }
