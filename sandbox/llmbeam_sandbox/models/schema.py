"""JSON documents that satisfy a schema, equal ones for equal seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

Schema = Mapping[str, Any]

REQUIRED_ONLY_DEPTH = 4
"""Depth from which only required properties are written, so that documents of recursive schemas end."""
MAX_DEPTH = 64
MAX_NODES = 100_000
_FORMATS = {
    "date": "2024-{:02d}-{:02d}",
    "date-time": "2024-{:02d}-{:02d}T12:00:00Z",
    "time": "{:02d}:{:02d}:00Z",
    "duration": "P{}DT{}H",
    "email": "reader{}.{}@example.com",
    "uri": "https://example.com/{}/{}",
    "ipv4": "192.0.{}.{}",
    "uuid": "00000000-0000-4000-8000-00000000{:02d}{:02d}",
}


class SchemaError(ValueError):
    """No document satisfies the schema."""


def document(schema: Schema, *, seed: str, words: Sequence[str]) -> Any:
    """Returns a JSON value that satisfies `schema`.

    Understands JSON Schema and Gemini's OpenAPI dialect (upper-case types, `nullable`). Ignores
    `pattern`, `not`, `contains`, `dependent…` and `if`.

    Args:
        schema: The schema; `$ref` resolves inside it.
        seed: Equal seeds give equal documents.
        words: Words of string values, at least one.

    Raises:
        SchemaError: The schema is contradictory, too deep or not a schema.
    """
    return _Writer(schema, seed, words).write(schema, 0)


class _Writer:
    def __init__(self, root: Schema, seed: str, words: Sequence[str]) -> None:
        self._root = root
        self._seed = seed.encode()
        self._words = words
        self._nodes = 0

    def write(self, schema: Any, depth: int) -> Any:
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise SchemaError("The schema exceeds the maximum allowed nesting depth.")
        schema = self._branch(self._resolve(schema), depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._pick(_checked(schema["enum"], "enum"))
        match self._type(schema):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "integer":
                return self._integer(schema)
            case "number":
                return self._number(schema)
            case "boolean":
                return self._draw(2) == 1
            case "null":
                return None
            case _:
                return self._string(schema)

    def _draw(self, n: int) -> int:
        """Returns the next number below `n`; counter-based, so that the node count is the only state."""
        self._nodes += 1
        return int.from_bytes(sha256(self._seed + b"/%d" % self._nodes).digest()[:6]) % n

    def _pick(self, options: Sequence[Any]) -> Any:
        return options[self._draw(len(options))]

    def _resolve(self, schema: Any) -> Schema:
        """Resolves `$ref` and merges `allOf` with the keys beside them."""
        if schema is True:
            return {}
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, Mapping):
                raise SchemaError(f"A schema must be an object; got {schema!r}.")
            if "$ref" in schema:
                rest = {key: value for key, value in schema.items() if key != "$ref"}
                schema = {**self._target(schema["$ref"]), **rest}
            elif "allOf" in schema:
                schema = self._merged(schema)
            else:
                return schema
        raise SchemaError(f"`$ref` is circular: {schema.get('$ref')!r}.")

    def _target(self, reference: str) -> Schema:
        node: Any = self._root
        pointer = [key.replace("~1", "/").replace("~0", "~") for key in str(reference).split("/")[1:]]
        for key in pointer:
            if not isinstance(node, Mapping) or key not in node:
                raise SchemaError(f"`$ref` {reference!r} names nothing in the schema.")
            node = node[key]
        return self._resolve(node) if isinstance(node, Mapping) and "allOf" in node else dict(node)

    def _merged(self, schema: Schema) -> Schema:
        parts = [self._resolve(part) for part in schema["allOf"]]
        parts.append({key: value for key, value in schema.items() if key != "allOf"})
        merged: dict[str, Any] = {}
        for part in parts:
            both = {
                "properties": {**merged.get("properties", {}), **part.get("properties", {})},
                "required": [*merged.get("required", []), *part.get("required", [])],
            }
            merged = {**merged, **part, **{key: value for key, value in both.items() if value}}
        return merged

    def _branch(self, schema: Schema, depth: int) -> Schema:
        """Replaces `anyOf` / `oneOf` by the first branch; at depth, by the one with the smallest document."""
        for key in ("anyOf", "oneOf"):
            if key in schema:
                branches = _checked(schema[key], key)
                chosen = branches[0] if depth < REQUIRED_ONLY_DEPTH else min(branches, key=self._height)
                rest = {name: value for name, value in schema.items() if name != key}
                return self._branch({**rest, **self._resolve(chosen)}, depth)
        return schema

    def _height(self, schema: Any, above: frozenset[str] = frozenset()) -> float:
        """Returns the depth of the smallest document, in levels; infinite when it contains itself."""
        if isinstance(schema, Mapping) and "$ref" in schema:
            if schema["$ref"] in above:
                return math.inf
            above |= {schema["$ref"]}
        schema = self._resolve(schema)
        branches = schema.get("anyOf") or schema.get("oneOf")
        if branches:
            return min(self._height(branch, above) for branch in branches)
        if int(schema.get("minItems", 0)):
            return 1 + self._height(schema.get("items", {}), above)
        needed = [schema.get("properties", {}).get(name, {}) for name in schema.get("required", ())]
        return 1 + max((self._height(part, above) for part in needed), default=0)

    def _type(self, schema: Schema) -> str:
        declared = schema.get("type")
        if isinstance(declared, list):
            options = [name.lower() for name in declared if name.lower() != "null"]
            return str(self._pick(options)) if options else "null"
        if declared is not None and declared != "TYPE_UNSPECIFIED":
            return str(declared).lower()
        return _implied_type(schema)

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        required = list(schema.get("required") or ())
        names = required if depth >= REQUIRED_ONLY_DEPTH else [*properties, *required]
        ordered = dict.fromkeys([name for name in schema.get("propertyOrdering") or () if name in names])
        ordered.update(dict.fromkeys(names))
        result = {name: self.write(properties.get(name, True), depth + 1) for name in ordered}
        extra = schema.get("additionalProperties", True)
        while len(result) < int(schema.get("minProperties", 0)):
            result[f"key{len(result)}"] = self.write(extra or True, depth + 1)
        return result

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        prefix = list(schema.get("prefixItems") or ())
        low = int(schema.get("minItems", 0 if depth >= REQUIRED_ONLY_DEPTH else 1))
        high = int(schema.get("maxItems", low + 2))
        count = max(len(prefix), self._between(min(low, high), min(high, low + 2)))
        if schema.get("items") is False:
            count = len(prefix)
        parts = [*prefix, *[schema.get("items", True)] * (count - len(prefix))]
        items = [self.write(part, depth + 1) for part in parts[:count]]
        return self._distinct(schema, items, depth) if schema.get("uniqueItems") else items

    def _distinct(self, schema: Schema, items: list[Any], depth: int) -> list[Any]:
        unique = {repr(item): item for item in items}
        needed = int(schema.get("minItems", 0))
        for _ in range(50 * needed):
            if len(unique) >= needed:
                break
            item = self.write(schema.get("items", True), depth + 1)
            unique[repr(item)] = item
        if len(unique) < needed:
            raise SchemaError(f"`minItems` asks for {needed} distinct items; found only {len(unique)}.")
        return list(unique.values())

    def _integer(self, schema: Schema) -> int:
        low, high = _bounds(schema)
        step = int(schema.get("multipleOf", 1)) or 1
        first = math.ceil(low) if low != schema.get("exclusiveMinimum") else math.floor(low) + 1
        last = math.floor(high) if high != schema.get("exclusiveMaximum") else math.ceil(high) - 1
        return self._between(math.ceil(first / step), last // step) * step

    def _number(self, schema: Schema) -> float:
        low, high = _bounds(schema)
        if step := schema.get("multipleOf"):
            return float(self._between(math.ceil(low / step), math.floor(high / step)) * step)
        fraction = (self._draw(998) + 1) / 1000
        return float(low * (1 - fraction) + high * fraction) if low != high else float(low)

    def _between(self, low: int, high: int) -> int:
        if low > high:
            raise SchemaError(f"The schema leaves no value: lower bound {low}, upper bound {high}.")
        return low + self._draw(high - low + 1)

    def _string(self, schema: Schema) -> str:
        form = _FORMATS.get(str(schema.get("format", "")))
        if form:
            return form.format(self._draw(12) + 1, self._draw(23) + 1)
        low = int(schema.get("minLength", 0))
        high = int(schema.get("maxLength", max(low, 400)))
        start, count = self._draw(len(self._words)), self._draw(4) + 1
        text = " ".join([*self._words, *self._words][start : start + count])
        while len(text) < low:
            text += " " + self._pick(self._words)
        return text[:high]


def _implied_type(schema: Schema) -> str:
    for name, keys in (
        ("object", ("properties", "required", "additionalProperties", "minProperties")),
        ("array", ("items", "prefixItems", "minItems")),
        ("number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    ):
        if any(key in schema for key in keys):
            return name
    return "string"


def _bounds(schema: Schema) -> tuple[float, float]:
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    high = min(highs) if highs else (max(lows) if lows else 0) + 100
    low = max(lows) if lows else (0 if high > 0 else high - 100)
    return low, high


def _checked(options: Any, key: str) -> list[Any]:
    if not isinstance(options, list) or not options:
        raise SchemaError(f"`{key}` must be a list with at least one entry; got {options!r}.")
    return options
