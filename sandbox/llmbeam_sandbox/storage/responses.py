"""Buckets, objects, content and errors in the format of Cloud Storage."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from llmbeam_sandbox.core.clock import timestamp
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import TEXT_TYPE, RestCall, RestError, Wording
from llmbeam_sandbox.core.uploads import BINARY_TYPE
from llmbeam_sandbox.storage.state import Bucket, Object

WORDING = Wording(
    reasons={
        400: "invalid",
        401: "required",
        403: "forbidden",
        404: "notFound",
        409: "conflict",
        412: "conditionNotMet",
        429: "rateLimitExceeded",
        500: "backendError",
        503: "backendError",
    },
    messages={
        401: "Anonymous caller does not have storage.objects.get access to the Google Cloud Storage object.",
        403: "The caller does not have storage.objects.get access to the Google Cloud Storage object. Permission "
        "'storage.objects.get' denied on resource (or it may not exist).",
        500: "We encountered an internal error. Please try again.",
        503: "We encountered an internal error. Please try again.",
    },
    rate_limit=RestError(
        429,
        "The object exceeded the rate limit for object mutation operations (create, update, and delete). Please "
        "reduce your request rate. See https://cloud.google.com/storage/docs/gcs429.",
        "rateLimitExceeded",
    ),
)
_RANGE = re.compile(r"bytes=(?P<first>\d*)-(?P<last>\d*)")


def bucket_resource(bucket: Bucket, base_url: str) -> dict[str, Any]:
    """Returns a bucket as the API returns it; without a project number, which Beam would look up."""
    location = str(bucket.fields.get("location", "US"))
    return {
        "kind": "storage#bucket",
        "id": bucket.name,
        "name": bucket.name,
        "selfLink": f"{base_url}/storage/v1/b/{bucket.name}",
        # A region has a number at its end, after a dash: EUROPE-WEST1.
        "locationType": "region" if "-" in location else "multi-region",
        "location": location,
        "storageClass": "STANDARD",
        "metageneration": str(bucket.metageneration),
        "etag": "CAE=",
        "timeCreated": timestamp(bucket.created_at),
        "updated": timestamp(bucket.created_at),
        **bucket.fields,
    }


def object_resource(found: Object, base_url: str) -> dict[str, Any]:
    """Returns an object as the API returns it."""
    path = f"/storage/v1/b/{found.bucket}/o/{quote(found.name, safe='')}"
    resource = {
        "kind": "storage#object",
        "id": f"{found.bucket}/{found.name}/{found.generation}",
        "selfLink": f"{base_url}{path}",
        "mediaLink": f"{base_url}/download{path}?generation={found.generation}&alt=media",
        "name": found.name,
        "bucket": found.bucket,
        "generation": str(found.generation),
        "metageneration": str(found.metageneration),
        "storageClass": "STANDARD",
        "size": str(len(found.data)),
        "etag": found.etag,
        "timeCreated": timestamp(found.created_at),
        "updated": timestamp(found.updated_at),
        **found.hashes(),
        **found.fields,
    }
    if found.kms_key_name:
        resource["kmsKeyName"] = f"{found.kms_key_name}/cryptoKeyVersions/1"
    return resource if found.component_count is None else resource | {"componentCount": found.component_count}


def object_reply(found: Object, call: RestCall) -> Reply:
    """Returns the reply with an object, without its content."""
    return json_reply(object_resource(found, call.base_url), headers={"ETag": found.etag})


def media_reply(found: Object, requested_range: str | None) -> Reply:
    """Returns the reply with the content, or with the requested range of it, bounds included."""
    data, size = found.data, len(found.data)
    headers = {
        "ETag": found.etag,
        "Accept-Ranges": "bytes",
        "X-Goog-Generation": str(found.generation),
        "X-Goog-Metageneration": str(found.metageneration),
        "X-Goog-Stored-Content-Length": str(size),
        "X-Goog-Stored-Content-Encoding": str(found.fields.get("contentEncoding", "identity")),
        "X-Goog-Hash": ",".join(f"{name.removesuffix('Hash')}={value}" for name, value in found.hashes().items()),
    }
    if "contentEncoding" in found.fields:
        headers["Content-Encoding"] = str(found.fields["contentEncoding"])
    kind = found.content_type or BINARY_TYPE
    match = _RANGE.fullmatch(requested_range or "")
    if match is None or match["first"] + match["last"] == "":
        return Reply(chunks=(data,), content_type=kind, headers=headers)
    if match["first"]:
        first, last = int(match["first"]), min(int(match["last"] or size - 1), size - 1)
    else:
        first, last = max(0, size - int(match["last"])), size - 1
    if first >= size:
        text = b"The requested range cannot be satisfied."
        return Reply(
            http_status=416, chunks=(text,), content_type=TEXT_TYPE, headers={"Content-Range": f"bytes */{size}"}
        )
    headers["Content-Range"] = f"bytes {first}-{last}/{size}"
    return Reply(http_status=206, chunks=(data[first : last + 1],), content_type=kind, headers=headers)
