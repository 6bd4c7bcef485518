"""The explicit cache of the head that all prompts of a job have in common, for the time of its run."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_provider_llmbeam.engine.prefix import CachedHead, PromptHead, head_of, min_tokens, storage_usd
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.providers.errors import ApiError
from airflow_provider_llmbeam.providers.gemini.cached_contents import CachedContent, CachedContents
from airflow_provider_llmbeam.providers.registry import part_of
from airflow_provider_llmbeam.providers.rest import open_client
from airflow_provider_llmbeam.spec.identity import display_name_prefix
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.job.encryption_rules import stores_encrypted
from airflow_provider_llmbeam.spec.model.price import price_of
from airflow_provider_llmbeam.spec.protocol.counts import NANO
from airflow_provider_llmbeam.spec.runner import LocalRunner
from airflow_provider_llmbeam.spec.source import RowsSource

_log = logging.getLogger("llmbeam")

#: Time for which the provider stores the cache after the last extension, in seconds. What a killed run leaves
#: behind expires within it, and costs $0.001 for 6,000 tokens at $1 per million tokens and hour.
TTL_SECONDS = 600.0
EXTEND_SECONDS = TTL_SECONDS / 3

#: Assumed number of requests of a source that has not been read. A cache pays from 2 requests in 10 minutes.
_UNKNOWN_ROWS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache:
    """A head that the provider has stored.

    Attributes:
        name: Name of the cached content.
        head: The head.
        tokens: Its size, in tokens.
        created_at: Unix time.
        model: Name of the model.
        token_nano_usd: Cost of one input token, in billionths of a US dollar; `None` if it is not known.
    """

    name: str
    head: PromptHead
    tokens: int
    created_at: float
    model: str
    token_nano_usd: float | None

    @property
    def cached_head(self) -> CachedHead:
        """The head, as the client of the model needs it."""
        return CachedHead(self.name, self.head)

    def cost_nano_usd(self, now: float) -> int | None:
        """Returns the cost of its creation and of its storage so far; `None` if a price is not known."""
        created = datetime.fromtimestamp(self.created_at, UTC)
        storage = storage_usd(self.model, self.tokens, max(0.0, now - self.created_at), created)
        if storage is None or self.token_nano_usd is None:
            return None
        return round(self.tokens * self.token_nano_usd + storage * NANO)

    def tally(self, now: float) -> Tally:
        """Returns what it adds to the sums of the report: it is billed once as input, and its storage by time."""
        cost = self.cost_nano_usd(now)
        sums = {"input_tokens": self.tokens, "cost_nano_usd": cost or 0, "unpriced": int(cost is None)}
        return Tally(sums=Counter(sums), costs=Counter(prefix_cache=cost or 0))


def head_to_cache(spec: JobSpec) -> PromptHead | None:
    """Returns the head of a job's prompts if an explicit cache for it pays, else `None`."""
    model = spec.model
    is_possible = (
        spec.inference.prefix_cache
        and part_of(model, "cached_contents") is not None
        and stores_encrypted(model, spec.kms_key_name)
        and spec.embedding is None
        # The head would be stored as it is in the templates, and the prompts have it masked.
        and (spec.safety.privacy is None or spec.safety.privacy.columns is not None)
        # A request with a cache has no tools, and Model Armor would not see the stored part.
        and not (spec.generation.google_search or spec.generation.model_armor)
        # A job on Dataflow outlives the process that extends and deletes the cache.
        and isinstance(spec.runner, LocalRunner)
    )
    head = _head_of_job(spec) if is_possible else None
    if head is None or head.tokens < min_tokens(model.name):
        return None
    price, tokens = price_of(model, spec.limits.price), head.tokens
    storage = storage_usd(model.name, tokens, TTL_SECONDS, datetime.now(UTC))
    if price is None or storage is None:
        return None
    requests = len(spec.source.rows) if isinstance(spec.source, RowsSource) else _UNKNOWN_ROWS
    inline, cached = price.cost_usd(tokens, 0), price.cost_usd(tokens, 0, tokens)
    return head if inline + storage < requests * (inline - cached) else None


