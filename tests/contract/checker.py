"""Checks exchanges against the definitions that the services publish."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from email import message_from_bytes
from functools import cache, lru_cache
from typing import Any

import orjson
from google.api_core import exceptions
from google.protobuf import any_pb2, json_format
from google.rpc import error_details_pb2  # noqa: F401 - which the descriptor pool then knows
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.contract import model_types
from tests.contract.deviations import known_deviation
from tests.contract.discovery import AS_NUMBERS, NUMBERS, Document, document, find_document
from tests.contract.exchanges import Exchange

UNDEFINED = re.compile(
    r"/|/sandbox/.*|/flink/.*|/token|/health|/computeMetadata/.*|/batch/storage/.*|/v1/[^:]*/quotaInfos.*"
    r"|/v1/models/\w+:predict"
)
"""Paths without a published definition in any package, or of the sandbox itself. The last one is the private
address of a model: https://cloud.google.com/vertex-ai/docs/predictions/using-private-endpoints."""
REFUSALS = frozenset({400, 401, 403, 404, 405, 411, 501})
"""Statuses that refuse a request: what it holds is not checked, as its sender learns of the refusal."""
_GOOGLE_ERRORS: dict[int, set[str]] = {}
_OPENAI_ERRORS = {
    429: {"requests", "tokens", "insufficient_quota"},
    403: {"permission_error", "invalid_request_error"},
}
# A shape keeps words, which may be values of an enum; of other texts it keeps what a pattern could ask.
_WORD = re.compile(r"[A-Za-z_./:@-]{1,40}|[A-Z][A-Z0-9_]{1,60}")
_KINDS = re.compile(
    r"(?P<digits>-?\d{1,19})|(?P<duration>-?\d{1,12}(?:\.\d{1,9})?s)"
    r"|(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d))"
    r"|(?P<label>[a-z0-9_-]{1,63})|(?P<base64>[A-Za-z0-9+/_-]+={0,2})|(?P<name>[\w./:@-]+)|(?P<text>.*)",
    re.DOTALL,
)


def _collect(error: type[exceptions.GoogleAPICallError]) -> None:
    for one in error.__subclasses__():
        if one.code and one.grpc_status_code:
            _GOOGLE_ERRORS.setdefault(int(one.code), set()).add(one.grpc_status_code.name)
        _collect(one)


