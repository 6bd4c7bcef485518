"""Cloud Storage's JSON API, as google-cloud-storage, Beam and gcloud-aio call it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from aiohttp import web

from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.methods import Method, Methods
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import (
    TEXT_TYPE,
    RestCall,
    RestError,
    Route,
    Service,
    no_content,
    page,
)
from llmbeam_sandbox.core.uploads import BINARY_TYPE, Part, Sessions, parts
from llmbeam_sandbox.storage.batch import Batch
from llmbeam_sandbox.storage.checks import (
    MAX_SOURCES,
    check_hashes,
    check_key,
    check_preconditions,
    default_key,
)
from llmbeam_sandbox.storage.responses import (
    WORDING,
    bucket_resource,
    media_reply,
    object_reply,
    object_resource,
)
from llmbeam_sandbox.storage.state import Object, ObjectStore

METHODS = Methods(
    names=(
        "storage.buckets.delete",
        "storage.buckets.get",
        "storage.buckets.insert",
        "storage.buckets.list",
        "storage.buckets.patch",
        "storage.objects.batch",
        "storage.objects.compose",
        "storage.objects.copy",
        "storage.objects.delete",
        "storage.objects.get",
        "storage.objects.insert",
        "storage.objects.list",
        "storage.objects.move",
        "storage.objects.patch",
        "storage.objects.rewrite",
        "storage.uploads.cancel",
        "storage.uploads.start",
    ),
    abortable=frozenset({"storage.objects.insert"}),
)
DEFAULT_PAGE = 1000
PREFIXES = ("/storage/v1", "/upload/storage/v1", "/download/storage/v1")
_BUCKET = r"/b/(?P<bucket>[^/]+)"
_OBJECT = rf"{_BUCKET}/o/(?P<object>[^/]+)"
_TARGET = r"/b/(?P<to_bucket>[^/]+)/o/(?P<to_object>[^/]+)"


class Storage:
    """The methods of Cloud Storage over a store of objects.

    Args:
        store: Buckets and objects.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.sessions = Sessions()

    def routes(self) -> list[Route]:
        """Returns the methods and their paths."""
        return [
            _route("POST", "/b", "storage.buckets.insert", self._insert_bucket),
            _route("GET", "/b", "storage.buckets.list", self._list_buckets),
            _route("GET", _BUCKET, "storage.buckets.get", self._get_bucket),
            _route("PATCH", _BUCKET, "storage.buckets.patch", self._patch_bucket),
            _route("PUT", _BUCKET, "storage.buckets.patch", self._patch_bucket),
            _route("DELETE", _BUCKET, "storage.buckets.delete", self._delete_bucket),
            _route("GET", f"{_BUCKET}/o", "storage.objects.list", self._list),
            _route("GET", _OBJECT, "storage.objects.get", self._get),
            _route("PATCH", _OBJECT, "storage.objects.patch", self._patch),
            _route("PUT", _OBJECT, "storage.objects.patch", self._patch),
            _route("DELETE", _OBJECT, "storage.objects.delete", self._delete),
            _route("POST", f"{_OBJECT}/rewriteTo{_TARGET}", "storage.objects.rewrite", self._rewrite),
            _route("POST", f"{_OBJECT}/copyTo{_TARGET}", "storage.objects.copy", self._copy),
            _route("POST", rf"{_OBJECT}/moveTo/o/(?P<to_object>[^/]+)", "storage.objects.move", self._move),
            _route("POST", f"{_OBJECT}/compose", "storage.objects.compose", self._compose),
            self._upload("POST", "storage.uploads.start", self._begin, "resumable"),
            self._upload("POST", "storage.objects.insert", self._insert_multipart, "multipart"),
            self._upload("POST", "storage.objects.insert", self._insert_media, "media"),
            self._upload("PUT", "storage.objects.insert", self._insert_chunk, "resumable"),
            self._upload("DELETE", "storage.uploads.cancel", self.sessions.cancel, "resumable"),
        ]

    def clear(self) -> None:
        """Removes everything but the initial buckets."""
        self.store.clear()
        self.sessions.clear()

    def _upload(self, verb: str, method: Method, work: Callable[[RestCall], Reply], upload_type: str) -> Route:
        return Route(
            verb=verb,
            pattern=re.compile(rf"/upload/storage/v1{_BUCKET}/o"),
            method=method,
            work=work,
            label=self._label,
            is_upload=method == "storage.objects.insert",
            upload_type=upload_type,
        )

    def _label(self, call: RestCall) -> str:
        """Returns the name of the uploaded object, from the part of the body that has arrived."""
        session = self.sessions.get(call)
        name = call.query.get("name")
        if session is not None:
            name = session.metadata.get("name") or session.start.query.get("name")
        if not name:
            match = re.search(rb'"name"\s*:\s*("(?:[^"\\]|\\.)*")', call.body)
            name = json.loads(match[1]) if match else ""
        return f"{call.names['bucket']}/{name}"

    # Buckets

    def _insert_bucket(self, call: RestCall) -> Reply:
        fields = call.fields()
        with self.store.lock:
            bucket = self.store.add_bucket(str(fields.pop("name", "")), fields)
        return json_reply(bucket_resource(bucket, call.base_url))

    def _list_buckets(self, call: RestCall) -> Reply:
        prefix = call.query.get("prefix", "")
        buckets = [bucket for bucket in self.store.buckets() if bucket.name.startswith(prefix)]
        chosen, token = page(call, buckets, default=DEFAULT_PAGE)
        items = [bucket_resource(bucket, call.base_url) for bucket in chosen]
        return json_reply({"kind": "storage#buckets", "items": items, **token})

    def _get_bucket(self, call: RestCall) -> Reply:
        return json_reply(bucket_resource(self.store.bucket(call.names["bucket"]), call.base_url))

    def _patch_bucket(self, call: RestCall) -> Reply:
        with self.store.lock:
            bucket = self.store.bucket(call.names["bucket"])
            merged = bucket.fields | call.fields()
            check_key(default_key(merged), merged)
            bucket.fields = {key: value for key, value in merged.items() if value is not None}
            bucket.metageneration += 1
            return json_reply(bucket_resource(bucket, call.base_url))

    def _delete_bucket(self, call: RestCall) -> Reply:
        with self.store.lock:
            self.store.drop_bucket(call.names["bucket"])
        return no_content()

    # Objects

    def _list(self, call: RestCall) -> Reply:
        size = call.number("maxResults", DEFAULT_PAGE) or DEFAULT_PAGE
        listing = self.store.page(call.names["bucket"], call.query, min(size, DEFAULT_PAGE))
        body: dict[str, Any] = {"kind": "storage#objects"}
        if listing.next_token:
            body["nextPageToken"] = listing.next_token
        if listing.prefixes:
            body["prefixes"] = list(listing.prefixes)
        body["items"] = [object_resource(found, call.base_url) for found in listing.objects]
        return json_reply(body)

    def _get(self, call: RestCall) -> Reply:
        is_media = call.query.get("alt") == "media"
        try:
            found = self.store.get(call.names["bucket"], call.names["object"], call.query)
        except RestError as error:
            if is_media and error.http_status != 304:
                # Downloads return errors as plain text.
                text = error.message.encode()
                return Reply(http_status=error.http_status, chunks=(text,), content_type=TEXT_TYPE)
            raise
        return media_reply(found, call.headers.get("range")) if is_media else object_reply(found, call)

    def _patch(self, call: RestCall) -> Reply:
        changed = self.store.patch(call.names["bucket"], call.names["object"], call.fields(), call.query)
        return object_reply(changed, call)

    def _delete(self, call: RestCall) -> Reply:
        self.store.delete(call.names["bucket"], call.names["object"], call.query)
        return no_content()

    def _rewrite(self, call: RestCall) -> Reply:
        copied = self._copied(call)
        size = str(len(copied.data))
        body = {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size, "done": True}
        return json_reply(body | {"resource": object_resource(copied, call.base_url)})

    def _copy(self, call: RestCall) -> Reply:
        return object_reply(self._copied(call), call)

    def _move(self, call: RestCall) -> Reply:
        with self.store.lock:
            moved = self._copied(call)
            if call.names["object"] != moved.name:
                self.store.delete(call.names["bucket"], call.names["object"], {})
        return object_reply(moved, call)

    def _copied(self, call: RestCall) -> Object:
        names = call.names
        with self.store.lock:
            source = self.store.get(names["bucket"], names["object"], call.query, "Source")
            fields = {**source.fields, **call.fields()}
            target = names.get("to_bucket", names["bucket"])
            return self.store.put(target, names["to_object"], source.data, fields, call.query)

    def _compose(self, call: RestCall) -> Reply:
        fields, bucket = call.fields(), call.names["bucket"]
        sources = fields.get("sourceObjects") or []
        if not 0 < len(sources) <= MAX_SOURCES:
            message = (
                f"The number of source components provided ({len(sources)}) exceeds the maximum ({MAX_SOURCES})"
            )
            raise RestError(400, message, "invalid")
        with self.store.lock:
            found = [self._component(bucket, source) for source in sources]
            composed = self.store.put(
                bucket,
                call.names["object"],
                b"".join(one.data for one in found),
                fields.get("destination") or {"contentType": found[0].content_type or None},
                call.query,
                component_count=sum(one.component_count or 1 for one in found),
            )
        return object_reply(composed, call)

    def _component(self, bucket: str, source: Mapping[str, Any]) -> Object:
        generation = {"generation": str(source["generation"])} if source.get("generation") else {}
        conditions = {name: str(value) for name, value in (source.get("objectPreconditions") or {}).items()}
        return self.store.get(bucket, source["name"], generation | conditions)

    # Uploads

    def _insert_media(self, call: RestCall) -> Reply:
        fields = {"contentType": call.headers.get("content-type", BINARY_TYPE)}
        return self._insert(call, {"name": call.query.get("name", ""), **fields}, call.body)

    def _insert_multipart(self, call: RestCall) -> Reply:
        if call.is_aborted:
            return no_content()
        found = parts(call.headers.get("content-type", ""), call.body)
        if len(found) != 2:
            raise RestError(400, "Multipart body must have exactly two parts.", "badContent")
        metadata, media = found
        fields = {
            "contentType": media.headers.get("content-type", BINARY_TYPE),
            "name": call.query.get("name", ""),
        }
        return self._insert(call, fields | _json_part(metadata), media.body)

    def _begin(self, call: RestCall) -> Reply:
        name = call.fields().get("name") or call.query.get("name", "")
        check_preconditions(self.store.find(call.names["bucket"], name), call.query)
        return self.sessions.begin(call, f"/upload/storage/v1/b/{quote(call.names['bucket'])}/o")

    def _insert_chunk(self, call: RestCall) -> Reply:
        session = self.sessions.of(call)
        if session.reply is not None:
            return session.reply
        if not session.add(call):
            return session.incomplete()
        name = session.start.query.get("name", "")
        fields = {"name": name, "contentType": session.content_type} | session.metadata
        session.reply = self._insert(session.start, fields, bytes(session.data))
        return session.reply

    def _insert(self, call: RestCall, fields: Mapping[str, Any], data: bytes) -> Reply:
        if call.is_aborted:
            return no_content()
        self._check_hashes(fields, data)
        if fields.get("kmsKeyName"):  # as the Discovery document says of this field
            raise RestError(400, "Specifying kmsKeyName in the metadata of an object is not supported.", "invalid")
        stored = self.store.put(call.names["bucket"], str(fields["name"]), data, fields, call.query)
        return object_reply(stored, call)

    def _check_hashes(self, fields: Mapping[str, Any], data: bytes) -> None:
        if not fields.get("crc32c") and not fields.get("md5Hash"):
            return
        draft = Object(bucket="", name="", data=data, generation=0, created_at=0, updated_at=0)
        check_hashes(fields, draft.hashes())


def routes(backend: Backend, storage: Storage) -> list[web.RouteDef]:
    """Returns the routes of Cloud Storage."""
    service = Service(backend, WORDING, storage.routes(), is_slow=False)
    return [
        web.post("/batch/storage/v1", Batch(backend, service).serve),
        *(web.route("*", f"{prefix}/{{tail:.*}}", service.serve) for prefix in PREFIXES),
    ]


def _route(verb: str, path: str, method: Method, work: Callable[[RestCall], Reply]) -> Route:
    return Route(verb=verb, pattern=re.compile(rf"(?:/download)?/storage/v1{path}"), method=method, work=work)


def _json_part(part: Part) -> dict[str, Any]:
    return RestCall(names={}, query={}, headers={}, body=part.body).fields()
