"""Reads the replies of servers: JSON, errors, the wait that they advise, and the address of a redirect. Pure."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import urljoin, urlsplit

from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.characters import valid_text

#: Statuses with which a server asks for the same request at another address.
REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
#: Longest host name (RFC 1035).
_HOST_CHARACTERS = 253
#: Longest advised wait that is reported. Nothing here waits longer than minutes; a day still shows a daily quota.
_MAX_ADVISED_SECONDS = 86_400.0

#: Statuses 4xx that the same request may not get a little later. With 499 the server gave the request up: Gemini
#: sends "The operation was cancelled" under load.
PASSING_STATUSES = frozenset({408, 409, 425, 429, 499})

#: What a quota counts.
QuotaUnit = Literal["requests", "tokens"]
#: "on tokens per min (TPM)" of OpenAI, "40,000 input tokens per minute" of Anthropic.
_UNIT_PER_MINUTE = re.compile(r"\b(requests|tokens) per min", re.IGNORECASE)
#: "Quota exceeded for metric: …, limit: 0, model: …" of Gemini.
_NO_QUOTA = re.compile(r"\blimit: 0\b(?!\.)")

#: Google's counts are int64, which its JSON has as text.
_COUNT = re.compile(r"[0-9]{1,18}")
#: Unix times beyond this are no times, and neither are texts that stand for them: the year 3000.
_LAST_SECOND = 32_503_680_000
_ERROR_CHARACTERS = 600


def parse_json(content: bytes | str) -> Any:
    """Returns the value of a JSON text; `None` for any other text, however damaged or deep.

    Bytes that are not UTF-8 become U+FFFD.
    """
    try:
        if isinstance(content, bytes):
            content = content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """Body of an error response, in the formats of Google, OpenAI, vLLM, FastAPI and TGI.

    Attributes:
        message: The message; the whole body if there is none.
        code: Name of the error, or `None`.
        type: Type of the error, or `None`; OpenAI has the unit of an exhausted quota here.
        details: `error.details` of Google.
    """

    message: str
    code: str | None = None
    details: tuple[Mapping[str, Any], ...] = ()
    type: str | None = None

    @property
    def is_per_day(self) -> bool:
        """Whether the details name a quota per day."""
        return any("PerDay" in quota_id for quota_id in self._quota_ids())

    @property
    def has_no_quota(self) -> bool:
        """Whether the quota is 0, as that of a model that an account may not use; waiting is of no use."""
        return _NO_QUOTA.search(self.message) is not None

    @property
    def quota_unit(self) -> QuotaUnit | None:
        """What the exhausted quota counts; `None` if the body does not say so, or names quotas of both units.

        Source: 429s quoted in github.com/google-gemini/gemini-cli/issues/8437 (`quotaId`: both units, or one),
        github.com/openai/codex/issues/88 (`"type": "tokens"`) and
        github.com/bhouston/mycoder/issues/62 ("of 40,000 input tokens per minute").
        """
        named = " ".join([self.type or "", *self._quota_ids(), *_UNIT_PER_MINUTE.findall(self.message)]).lower()
        units: list[QuotaUnit] = [unit for unit in ("requests", "tokens") if unit in named]
        return units[0] if len(units) == 1 else None

    def _quota_ids(self) -> list[str]:
        return [
            str_of(violation.get("quotaId"))
            for item in self.details
            for violation in list_of(item.get("violations"))
            if isinstance(violation, Mapping)
        ]


def read_error(text: str) -> ErrorBody:
    """Reads the body of an error response; any text is one."""
    body = parse_json(text)
    # Some of Google's services return the error in a list.
    fields = mapping_of(body[0] if isinstance(body, list) and body else body)
    error = mapping_of(fields.get("error"))
    messages = (error.get("message"), fields.get("message"), fields.get("detail"), fields.get("error"), text)
    details = tuple(item for item in list_of(error.get("details")) if isinstance(item, Mapping))
    return ErrorBody(
        message=next((valid_text(each) for each in messages if isinstance(each, str) and each.strip()), ""),
        code=str_of(error.get("code")) or None,
        details=details,
        type=str_of(error.get("type")) or None,
    )


def body_error(body: Mapping[str, Any]) -> tuple[int, str] | None:
    """Returns the HTTP status and the text of an error that the body of a successful response has, or `None`.

    Gateways answer 200 with the error of the server behind them, also beside an answer without content, and in a
    choice. Source: openrouter.ai/docs/api-reference/errors (2026-11)
    """
    choice = mapping_of(next(iter(list_of(body.get("choices"))), None))
    for error in (body.get("error"), choice.get("error")):
        if error and isinstance(error, str | Mapping):
            return _status_of(mapping_of(error)) or 500, json.dumps({"error": error})
    if not body.keys().isdisjoint(_ANSWERS):
        return None
    status = _status_of(body) or (500 if body.get("object") == "error" else None)
    return None if status is None else (status, json.dumps(body))


def _status_of(error: Mapping[str, Any]) -> int | None:
    """Returns the HTTP status that an error names as a number or by a word; `None` if it names none."""
    for named in map(error.get, ("code", "status", "status_code", "type")):
        if isinstance(named, str):
            named = _STATUSES.get(named.lower(), int(named) if _COUNT.fullmatch(named) else None)
        if type(named) is int and (status := _GRPC_STATUSES.get(named, named)) in range(400, 600):
            return status
    return None


#: Codes by which OpenAI says that an account may not pay.
UNPAID = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
#: Fields of an answer, beside which a `code` is none of an error.
_ANSWERS = frozenset(
    {"choices", "candidates", "promptFeedback", "predictions", "text", "data", "embedding", "embeddings"}
)
#: Statuses by the numbers and the names of `google.rpc.Code`, and by the codes and types of OpenAI and Anthropic.
_GRPC_STATUSES = {3: 400, 4: 504, 5: 404, 7: 403, 8: 429, 9: 400, 11: 400, 13: 500, 14: 503, 16: 401}
_STATUSES = {
    "invalid_argument": 400,
    "failed_precondition": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "unavailable": 503,
    "unauthenticated": 401,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "insufficient_quota": 429,
    "overloaded_error": 529,
}


def advised_wait_seconds(
    headers: Mapping[str, str], details: Iterable[Mapping[str, Any]], now: float | None = None
) -> float | None:
    """Returns the advised wait in seconds, from 0 to a day; `None` if there is no advice that can be read.

    Args:
        headers: Headers of the response, which precede the body; upper or lower case does not matter.
            `retry-after-ms` of OpenAI and Azure precedes `Retry-After` (seconds, or a date), which has it rounded.
        details: `error.details` of the body. Gemini sends only this, as `RetryInfo` with a fraction of a second.
        now: Seconds of the Unix epoch; without it, a date counts as no advice.

    Source: RFC 9110, section 10.2.3; `_parse_retry_after_header` of openai-python; `google.rpc.RetryInfo`.
    """
    named = {name.lower(): value for name, value in headers.items()}
    milliseconds = _seconds(named.get("retry-after-ms"), None)
    advised = [None if milliseconds is None else milliseconds / 1000, _seconds(named.get("retry-after"), now)]
    for item in details:
        if str_of(item.get("@type")).endswith("RetryInfo"):
            advised.append(_seconds(item.get("retryDelay"), now))
    found = next((seconds for seconds in advised if seconds is not None), None)
    return None if found is None else min(_MAX_ADVISED_SECONDS, max(0.0, found))


#: Headers with what an account may use: the limit, what is left of it, and the time until it is whole again; of
#: OpenAI, and of Anthropic, whose limits are all per minute. Sources: platform.openai.com/docs/guides/rate-limits,
#: docs.aws.amazon.com/claude-platform/latest/userguide/rate-limits.html (2026-11)
_LIMIT_HEADERS = ("x-ratelimit-{name}-{unit}", "anthropic-ratelimit-{unit}-{name}")
_LIMIT_UNITS = ("requests", "tokens", "input_tokens", "output_tokens")
_DURATIONS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|[smhd])")
#: A limit whose window is longer is none per minute, and left out: OpenAI states those per day by the same header,
#: e.g. 10,000 requests of which one is given back in "8.64s".
_LONGEST_WINDOW_SECONDS = 120.0


def stated_limits(headers: Mapping[str, str]) -> dict[str, list[float]]:
    """Returns the limits per minute that a reply states, by unit: the limit, and what of it is used.

    Args:
        headers: Headers of the response; upper or lower case does not matter.
    """
    named, found = {name.lower(): value for name, value in headers.items()}, dict[str, list[float]]()
    for unit in _LIMIT_UNITS:
        for header in _LIMIT_HEADERS:
            limit, left, reset = (
                named.get(header.format(name=name, unit=unit.replace("_", "-")), "")
                for name in ("limit", "remaining", "reset")
            )
            most, free = count_of(limit), count_of(left)
            if not most or free is None:
                continue
            used = max(0, most - free)
            seconds = sum(float(number) * _DURATIONS[of] for number, of in _DURATION.findall(reset))
            if seconds * most <= _LONGEST_WINDOW_SECONDS * max(1, used):
                found[unit] = [most, used]
    return found


#: Headers with the ID by which a server finds a request in its log, the most usual first: OpenAI and Databricks,
#: Anthropic, LiteLLM, Azure, Cloudflare, Kong, Portkey. Sources: docs/reference/gateways.md
_REQUEST_IDS = (
    *("x-request-id", "request-id", "x-litellm-call-id", "apim-request-id", "x-ms-request-id", "cf-aig-log-id"),
    *("x-kong-request-id", "x-portkey-trace-id"),
)
_ID_CHARACTERS = 200


def request_id(headers: Mapping[str, str]) -> str | None:
    """Returns the ID that a server has given a request; `None` if it gave none.

    Args:
        headers: Headers of the response; upper or lower case does not matter.
    """
    named = {name.lower(): value for name, value in headers.items()}
    found = next(filter(None, map(named.get, _REQUEST_IDS)), None)
    return found and valid_text(found[:_ID_CHARACTERS])


def str_of(value: Any) -> str:
    """Returns a value that is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def list_of(value: Any) -> list[Any]:
    """Returns a value that is a list, else an empty one."""
    return value if isinstance(value, list) else []


