"""Cached contents of Gemini: the head of prompts, which the provider stores for a time.

Fields as in google-genai 2.34 (`caches.py`) and ai.google.dev/api/caching.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.providers.errors import ApiUnavailableError
from airflow_provider_llmbeam.providers.rest import RestClient, google_next_page
from airflow_provider_llmbeam.spec.model import GeminiModel
from airflow_provider_llmbeam.transport.server_reply import count_of, list_of, mapping_of, str_of, time_of

_NAME = re.compile(r"(projects/[\w.:-]+/locations/[\w-]+/)?cachedContents/[\w-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedContent:
    """A cached content.

    Attributes:
        name: Name at the provider.
        display_name: Display name, by which it is found again.
        tokens: Its size, in tokens; `None` if the provider does not say so.
        created_at: Unix time.
    """

    name: str
    display_name: str
    tokens: int | None
    created_at: float


class CachedContents:
    """Stores, finds, extends and deletes cached contents. Every method raises an `ApiError`.

    Args:
        model: The model that the contents are for.
        http: Requests to the API.
        kms_key_name: Key of Cloud KMS that encrypts the contents, on Vertex AI.

    Attributes:
        model_name: Resource name of the model.
    """

    def __init__(self, model: GeminiModel, http: RestClient, kms_key_name: str | None = None) -> None:
        version = "/v1beta1/" if model.project else "/v1beta/"
        root, _, self.model_name = model.address.rpartition(version)
        self._root = f"{root}{version.rstrip('/')}"
        parent = f"projects/{model.project}/locations/{model.location}/" if model.project else ""
        self._url = f"{self._root}/{parent}cachedContents"
        self._http = http
        self._kms_key_name = kms_key_name

    def find(self, prefix: str) -> Iterator[CachedContent]:
        """Yields the contents whose display name starts with a prefix."""
        for page in self._http.pages(self._url, {"pageSize": "100"}, google_next_page):
            for found in map(_content_of, map(mapping_of, list_of(page.get("cachedContents")))):
                if found is not None and found.display_name.startswith(prefix):
                    yield found

    def create(self, display_name: str, text: str, system: str | None, ttl_seconds: float) -> CachedContent:
        """Stores a text and a system instruction. A repeated request may store them twice.

        Args:
            display_name: Display name.
            text: Beginning of the prompts; may be empty.
            system: System instruction.
            ttl_seconds: Time for which it is stored, in seconds.
        """
        body: dict[str, Any] = {"model": self.model_name, "displayName": display_name, "ttl": _ttl(ttl_seconds)}
        if text:
            body["contents"] = [{"role": "user", "parts": [{"text": text}]}]
        if system:
            body["systemInstruction"] = {"role": "user", "parts": [{"text": system}]}
        if self._kms_key_name is not None:
            body["encryptionSpec"] = {"kmsKeyName": self._kms_key_name}
        return _read(self._http.send("POST", self._url, body), display_name)

    def extend(self, content: CachedContent, ttl_seconds: float) -> CachedContent:
        """Lets a content expire later: `ttl_seconds` from now."""
        reply = self._http.send("PATCH", f"{self._root}/{content.name}", {"ttl": _ttl(ttl_seconds)})
        return _read(reply, content.display_name)

    def delete(self, content: CachedContent) -> None:
        """Deletes a content; does nothing if it does not exist."""
        self._http.delete(f"{self._root}/{content.name}")


open_cached_contents = CachedContents


def _ttl(seconds: float) -> str:
    return f"{seconds:.0f}s"


def _read(reply: Mapping[str, Any], display_name: str) -> CachedContent:
    if (found := _content_of(reply)) is None:
        raise ApiUnavailableError(f"The server named no cached content for {display_name!r}.")
    return found


def _content_of(reply: Mapping[str, Any]) -> CachedContent | None:
    """Returns the content of a reply; `None` without a valid name, which becomes part of an address."""
    name = str_of(reply.get("name"))
    if not _NAME.fullmatch(name):
        return None
    return CachedContent(
        name=name,
        display_name=str_of(reply.get("displayName")),
        tokens=count_of(mapping_of(reply.get("usageMetadata")).get("totalTokenCount")),
        created_at=time_of(reply.get("createTime")) or time.time(),
    )
