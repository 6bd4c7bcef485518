"""Google's Discovery documents, as JSON Schema: the methods of the REST APIs, their requests and replies.

The documents are those of `google-api-python-client`; each is read when the first request of its API comes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from googleapiclient.discovery_cache import get_static_doc

DOCUMENTS = (
    (re.compile(r"/(?:upload/|resumable/upload/|download/)?storage/v1/"), "storage", "v1"),
    (re.compile(r"/(?:upload/|resumable/upload/)?bigquery/v2/"), "bigquery", "v2"),
    (re.compile(r"/v1b3/"), "dataflow", "v1b3"),
    (re.compile(r"/v3/projects/[^/]+$"), "cloudresourcemanager", "v3"),
    (re.compile(r"/v3/"), "monitoring", "v3"),
    (re.compile(r"/v1/projects/[^/]+/services:batchGet"), "serviceusage", "v1"),
    (re.compile(r"/compute/v1/"), "compute", "v1"),
    (re.compile(r"/v1/projects/[^/]+/(?:topics|subscriptions|snapshots)\b"), "pubsub", "v1"),
    (re.compile(r"/v1/projects/[^/]+/(?:locations/[^/]+/)?secrets\b"), "secretmanager", "v1"),
    (re.compile(r"/v1/projects/[^/]+/locations/[^/]+/keyRings\b"), "cloudkms", "v1"),
    (re.compile(r"/v2/projects/[^/]+/(?:locations/[^/]+/)?content:"), "dlp", "v2"),
    (re.compile(r"/v2/projects/"), "run", "v2"),
    (re.compile(r"/v1/projects/-/serviceAccounts/[^/:]+(:testIamPermissions)?$"), "iam", "v1"),
    (re.compile(r"/v1/projects/-/serviceAccounts/"), "iamcredentials", "v1"),
    (re.compile(r"/(?:v1|ui)/(?:projects|publishers)/"), "aiplatform", "v1"),
    (re.compile(r"/v1beta1/(?:projects|publishers)/"), "aiplatform", "v1beta1"),
)
"""The document of a path: the first that matches."""
LABELS = {
    "type": "object",
    "maxProperties": 64,
    "propertyNames": {"pattern": r"^[^\W\dA-Z_][^\WA-Z]?[^\sA-Z]{0,62}$"},
    "additionalProperties": {"type": "string", "pattern": r"^[\w-]{0,63}$", "not": {"pattern": "[A-Z]"}},
}
"""Labels of a resource. Source: https://cloud.google.com/resource-manager/docs/labels-overview#requirements."""
NAME_RULES = {
    "run.v2.serviceId": r"^[a-z]([a-z0-9-]{0,47}[a-z0-9])?$",
    "secretmanager.v1.secretId": r"^[A-Za-z0-9_-]{1,255}$",
    "aiplatform.v1.endpointId": r"^(?:[a-z]([a-z0-9-]{0,61}[a-z0-9])?|[1-9][0-9]{0,8})$",
}
"""Names in query parameters, as their descriptions in the documents state them."""
OF_EVERY_API = frozenset({"$alt", "$prettyPrint", "$userProject", "upload_id", "upload_protocol", "userProject"})
"""Query parameters that Google's clients and front ends use on every API, and that not every document lists."""
AS_NUMBERS = ("$alt", "json;enum-encoding=int")
"""The query parameter with which Google's clients send and ask for enums as numbers."""
_FORMATS = {
    "int64": r"^-?\d{1,19}$",
    "uint64": r"^\d{1,20}$",
    "google-datetime": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$",
    "date-time": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$",
    "date": r"^\d{4}-\d\d-\d\d$",
    "google-duration": r"^-?\d{1,12}(\.\d{1,9})?s$",
    "google-fieldmask": r"^(\*|[a-z][A-Za-z0-9]*(\.[A-Za-z0-9_`-]+)*)(,[a-z][A-Za-z0-9]*(\.[A-Za-z0-9_`-]+)*)*$",
    "byte": r"^[A-Za-z0-9+/_-]*={0,2}$",
}
NUMBERS = "-with-numbers"
_RANGES = {"int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1)}
_RAW = re.compile(r"GoogleApiHttpBody|\w*RawPredictRequest")
"""Messages that stand for a body of any format."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """One method of a document."""

    name: str
    document: Document
    fields: dict[str, Any]
    is_upload: bool = False

    def reference(self, side: str, *, has_numbers: bool = False) -> str:
        """Returns the address of the schema of the "request" or "reply"; "" where the method has none.

        Args:
            side: "request" or "reply".
            has_numbers: Whether enums may be numbers, too.
        """
        name = self.fields.get("request" if side == "request" else "response", {}).get("$ref", "")
        if not name or _RAW.fullmatch(name):
            return ""
        return f"discovery:{self.document.name}/{side}{NUMBERS * has_numbers}/{name}"

    def query_faults(self, query: tuple[tuple[str, str], ...]) -> list[str]:
        """Returns what is wrong with the query parameters."""
        known = self.document.fields["parameters"] | self.fields.get("parameters", {})
        faults = []
        for name, value in query:
            schema = known.get(name)
            if schema is None and name in OF_EVERY_API:
                continue
            if schema is None:
                faults.append(f"query.{name}: there is no such parameter")
                continue
            pattern = NAME_RULES.get(f"{self.document.name}.{name}") or _FORMATS.get(schema.get("format", ""))
            if pattern and not re.search(pattern, value):
                faults.append(f"query.{name}: {value!r} does not match {pattern!r}")
            is_number = value.isdigit() and AS_NUMBERS in query
            if "enum" in schema and value not in schema["enum"] and not is_number:
                faults.append(f"query.{name}: {value!r} is not one of {schema['enum']}")
            if schema["type"] == "integer" and not re.fullmatch(r"-?\d+", value):
                faults.append(f"query.{name}: {value!r} is not of type 'integer'")
            if schema["type"] == "boolean" and value.lower() not in ("true", "false"):
                faults.append(f"query.{name}: {value!r} is not of type 'boolean'")
        given = {name for name, _ in query}
        faults += [
            f"query.{name}: is required"
            for name, schema in self.fields.get("parameters", {}).items()
            if schema["location"] == "query" and schema.get("required") and name not in given
        ]
        return faults


class Document:
    """One Discovery document."""

    def __init__(self, api: str, version: str) -> None:
        self.name = f"{api}.{version}"
        text = get_static_doc(api, version)
        if text is None:
            raise LookupError(f"google-api-python-client has no document of {self.name}.")
        self.fields = json.loads(text)

    @cached_property
    def _methods(self) -> dict[str, list[tuple[re.Pattern[str], Method]]]:
        found: dict[str, list[tuple[re.Pattern[str], Method]]] = {}

        def walk(resource: dict[str, Any]) -> None:
            for fields in resource.get("methods", {}).values():
                self._add(found, fields)
            for child in resource.get("resources", {}).values():
                walk(child)

        walk(self.fields)
        return found

    def _add(self, found: dict[str, list[tuple[re.Pattern[str], Method]]], fields: dict[str, Any]) -> None:
        prefix = f"/{self.fields['servicePath']}"
        name = f"{self.fields['version']}:{fields['id']}"
        paths = [(prefix + (fields.get("flatPath") or fields["path"]), False)]
        protocols = fields.get("mediaUpload", {}).get("protocols", {})
        paths += [(protocol["path"], True) for protocol in protocols.values()]
        if protocols:  # the address of each upload, which Google's clients use for both protocols
            paths.append((f"/upload{prefix}{fields['path']}", True))
        for path, is_upload in paths:
            method = Method(name=name, document=self, fields=fields, is_upload=is_upload)
            found.setdefault(fields["httpMethod"], []).append((_pattern(path, bool(prefix != "/")), method))
            if is_upload:  # the parts of a resumable upload
                found.setdefault("PUT", []).append((_pattern(path, True), method))

    def find(self, verb: str, path: str) -> Method | None:
        """Returns the method of a raw path."""
        # The second is where the client of google-cloud-aiplatform asks for operations.
        path = path.replace("/download/storage/", "/storage/")
        path = re.sub(r"^/ui/", f"/{self.fields['version']}/", path)
        return next((method for pattern, method in self._methods.get(verb, ()) if pattern.fullmatch(path)), None)

    def schema(self, side: str, name: str) -> dict[str, Any]:
        """Returns one message as JSON Schema; `side` is as in the addresses of `Method.reference`."""
        schema = self._converted(side, self.fields["schemas"][name])
        if name.endswith("LongrunningOperation"):
            schema |= {
                "required": ["name"],
                "if": _DONE,
                "then": {"oneOf": _RESULTS},
                "else": {"not": {"anyOf": _RESULTS}},
            }
        return schema

    def message(self, type_url: str) -> str | None:
        """Returns the name of the schema of a type as in `@type`, e.g. google.cloud.run.v2.Service."""
        name = "".join(part[:1].upper() + part[1:] for part in type_url.rpartition("/")[2].split("."))
        return name if name in self.fields["schemas"] else None

    def _converted(self, side: str, schema: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in schema:
            return {"$ref": f"discovery:{self.name}/{side}/{schema['$ref']}"}
        kind = schema["type"]
        if kind == "any":
            return {}
        if kind == "array":
            return {"type": "array", "items": self._converted(side, schema["items"])}
        if kind == "object":
            return self._object(side, schema)
        made: dict[str, Any] = {"type": kind}
        pattern = _FORMATS.get(schema.get("format", "")) or schema.get("pattern")
        if pattern:
            made["pattern"] = pattern
        if schema.get("format") in _RANGES:
            made["minimum"], made["maximum"] = _RANGES[schema["format"]]
        if "enum" in schema:
            old = schema.get("enumDeprecated") if side.startswith("request") else None
            gone = {name for name, is_old in zip(schema["enum"], old or (), strict=False) if is_old}
            made["enum"] = [name for name in schema["enum"] if name not in gone]
            if side.endswith(NUMBERS):
                return {"if": {"type": "string"}, "then": made, "else": {"type": "integer"}}
        return made

    def _object(self, side: str, schema: dict[str, Any]) -> dict[str, Any]:
        if "properties" not in schema:
            items = schema.get("additionalProperties")
            extra = self._converted(side, items) if items else False
            return {"type": "object", "additionalProperties": extra}
        properties = {name: self._property(side, name, field) for name, field in schema["properties"].items()}
        return {"type": "object", "properties": properties, "additionalProperties": False}

    def _property(self, side: str, name: str, field: dict[str, Any]) -> dict[str, Any]:
        if side.startswith("request"):
            if field.get("readOnly") or field.get("description", "").startswith("Output only"):
                return {"not": {}, "title": "is output only"}
            if field.get("deprecated"):
                return {"not": {}, "title": "is deprecated"}
            if name in ("labels", "userLabels") and field.get("type") == "object":
                return LABELS
        return self._converted(side, field)


_DONE = {"properties": {"done": {"const": True}}, "required": ["done"]}
_RESULTS = [{"required": ["error"]}, {"required": ["response"]}]


def _pattern(path: str, has_colons: bool) -> re.Pattern[str]:
    parts = re.split(r"(\{\+?\w+\})", path)
    one = "[^/]+" if has_colons else "[^/:]+"
    return re.compile(
        "".join(
            (".+" if part.startswith("{+") else one) if part.startswith("{") else re.escape(part) for part in parts
        )
    )


@cache
def document(api: str, version: str) -> Document:
    return Document(api, version)


def find_document(path: str) -> Document | None:
    """Returns the document that a path belongs to; None for other APIs than those in `DOCUMENTS`."""
    for pattern, api, version in DOCUMENTS:
        if pattern.match(path):
            return document(api, version)
    return None
