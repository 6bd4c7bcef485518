"""The explicit cache of the head that all prompts of a job have in common, for the time of its run."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_provider_llmbeam.engine.prefix.head import CachedHead, PromptHead, head_of
from airflow_provider_llmbeam.engine.prefix.saving import pays, storage_usd
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.providers.batch_http import BatchHttp
from airflow_provider_llmbeam.providers.batch_reported import count_of, google_next_page, time_of
from airflow_provider_llmbeam.providers.errors import BatchError, BatchUnavailableError
from airflow_provider_llmbeam.providers.google_session import open_session
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.job.display_name import display_name_prefix
from airflow_provider_llmbeam.spec.model import GeminiModel
from airflow_provider_llmbeam.spec.model.price import price_of
from airflow_provider_llmbeam.spec.protocol.counts import NANO
from airflow_provider_llmbeam.spec.runner import LocalRunner
from airflow_provider_llmbeam.spec.source import RowsSource
from airflow_provider_llmbeam.transport.server_reply import list_of, mapping_of, str_of

_log = logging.getLogger("llmbeam")

#: Time for which the provider stores the cache after the last extension, in seconds. What a killed run leaves
#: behind expires within it, and costs $0.001 for 6,000 tokens at $1 per million tokens and hour.
TTL_SECONDS = 600.0
EXTEND_SECONDS = TTL_SECONDS / 3

_NAME = re.compile(r"(projects/[\w.:-]+/locations/[\w-]+/)?cachedContents/[\w-]+")

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
        and isinstance(model, GeminiModel)
        and spec.embedding is None
        # The head would be stored as it is in the templates, and the prompts have it masked.
        and (spec.safety.privacy is None or spec.safety.privacy.columns is not None)
        # A request with a cache has no tools, and Model Armor would not see the stored part.
        and not (spec.generation.google_search or spec.generation.model_armor)
        # A job on Dataflow outlives the process that extends and deletes the cache.
        and isinstance(spec.runner, LocalRunner)
    )
    head = head_of(spec.prompt) if is_possible else None
    if head is not None and spec.conversation is not None:  # a history comes before the text
        head = None if head.system is None else PromptHead("", head.system)
    if head is None:
        return None
    requests = len(spec.source.rows) if isinstance(spec.source, RowsSource) else _UNKNOWN_ROWS
    does_pay = pays(
        model.name,
        price_of(model, spec.limits.price),
        tokens=head.tokens,
        requests=requests,
        seconds=TTL_SECONDS,
        at=datetime.now(UTC),
    )
    return head if does_pay else None


@contextlib.contextmanager
def prefix_cache(spec: JobSpec) -> Iterator[PrefixCache | None]:
    """Stores the head of a job's prompts while the body runs; `None` if that does not pay, or fails.

    Without the cache each request has the head itself, so no failure here is one of the job. A job runs once at a
    time, so that what exists under its display name was left behind by a killed run.
    """
    model, head = spec.model, head_to_cache(spec)
    if head is None or not isinstance(model, GeminiModel):
        yield None
        return
    try:
        client = _Client(spec, model, head)
        cache = client.found() or client.created()
    except (BatchError, JobSpecError) as error:
        _log.warning(
            "The first %s tokens of every prompt are sent with each request, as they could not be stored: %s",
            f"{head.tokens:,}",
            error,
        )
        yield None
        return
    _log.info(
        "The first %s tokens of every prompt are stored as %s until the end of the run.",
        f"{cache.tokens:,}",
        cache.name,
    )
    has_ended = threading.Event()
    thread = threading.Thread(target=client.extend, args=(cache.name, has_ended), name="prefix-cache", daemon=True)
    thread.start()
    try:
        yield cache
    finally:
        has_ended.set()
        thread.join()
        client.delete_all(cache.name)


class _Client:
    """The cached contents of one job."""

    def __init__(self, spec: JobSpec, model: GeminiModel, head: PromptHead) -> None:
        self._model, self._head = model, head
        if model.project:
            root, _, self._model_name = model.address.rpartition("/v1beta1/")
            self._root = f"{root}/v1beta1"
            self._url = f"{self._root}/projects/{model.project}/locations/{model.location}/cachedContents"
        else:
            root, _, self._model_name = model.address.rpartition("/v1beta/")
            self._root = f"{root}/v1beta"
            self._url = f"{self._root}/cachedContents"
        self._http = BatchHttp(open_session(model), "Vertex AI" if model.project else "The Gemini Developer API")
        self._prefix = display_name_prefix(spec)
        content = f"{self._model_name}\n{head.system or ''}\n\n{head.text}"
        self._display_name = f"{self._prefix}{hashlib.sha256(content.encode()).hexdigest()[:16]}"
        price = price_of(model, spec.limits.price)
        self._token_nano_usd = None if price is None else price.cost_usd(head.tokens, 0) / head.tokens * NANO

    def found(self) -> PrefixCache | None:
        """Returns the cache that a killed run has left behind, for which it has extended the time."""
        for reply in self._of_this_job():
            if str_of(reply.get("displayName")) == self._display_name:
                with contextlib.suppress(BatchError):  # it has expired meanwhile
                    return self._read(self._extend(_name(reply)))
        return None

    def created(self) -> PrefixCache:
        """Stores the head. A repeated request may store it twice; `delete_all` deletes both."""
        body: dict[str, Any] = {
            "model": self._model_name,
            "displayName": self._display_name,
            "ttl": f"{TTL_SECONDS:.0f}s",
        }
        if self._head.text:
            body["contents"] = [{"role": "user", "parts": [{"text": self._head.text}]}]
        if self._head.system:
            body["systemInstruction"] = {"role": "user", "parts": [{"text": self._head.system}]}
        return self._read(self._http.send("POST", self._url, body))

    def extend(self, name: str, has_ended: threading.Event) -> None:
        """Extends the time of the cache until the run has ended."""
        while not has_ended.wait(EXTEND_SECONDS):
            try:
                self._extend(name)
            except BatchError as error:
                _log.warning("The stored beginning of the prompts could not be extended: %s", error)

    def delete_all(self, *names: str) -> None:
        """Deletes the caches of this job, by name and by display name; one that cannot be deleted expires."""
        try:
            for name in names:
                self._http.delete(f"{self._root}/{name}")
            for reply in list(self._of_this_job()):
                self._http.delete(f"{self._root}/{_name(reply)}")
        except BatchError as error:
            _log.warning(
                "The stored beginning of the prompts could not be deleted; it expires within %.0f s and bills its "
                "storage until then: %s",
                TTL_SECONDS,
                error,
            )

    def _extend(self, name: str) -> Mapping[str, Any]:
        return self._http.send("PATCH", f"{self._root}/{name}", {"ttl": f"{TTL_SECONDS:.0f}s"})

    def _of_this_job(self) -> Iterator[Mapping[str, Any]]:
        for page in self._http.pages(self._url, {"pageSize": "100"}, google_next_page):
            for reply in map(mapping_of, list_of(page.get("cachedContents"))):
                if str_of(reply.get("displayName")).startswith(self._prefix) and _name(reply):
                    yield reply

    def _read(self, reply: Mapping[str, Any]) -> PrefixCache:
        if not (name := _name(reply)):
            raise BatchUnavailableError(f"The server named no cached content for {self._display_name!r}.")
        tokens = count_of(mapping_of(reply.get("usageMetadata")).get("totalTokenCount"))
        return PrefixCache(
            name=name,
            head=self._head,
            tokens=tokens or self._head.tokens,
            created_at=time_of(reply.get("createTime")) or time.time(),
            model=self._model.name,
            token_nano_usd=self._token_nano_usd,
        )


def _name(reply: Mapping[str, Any]) -> str:
    """Returns the name of a cached content, which becomes part of an address; '' if it is not valid."""
    name = str_of(reply.get("name"))
    return name if _NAME.fullmatch(name) else ""
