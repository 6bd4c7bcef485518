"""Buckets and objects, in memory: generations, preconditions, lists. No HTTP."""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from llmbeam_sandbox.core.clock import Clock
from llmbeam_sandbox.core.rest import RestError
from llmbeam_sandbox.storage.checks import (
    check_bucket_name,
    check_key,
    check_object_name,
    check_preconditions,
    default_key,
)

WRITABLE = frozenset(
    {"cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "contentType", "customTime"}
    | {"eventBasedHold", "metadata", "storageClass", "temporaryHold"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """One generation of an object.

    Attributes:
        bucket: Name of the bucket.
        name: Name, which may contain slashes.
        data: Content.
        generation: Number that changes with the content.
        metageneration: Number that changes with the fields, from 1.
        created_at: Time of creation, in seconds since the epoch.
        updated_at: Time of the last change, in seconds since the epoch.
        fields: Fields that a client may set, see `WRITABLE`.
        component_count: Number of objects that it was composed of; None for other objects.
        kms_key_name: Key of Cloud KMS that encrypts it; "" for one of Google.
    """

    bucket: str
    name: str
    data: bytes
    generation: int
    metageneration: int = 1
    created_at: float
    updated_at: float
    fields: Mapping[str, Any] = field(default_factory=dict)
    component_count: int | None = None
    kms_key_name: str = ""

    @property
    def content_type(self) -> str:
        """Content type as stored; "" when unknown."""
        return str(self.fields.get("contentType", ""))

    @property
    def etag(self) -> str:
        """Tag that changes with content and fields."""
        return base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode()

    def hashes(self) -> dict[str, str]:
        """Returns `crc32c` and, unless the object was composed, `md5Hash`, in base64."""
        import google_crc32c

        found = {"crc32c": base64.b64encode(google_crc32c.value(self.data).to_bytes(4, "big")).decode()}
        if self.component_count is None:
            digest = hashlib.md5(self.data, usedforsecurity=False).digest()
            found["md5Hash"] = base64.b64encode(digest).decode()
        return found


@dataclass(slots=True, kw_only=True)
class Bucket:
    """A bucket and the live generation of each object in it."""

    name: str
    created_at: float
    fields: dict[str, Any] = field(default_factory=dict)
    metageneration: int = 1
    objects: dict[str, Object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One page of a list; `next_token` is "" on the last one."""

    objects: tuple[Object, ...]
    prefixes: tuple[str, ...]
    next_token: str


class ObjectStore:
    """All buckets. Safe to use from any thread.

    Args:
        clock: Returns seconds since the epoch.
        buckets: Buckets that exist from the start, and after `clear`.
    """

    def __init__(self, clock: Clock, buckets: Iterable[str] = ()) -> None:
        self.lock = threading.RLock()
        self._clock = clock
        self._initial = tuple(buckets)
        self._last_generation = 0
        self._buckets: dict[str, Bucket] = {}
        self.clear()

    def clear(self) -> None:
        """Removes everything but the initial buckets, which are empty again."""
        with self.lock:
            self._buckets = {}
            for name in self._initial:
                self.add_bucket(name, {})

    def buckets(self) -> list[Bucket]:
        """Returns all buckets, by name."""
        return [self._buckets[name] for name in sorted(self._buckets)]

    def bucket(self, name: str) -> Bucket:
        """Returns a bucket.

        Raises:
            RestError: There is none of that name.
        """
        if name not in self._buckets:
            raise RestError(404, "The specified bucket does not exist.", "notFound")
        return self._buckets[name]

    def add_bucket(self, name: str, fields: Mapping[str, Any]) -> Bucket:
        """Creates a bucket.

        Raises:
            RestError: It exists, or the name is invalid.
        """
        check_bucket_name(name)
        check_key(default_key(fields), fields)
        if name in self._buckets:
            message = "Your previous request to create the named bucket succeeded and you already own it."
            raise RestError(409, message, "conflict")
        self._buckets[name] = Bucket(name=name, created_at=self._clock(), fields=dict(fields))
        return self._buckets[name]

    def drop_bucket(self, name: str) -> None:
        """Deletes an empty bucket.

        Raises:
            RestError: There is none of that name, or it has objects.
        """
        if self.bucket(name).objects:
            raise RestError(409, "The bucket you tried to delete is not empty.", "conflict")
        del self._buckets[name]

    def find(self, bucket: str, name: str) -> Object | None:
        """Returns the live generation of an object, if any; raises `RestError` for an unknown bucket."""
        return self.bucket(bucket).objects.get(name)

    def get(self, bucket: str, name: str, query: Mapping[str, str], source: str = "") -> Object:
        """Returns the live generation of an object.

        Args:
            bucket: Name of the bucket.
            name: Name of the object.
            query: `generation` and preconditions.
            source: "Source" to use `sourceGeneration` and `ifSourceGenerationMatch` instead.

        Raises:
            RestError: There is no such object, or a precondition does not hold.
        """
        found = self.find(bucket, name)
        generation = query.get("sourceGeneration" if source else "generation")
        if found is None or generation not in (None, str(found.generation)):
            raise RestError(404, f"No such object: {bucket}/{name}", "notFound")
        check_preconditions(found, query, source)
        return found

    def put(
        self,
        bucket: str,
        name: str,
        data: bytes,
        fields: Mapping[str, Any],
        query: Mapping[str, str],
        *,
        component_count: int | None = None,
    ) -> Object:
        """Writes a new generation atomically.

        Raises:
            RestError: The bucket is unknown, the name is invalid, or a precondition does not hold.
        """
        check_object_name(name)
        with self.lock:
            owner = self.bucket(bucket)
            objects, key = owner.objects, query.get("destinationKmsKeyName") or query.get("kmsKeyName")
            check_key(key, owner.fields)
            check_preconditions(objects.get(name), query)
            now = self._clock()
            self._last_generation = max(self._last_generation + 1, int(now * 1e6))
            objects[name] = Object(
                bucket=bucket,
                name=name,
                data=data,
                generation=self._last_generation,
                created_at=now,
                updated_at=now,
                fields={key: value for key, value in fields.items() if key in WRITABLE and value is not None},
                component_count=component_count,
                kms_key_name=key or default_key(owner.fields),
            )
            return objects[name]

    def patch(self, bucket: str, name: str, fields: Mapping[str, Any], query: Mapping[str, str]) -> Object:
        """Changes fields; None removes one. Raises `RestError` as `get` does."""
        with self.lock:
            found = self.get(bucket, name, query)
            merged = {**found.fields, **{key: value for key, value in fields.items() if key in WRITABLE}}
            changed = replace(
                found,
                fields={key: value for key, value in merged.items() if value is not None},
                metageneration=found.metageneration + 1,
                updated_at=self._clock(),
            )
            self.bucket(bucket).objects[name] = changed
            return changed

    def delete(self, bucket: str, name: str, query: Mapping[str, str]) -> None:
        """Deletes the live generation. Raises `RestError` as `get` does."""
        with self.lock:
            self.get(bucket, name, query)
            del self.bucket(bucket).objects[name]

    def page(self, bucket: str, query: Mapping[str, str], size: int) -> Listing:
        """Returns one page of objects and prefixes, in the order of their names."""
        entries: dict[str, Object | None] = {}
        with self.lock:
            objects = sorted(self.bucket(bucket).objects.items())
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        for name, found in filter(_matches(query), objects):
            head, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            entries.setdefault(*((prefix + head + cut, None) if cut else (name, found)))
        after = base64.urlsafe_b64decode(query.get("pageToken", "")).decode()
        names = sorted(name for name in entries if name > after)
        chosen = [(name, entries[name]) for name in names[:size]]
        return Listing(
            objects=tuple(found for _, found in chosen if found is not None),
            prefixes=tuple(name for name, found in chosen if found is None),
            next_token=base64.urlsafe_b64encode(names[size - 1].encode()).decode() if size < len(names) else "",
        )

    def glob(self, uri: str) -> list[Object]:
        """Returns the objects that match `gs://bucket/pattern`; `*` matches any characters.

        Raises:
            RestError: The URI is invalid, or the bucket is unknown.
        """
        match = re.fullmatch(r"gs://([^/]+)/(.+)", uri)
        if match is None:
            raise RestError(400, f"Source URI must be a Google Cloud Storage location: {uri}", "invalid")
        pattern = re.compile(".*".join(map(re.escape, match[2].split("*"))), re.DOTALL)
        with self.lock:
            found = sorted(self.bucket(match[1]).objects.items())
        return [one for name, one in found if pattern.fullmatch(name)]


def _matches(query: Mapping[str, str]) -> Callable[[tuple[str, Object]], bool]:
    start, end, prefix = query.get("startOffset", ""), query.get("endOffset"), query.get("prefix", "")
    glob = re.compile(_glob_pattern(query["matchGlob"])) if query.get("matchGlob") else None

    def matches(entry: tuple[str, Object]) -> bool:
        name = entry[0]
        is_inside = name.startswith(prefix) and name >= start and (not end or name < end)
        return is_inside and (glob is None or glob.fullmatch(name) is not None)

    return matches


_GLOB_SIGNS = {"**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}


def _glob_pattern(glob: str) -> str:
    tokens = re.findall(r"\*\*|\[[^\]]*\]|.", glob, re.DOTALL)
    return "".join(_GLOB_SIGNS.get(token, token if len(token) > 1 else re.escape(token)) for token in tokens)