def mapping_of(value: Any) -> Mapping[str, Any]:
    """Returns a value that is a JSON object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


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


def error_line(status: Any) -> str | None:
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


def redirect_refusal(url: str, location: str | None, http_status: int) -> str:
    """Returns why a redirect was not followed; it names no more of the two addresses than their origins.

    Args:
        url: Address of the request.
        location: Header `Location` of the response.
        http_status: HTTP status of the response.
    """
    here, there = _origin(url), _target_origin(url, location)
    target = "another path of the same server" if here == there else there
    return f"{here} redirects to {target} (HTTP {http_status}), and credentials and data are not sent on"


def _target_origin(url: str, location: str | None) -> str:
    if not location:
        return "no address"
    try:
        return _origin(urljoin(url, location))
    except ValueError:
        return "an invalid address"


def _origin(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return "an invalid address"
    if not host or len(host) > _HOST_CHARACTERS or not host.isprintable() or port is None:
        return "an invalid address"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _seconds(advice: Any, now: float | None) -> float | None:
    if isinstance(advice, bool) or not isinstance(advice, str | int | float):
        return None
    try:
        seconds = float(advice.removesuffix("s") if isinstance(advice, str) else advice)
    except (ValueError, OverflowError):
        return _seconds_until(advice, now) if isinstance(advice, str) and now is not None else None
    return seconds if math.isfinite(seconds) else None


def _seconds_until(text: str, now: float) -> float | None:
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, TypeError, IndexError, OverflowError):  # all four are raised for damaged dates
        return None
