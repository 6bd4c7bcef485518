"""The JSON bodies of successful responses; without an HTTP client, which takes 0.1 s to import."""

from __future__ import annotations

from typing import Any

from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.transport.server_reply import parse_json


def json_object(content: bytes, description: str) -> dict[str, Any]:
    """Parses the body of a successful response.

    Args:
        content: The body.
        description: Description of any other body, for the error after "a 200 that is".

    Raises:
        RequestError: The body is not a JSON object.
    """
    body = parse_json(content)
    if not isinstance(body, dict):
        raise invalid_response(content, description)
    return body


def invalid_response(content: bytes, description: str) -> RequestError:
    """Returns the error of a successful response without an answer, which quotes its body."""
    body = content[:500].decode("utf-8", "replace")
    return RequestError("garbage", f"a 200 that is {description}: {body}", http_status=200)