def marked_head(spec: JobSpec) -> CachedHead | None:
    """Returns the head of a job's prompts that requests mark to be stored; `None` for a provider without marks."""
    least = spec.model.api.min_marked_tokens
    if not spec.inference.prefix_cache or least is None or not stores_encrypted(spec.model, spec.kms_key_name):
        return None
    head = _head_of_job(spec)
    return None if head is None or head.tokens < least else CachedHead("", head)


def _head_of_job(spec: JobSpec) -> PromptHead | None:
    head = head_of(spec.prompt)
    if head is not None and spec.conversation is not None:  # a history comes before the text
        return None if head.system is None else PromptHead("", head.system)
    return head


@contextlib.contextmanager
def store_head(spec: JobSpec) -> Iterator[PrefixCache | None]:
    """Stores the head of a job's prompts while the body runs; `None` if that does not pay, or fails.

    Without the cache each request has the head itself, so no failure here is one of the job. A job runs once at a
    time, so that what exists under its display name was left behind by a killed run.
    """
    head = head_to_cache(spec)
    if head is None:
        yield None
        return
    try:
        client = _Client(spec, head)
        content = client.find_or_create()
    except (ApiError, JobSpecError) as error:
        _log.warning(
            "The first %s tokens of every prompt are sent with each request, as they could not be stored: %s",
            f"{head.tokens:,}",
            error,
        )
        yield None
        return
    cache = client.cache_of(content)
    _log.info(
        "The first %s tokens of every prompt are stored as %s until the end of the run.",
        f"{cache.tokens:,}",
        cache.name,
    )
    has_ended = threading.Event()
    thread = threading.Thread(target=client.extend, args=(content, has_ended), name="prefix-cache", daemon=True)
    thread.start()
    try:
        yield cache
    finally:
        has_ended.set()
        thread.join()
        client.delete_all(content)


class _Client:
    """The cached contents of one job."""

    def __init__(self, spec: JobSpec, head: PromptHead) -> None:
        self._model, self._head, self._key = spec.model, head, spec.kms_key_name
        self._contents: CachedContents = part_of(spec.model, "cached_contents").open_cached_contents(
            spec.model, open_client(spec.model), spec.kms_key_name
        )
        self._prefix = display_name_prefix(spec)
        price = price_of(spec.model, spec.limits.price)
        self._token_nano_usd = None if price is None else price.cost_usd(head.tokens, 0) / head.tokens * NANO

    def find_or_create(self) -> CachedContent:
        """Returns what a killed run has left behind, with its time extended, or stores the head."""
        name, head = self._display_name(), self._head
        for content in self._contents.find(self._prefix):
            if content.display_name == name:
                with contextlib.suppress(ApiError):  # it has expired meanwhile
                    return self._contents.extend(content, TTL_SECONDS)
        return self._contents.create(name, head.text, head.system, TTL_SECONDS)

    def cache_of(self, content: CachedContent) -> PrefixCache:
        """Returns the value of a stored head."""
        return PrefixCache(
            name=content.name,
            head=self._head,
            tokens=content.tokens or self._head.tokens,
            created_at=content.created_at,
            model=self._model.name,
            token_nano_usd=self._token_nano_usd,
        )

    def extend(self, content: CachedContent, has_ended: threading.Event) -> None:
        """Extends the time of the cache until the run has ended."""
        while not has_ended.wait(EXTEND_SECONDS):
            try:
                self._contents.extend(content, TTL_SECONDS)
            except ApiError as error:
                _log.warning("The stored beginning of the prompts could not be extended: %s", error)

    def delete_all(self, content: CachedContent) -> None:
        """Deletes the caches of this job, by name and by display name; one that cannot be deleted expires."""
        try:
            self._contents.delete(content)
            for each in list(self._contents.find(self._prefix)):
                self._contents.delete(each)
        except ApiError as error:
            _log.warning(
                "The stored beginning of the prompts could not be deleted; it expires within %.0f s and bills its "
                "storage until then: %s",
                TTL_SECONDS,
                error,
            )

    def _display_name(self) -> str:
        content = f"{self._contents.model_name}\n{self._head.system or ''}\n\n{self._head.text}{self._key or ''}"
        return f"{self._prefix}{hashlib.sha256(content.encode()).hexdigest()[:16]}"
