"""Explicit context caches of Gemini: `cachedContents` of the Developer API and of Vertex AI."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llmbeam_sandbox.billing.tokens import TokenBill
from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.checks import check_kms_key
from llmbeam_sandbox.core.clock import timestamp
from llmbeam_sandbox.core.methods import Methods
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import (
    STATUSES,
    RestCall,
    RestError,
    Route,
    Service,
    StatusWording,
    page,
)

METHODS = Methods(names=tuple(f"gemini.caches.{verb}" for verb in ("create", "delete", "get", "list", "patch")))
DEFAULT_TTL_SECONDS = 3600.0
_PARENT = r"/(?:v1|v1beta|v1beta1)/(?P<parent>projects/[^/]+/locations/[^/]+/)?cachedContents"
_WORDING = StatusWording(
    reasons=STATUSES,
    messages={500: "Internal error encountered.", 503: "The service is currently unavailable."},
    rate_limit=RestError(429, "Resource has been exhausted (e.g. check quota)."),
)


@dataclass(frozen=True, kw_only=True)
class CachedContent:
    """One explicit cache.

    Attributes:
        name: Full name.
        model: Model name, without a publisher.
        fields: Fields as submitted.
        prompt: Text of its contents.
        system: Text of its system instruction.
        tokens: Its size, in tokens.
        created_at: Time of creation, in seconds since the epoch.
        expires_at: Time of its expiry, in seconds since the epoch.
    """

    name: str
    model: str
    fields: Mapping[str, Any]
    prompt: str
    system: str
    tokens: int
    created_at: float
    expires_at: float


class CachedContents:
    """The caches, their storage on the bill, and their REST methods.

    Args:
        backend: Faults, request log and clock.
        bill: Bill of the creation and of the storage.
        read: Returns text, system text and tokens of submitted fields.
        min_tokens: Minimum size of a cache, in tokens.
        storage_usd: Price of a million tokens for 3,600 s, in USD.
    """

    def __init__(
        self,
        backend: Backend,
        bill: TokenBill,
        read: Callable[[Mapping[str, Any]], tuple[str, str, int]],
        *,
        min_tokens: int,
        storage_usd: float,
    ) -> None:
        self._now, self._bill, self._read = backend.now, bill, read
        self._min_tokens, self._storage_usd = min_tokens, storage_usd
        self._serial = itertools.count(1)
        self._all: dict[str, CachedContent] = {}
        self._ended_usd = 0.0
        one = rf"{_PARENT}/(?P<cache>[^/:]+)"
        methods: tuple[tuple[str, str, str, Callable[[RestCall], Reply]], ...] = (
            ("POST", _PARENT, "create", self._create),
            ("GET", _PARENT, "list", self._list),
            ("GET", one, "get", lambda call: json_reply(_shown(self._found(call)))),
            ("PATCH", one, "patch", self._patch),
            ("DELETE", one, "delete", self._delete),
        )
        routes = [
            Route(
                verb=verb,
                pattern=re.compile(path),
                method=f"gemini.caches.{name}",
                work=work,
                label=lambda call: call.names.get("cache", ""),
            )
            for verb, path, name, work in methods
        ]
        self.service = Service(backend, _WORDING, routes, is_slow=False)

    @property
    def live(self) -> list[CachedContent]:
        """The caches that exist now, the oldest first."""
        now = self._now()
        for cache in [one for one in self._all.values() if one.expires_at <= now]:
            self._end(cache, cache.expires_at)
        return list(self._all.values())

    def named(self, name: str) -> CachedContent | None:
        """Returns a cache; `None` if it does not exist, or no longer."""
        return next((cache for cache in self.live if cache.name == name), None)

    def storage_nano_usd(self) -> int:
        """Returns the cost of the storage until now, in nano-USD."""
        now = self._now()
        running = sum(self._usd(cache, now) for cache in self.live)
        return round((self._ended_usd + running) * 1e9)

    def clear(self) -> None:
        """Removes all caches, and the cost of their storage."""
        self._all.clear()
        self._ended_usd = 0.0

    def _end(self, cache: CachedContent, at: float) -> None:
        del self._all[cache.name]
        self._ended_usd += self._usd(cache, at)

    def _usd(self, cache: CachedContent, until: float) -> float:
        return cache.tokens / 1e6 * (until - cache.created_at) / 3600 * self._storage_usd

    def _create(self, call: RestCall) -> Reply:
        fields, parent, now = call.fields(), call.names.get("parent") or "", self._now()
        model = str(fields.get("model") or "")
        if not re.fullmatch(r"models/[^/]+" if not parent else rf"{parent}publishers/google/models/[^/]+", model):
            raise RestError(400, f"* CreateCachedContentRequest.model: unexpected model name format: {model!r}")
        key = (fields.get("encryptionSpec") or {}).get("kmsKeyName")
        if key and not parent:
            raise RestError(
                400, 'Invalid JSON payload received. Unknown name "encryptionSpec": Cannot find field.'
            )
        check_kms_key(key, parent.split("/")[3] if parent else None)
        prompt, system, tokens = self._read(fields)
        if tokens < self._min_tokens:
            raise RestError(
                400,
                f"Cached content is too small. total_token_count={tokens}, "
                f"min_total_token_count={self._min_tokens}",
            )
        cache = CachedContent(
            name=f"{parent}cachedContents/{next(self._serial):08d}",
            model=model.rpartition("/")[2],
            fields=fields,
            prompt=prompt,
            system=system,
            tokens=tokens,
            created_at=now,
            expires_at=now + _ttl_seconds(fields, DEFAULT_TTL_SECONDS),
        )
        self._all[cache.name] = cache
        self._bill.add(cache.model, "standard", tokens, 0, 0, answers=0)
        return json_reply(_shown(cache))

    def _list(self, call: RestCall) -> Reply:
        prefix = f"{call.names.get('parent') or ''}cachedContents/"
        shown = [_shown(cache) for cache in self.live if cache.name.startswith(prefix)]
        found, token = page(call, shown, default=50, size="pageSize")
        return json_reply({"cachedContents": found, **token} if found else {})

    def _patch(self, call: RestCall) -> Reply:
        cache, fields = self._found(call), call.fields()
        if other := {*fields} - {"ttl", "name"}:
            raise RestError(400, f"Only ttl and expire_time can be updated; got {', '.join(sorted(other))}.")
        cache = replace(cache, expires_at=self._now() + _ttl_seconds(fields, None))
        self._all[cache.name] = cache
        return json_reply(_shown(cache))

    def _delete(self, call: RestCall) -> Reply:
        self._end(self._found(call), self._now())
        return json_reply({})

    def _found(self, call: RestCall) -> CachedContent:
        name = f"{call.names.get('parent') or ''}cachedContents/{call.names['cache']}"
        cache = self.named(name)
        if cache is None:
            raise missing(name)
        return cache


def missing(name: str) -> RestError:
    """Returns the refusal of a cache that does not exist: 404 on Vertex AI, 403 on the Developer API."""
    if name.startswith("projects/"):
        return RestError(404, f"Not found: cached content metadata for {name.rpartition('/')[2]}.")
    return RestError(403, "CachedContent not found (or permission denied)")


def _ttl_seconds(fields: Mapping[str, Any], default: float | None) -> float:
    ttl = fields.get("ttl")
    if ttl is None and default is not None:
        return default
    found = re.fullmatch(r"(\d+(?:\.\d+)?)s", str(ttl))
    if found is None or not float(found[1]):
        raise RestError(400, f"The ttl must be a duration above zero, e.g. '600s'; got {ttl!r}.")
    return float(found[1])


def _shown(cache: CachedContent) -> dict[str, Any]:
    return {
        "name": cache.name,
        "model": cache.fields["model"],
        "displayName": cache.fields.get("displayName", ""),
        "createTime": timestamp(cache.created_at),
        "updateTime": timestamp(cache.created_at),
        "expireTime": timestamp(cache.expires_at),
        "usageMetadata": {"totalTokenCount": cache.tokens},
    }
