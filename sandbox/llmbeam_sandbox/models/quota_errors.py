"""The 429 of Gemini and Vertex AI for a request over its quota."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmbeam_sandbox.core.responses import ERROR_TYPE, Reply, google_error
from llmbeam_sandbox.models.quota import LimitName, Rejection

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


def quota_exceeded(
    *, model: str, is_vertex: bool, rejection: Rejection | None, delay_seconds: float | None
) -> Reply:
    """Returns a 429, which has the delay in its body and no `Retry-After` header.

    Args:
        model: Model name of the request.
        is_vertex: Whether the message is that of Vertex AI, not that of the Developer API.
        rejection: Limit that was exceeded; None names none.
        delay_seconds: Delay as `google.rpc.RetryInfo`, in seconds; None names none.

    Source: bodies quoted in github.com/google-gemini/gemini-cli/issues/8437 (quota ids) and
    github.com/googleapis/python-genai/issues/2044 (`retryDelay`).
    """
    details: list[dict[str, Any]] = []
    message = _VERTEX_EXHAUSTED if is_vertex else _GEMINI_EXHAUSTED
    if rejection is not None and rejection.limit_name in _QUOTA_ID:  # a shared pool names no limit
        details.append({"@type": f"{ERROR_TYPE}QuotaFailure", "violations": [_violation(model, rejection)]})
    if delay_seconds is not None:
        delay = f"{round(delay_seconds, 9):.9f}".rstrip("0").rstrip(".") + "s"
        details.append({"@type": f"{ERROR_TYPE}RetryInfo", "retryDelay": delay})
        message += "" if is_vertex else f"\nPlease retry in {delay}."
    return google_error(429, message, tuple(details))


def _violation(model: str, rejection: Rejection) -> dict[str, Any]:
    is_tokens = rejection.limit_name == "tokens-per-minute"
    return {
        "quotaMetric": _QUOTA_METRIC + ("input_token_count" if is_tokens else "requests"),
        "quotaId": _QUOTA_ID[rejection.limit_name],
        "quotaDimensions": {"location": "global", "model": model},
        "quotaValue": str(rejection.limit),
    }
