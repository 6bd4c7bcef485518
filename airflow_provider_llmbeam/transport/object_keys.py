"""The key of Cloud KMS with which a client of Cloud Storage writes."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import requests

#: The parameter that names the key, by the path of the methods that write objects. Each upload begins with a POST.
#: Source: the Discovery document storage.v1; its field `Object.kmsKeyName` is refused in requests.
_PARAMETERS = {
    re.compile(r"/upload/storage/v1/b/[^/]+/o\?"): "kmsKeyName",
    re.compile(r"/storage/v1/b/[^/]+/o/[^/]+/compose\b"): "kmsKeyName",
    re.compile(r"/storage/v1/b/[^/]+/o/[^/]+/(?:copyTo|rewriteTo)/"): "destinationKmsKeyName",
}
#: First line of each request in the body of a batch.
_IN_BATCH = re.compile(rb"(?m)^POST (\S+) HTTP/1\.1")


def encrypt_objects(client: Any, kms_key_name: str | None) -> None:
    """Lets a client of `google-cloud-storage` write every object with a key; `None` changes nothing.

    `Blob.kms_key_name` does not do: `reload` sets it to a version of the key, with which an upload sends no key
    (google-cloud-storage 3.17), and `Bucket.copy_blob` takes none.

    Args:
        client: The client.
        kms_key_name: The key.
    """
    if kms_key_name is not None:
        client._http.auth = _Keyed(kms_key_name)


class _Keyed(requests.auth.AuthBase):
    """Adds the key to the requests that write objects."""

    def __init__(self, kms_key_name: str) -> None:
        self._kms_key_name = kms_key_name

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if request.method == "POST":
            request.url = self._with_key(str(request.url))
            if "/batch/storage/v1" in request.url and isinstance(body := request.body, str | bytes):
                request.body = _IN_BATCH.sub(self._line_with_key, body.encode() if isinstance(body, str) else body)
        return request

    def _line_with_key(self, line: re.Match[bytes]) -> bytes:
        return f"POST {self._with_key(line[1].decode())} HTTP/1.1".encode()

    def _with_key(self, url: str) -> str:
        name = next((name for path, name in _PARAMETERS.items() if path.search(url)), None)
        if name is None or re.search(rf"[?&]{name}=", url):
            return url
        return f"{url}{'&' if '?' in url else '?'}{name}={quote(self._kms_key_name, safe='')}"