_collect(exceptions.GoogleAPICallError)


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What is published of one method.

    Attributes:
        name: Name of the method.
        request: JSON Schema of the request; None is not checked.
        reply: JSON Schema of the reply, or of each part of a stream; None is not checked.
        document: Its Discovery document.
    """

    name: str
    request: Any = None
    reply: Any = None
    document: Document | None = None


@dataclass
class Checker:
    """Checks exchanges, and counts them; messages of the same shape are validated once."""

    exchanges: int = 0
    methods: Counter[str] = field(default_factory=Counter)
    undefined: int = 0
    validated: int = 0
    _seen: dict[Any, tuple[str, ...]] = field(default_factory=dict)

    def check(self, exchange: Exchange) -> list[str]:
        """Returns what deviates from the definition of the method, without what is known to."""
        if UNDEFINED.fullmatch(exchange.path) or exchange.verb == "OPTIONS":
            self.undefined += 1
            return []
        self.exchanges += 1
        name, faults = self._faults(exchange)
        self.methods[name] += 1
        return [f"{name} {fault}" for fault in faults if known_deviation(name, fault) is None]

    def _faults(self, exchange: Exchange) -> tuple[str, list[str]]:
        found, query_faults = find_definition(exchange.verb, exchange.path, exchange.query)
        faults = list(query_faults)
        if found is None:
            name = f"{exchange.verb} {exchange.path}"
            return name, [] if exchange.http_status in (404, 405, 501) else [
                "is no method of a published definition"
            ]
        if exchange.http_status in REFUSALS:
            faults = []
        elif found.request is not None:
            for body in _request_parts(exchange):
                faults += self._validated(found, "request", found.request, body)
        if exchange.http_status >= 400:
            for body in _parts(exchange.reply):
                faults += self._error_faults(found, exchange.http_status, body)
        elif found.reply is not None and "json" in exchange.reply_type:
            for body in _parts(exchange.reply):
                faults += self._reply_faults(found, "reply", found.reply, body)
        elif found.reply is not None and "event-stream" in exchange.reply_type:
            for body in _events(exchange.reply):
                chunk = model_types.CHUNKS.get(found.name, found.reply)
                faults += self._reply_faults(found, "chunk", chunk, body)
        return found.name, faults

    def _reply_faults(self, found: Definition, side: str, schema: Any, body: Any) -> tuple[str, ...]:
        if (side == "chunk" or "stream" in found.name) and isinstance(body, dict) and "error" in body:
            return self._error_faults(found, None, body)
        return self._validated(found, side, schema, body)

    def _validated(self, found: Definition, side: str, schema: Any, body: Any) -> tuple[str, ...]:
        key = (str(schema), found.name, side, shape(body))
        if key not in self._seen:
            self.validated += 1
            faults = [f"{side}.{fault}" for fault in schema_faults(schema, body)]
            if side != "request":
                faults += [f"{side}.{fault}" for fault in any_faults(found.document, body)]
            self._seen[key] = tuple(dict.fromkeys(faults))
        return self._seen[key]

    def _error_faults(self, found: Definition, http_status: int | None, body: Any) -> tuple[str, ...]:
        key = (found.name, http_status, shape(body))
        if key not in self._seen:
            self.validated += 1
            # On Vertex AI an OpenAI-compatible model is behind Google's front end, whose errors are Google's.
            is_openai = found.name.startswith("openai.") and not (found.document and _is_google_error(body))
            if isinstance(body, dict) and body.get("type") == "error":
                faults = schema_faults(model_types.ANTHROPIC_ERROR, body)
            elif is_openai:
                faults = openai_error_faults(http_status, body)
            else:
                faults = google_error_faults(http_status, body)
            self._seen[key] = tuple(f"error.{fault}" for fault in faults)
        return self._seen[key]


@lru_cache(10_000)
def find_definition(
    verb: str, path: str, query: tuple[tuple[str, str], ...]
) -> tuple[Definition | None, tuple[str, ...]]:
    """Returns the definition of the method of a request, and what is wrong with its query."""
    found = find_document(path)
    method = found.find(verb, path) if found else None
    is_chat = path.endswith("/chat/completions")
    if method is not None and not is_chat:
        is_media = ("alt", "media") in query
        has_numbers = AS_NUMBERS in query
        has_metadata = not method.is_upload or verb == "POST"
        return Definition(
            name=method.name,
            request=_reference(method.reference("request", has_numbers=has_numbers)) if has_metadata else None,
            reply=None if is_media else _reference(method.reference("reply", has_numbers=has_numbers)),
            document=method.document,
        ), tuple(method.query_faults(query))
    for name, its_verb, its_path, request, reply in model_types.METHODS:
        if its_verb == verb and its_path.fullmatch(path):
            return Definition(name=name, request=request, reply=reply, document=found), ()
    return None, ()


def _reference(address: str) -> Any:
    return {"$ref": address} if address else None


def shape(value: Any) -> Any:
    """Returns what a schema can tell of a value; two values of one shape are both valid or both not."""
    match value:
        case dict():
            return frozenset((key, shape(item)) for key, item in value.items())
        case list():
            return (list, frozenset(map(shape, value)))
        case str():
            if _WORD.fullmatch(value):
                return value
            kind = _KINDS.fullmatch(value)
            return ("", kind.lastgroup if kind else "")
        case bool() | None:
            return value
        case int():
            return (int, -(2**31) <= value < 2**31, value < 0)
        case _:
            return type(value)


def schema_faults(schema: Any, body: Any) -> Iterator[str]:
    """Yields what a schema finds in a message, with the place."""
    for error in _validator(orjson.dumps(schema)).iter_errors(body):
        # Of a union, the fault in the alternative that fits best.
        yield from _messages(best_match([error]) if error.context else error)


def _messages(error: ValidationError | None) -> Iterator[str]:
    if error is None:
        return
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path).lstrip(
        "."
    )
    place = re.sub(r"\[\d+\]", "[]", place) or "body"
    text = error.schema.get("title", error.message) if error.validator == "not" else error.message
    yield f"{place}: {text if len(text) < 400 else f'{text[:200]} … {text[-150:]}'}"


@cache
def _validator(schema: bytes) -> Draft202012Validator:
    return Draft202012Validator(orjson.loads(schema), registry=_REGISTRY)


@cache
def _retrieve(address: str) -> Resource[Any]:
    api, _, rest = address.partition(":")
    if api != "discovery":
        return Resource(contents=model_types.schema(address), specification=DRAFT202012)
    name, side, message = rest.split("/")
    contents = document(*name.split(".", 1)).schema(side, message)
    return Resource(contents=contents, specification=DRAFT202012)


_REGISTRY: Registry[Any] = Registry(retrieve=_retrieve)


def any_faults(found: Document | None, body: Any, place: str = "") -> Iterator[str]:
    """Yields what is wrong with the values in a reply that name their type, as the results of operations do."""
    if isinstance(body, list):
        for item in body:
            yield from any_faults(found, item, f"{place}[]")
    if not isinstance(body, dict):
        return
    if isinstance(type_url := body.get("@type"), str):
        yield from (f"{place}: {fault}" for fault in _typed_faults(found, type_url, body))
    for key, item in body.items():
        is_result = found is not None and place == "" and key in ("response", "metadata") and _is_operation(body)
        if is_result and isinstance(item, dict) and "@type" not in item:
            yield f"{key}: has no @type"
        yield from any_faults(found, item, f"{place}.{key}".lstrip("."))


def _is_operation(body: dict[str, Any]) -> bool:
    return "name" in body and body.keys() <= {"name", "metadata", "done", "response", "error"}


def _typed_faults(found: Document | None, type_url: str, body: dict[str, Any]) -> Iterator[str]:
    name = found.message(type_url) if found is not None else None
    if found is not None and name is not None:
        value = {key: item for key, item in body.items() if key != "@type"}
        # By any of the two encodings of enums, as the operation says nothing of its own.
        yield from schema_faults({"$ref": f"discovery:{found.name}/reply{NUMBERS}/{name}"}, value)
    elif "google.ai.generativelanguage." not in type_url:  # no package has these; model_types does
        if "google.cloud.aiplatform.v1beta1." in type_url:
            import google.cloud.aiplatform_v1beta1  # noqa: F401 - types of operations that the document leaves out
        try:
            json_format.ParseDict(body, any_pb2.Any())
        except (json_format.ParseError, TypeError) as error:
            yield str(error)


def google_error_faults(http_status: int | None, body: Any) -> Iterator[str]:
    """Yields what is wrong with an error of Google: `{"error": {code, message, status, details}}`."""
    error = (body[0] if isinstance(body, list) and body else body).get("error") if body else None
    if not isinstance(error, dict):
        yield "body: holds no `error`"
        return
    older = {"errors"} if "errors" in error else set()
    for name in sorted(error.keys() - {"code", "message", "status", "details"} - older):
        yield f"{name}: is no field of an error"
    code, status = error.get("code"), error.get("status")
    if http_status is not None and code != http_status:
        yield f"code: {code!r} of a reply with HTTP {http_status}"
    known = _GOOGLE_ERRORS.get(code) if isinstance(code, int) else None
    if not older and status is None:
        yield "status: is missing"
    if known and status is not None and status not in known:
        yield f"status: {status!r} is not one of HTTP {code}: {', '.join(sorted(known))}"
    if older and not all({"message", "domain", "reason"} <= item.keys() for item in error["errors"]):
        yield "errors[]: message, domain or reason is missing"
    yield from any_faults(None, error.get("details", []), "details")
    yield from ("details[]: has no @type" for detail in error.get("details", []) if "@type" not in detail)


def _is_google_error(body: Any) -> bool:
    return isinstance(body, dict) and isinstance(body.get("error"), dict) and "status" in body["error"]


def openai_error_faults(http_status: int | None, body: Any) -> Iterator[str]:
    """Yields what is wrong with an error of OpenAI: `{"error": {message, type, param, code}}`."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        yield "body: holds no `error`"
        return
    yield from schema_faults(_ERROR_OBJECT, error)
    known = _OPENAI_ERRORS.get(http_status or 0)
    if known is None and http_status is not None:
        known = {"server_error"} if http_status >= 500 else {"invalid_request_error"}
    if known and error.get("type") not in known:
        yield f"type: {error.get('type')!r} is not one of HTTP {http_status}: {', '.join(sorted(known))}"


_ERROR_OBJECT = {
    "type": "object",
    "properties": {name: {"type": ["string", "null"]} for name in ("message", "type", "param", "code")},
    "required": ["message", "type"],
    "additionalProperties": False,
}
"""`ErrorObject` of OpenAI's OpenAPI."""


def _request_parts(exchange: Exchange) -> Iterable[Any]:
    """Returns the messages of a request: its body, or the first part of an upload."""
    body = exchange.request
    if exchange.content_type.startswith("multipart/related"):
        head = f"Content-Type: {exchange.content_type}\r\n\r\n".encode()
        first = message_from_bytes(head + body).get_payload()
        body = first[0].get_payload(decode=True) if isinstance(first, list) and first else b""
    elif body and "json" not in exchange.content_type:
        return ()
    return _parts(body)


def _parts(body: bytes) -> list[Any]:
    """Returns the messages of a body of JSON; what is no JSON, after a fault, holds none."""
    try:
        value = orjson.loads(body) if body else None
    except ValueError:
        return []
    return value if isinstance(value, list) else [] if value is None else [value]


def _events(body: bytes) -> Iterator[Any]:
    for line in body.split(b"\n"):
        if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
            yield from _parts(line[5:].strip())


CHECKER = Checker()
"""That of this process."""
