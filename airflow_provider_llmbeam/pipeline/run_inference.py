"""The engine as a Beam `ModelHandler`."""

from __future__ import annotations

import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from apache_beam.io.components.adaptive_throttler import ThrottlingSignaler
from apache_beam.ml.inference.base import ModelHandler, PredictionResult

from airflow_provider_llmbeam.engine.backend import Backend
from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.engine.journal.journal import Journal
from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.media.loader import MediaLoader
from airflow_provider_llmbeam.engine.outcome import Failure, Outcome
from airflow_provider_llmbeam.engine.output import OutputParser, VectorParser
from airflow_provider_llmbeam.engine.pacing.budget import Budget
from airflow_provider_llmbeam.engine.pacing.concurrency import ConcurrencyLimit
from airflow_provider_llmbeam.engine.pacing.flex import FlexCapacity
from airflow_provider_llmbeam.engine.pacing.outage import Outage
from airflow_provider_llmbeam.engine.pacing.pilot import Pilot
from airflow_provider_llmbeam.engine.plan import StaticBatching
from airflow_provider_llmbeam.engine.prefix.head import CachedHead
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RetryPolicy
from airflow_provider_llmbeam.engine.tier import FlexTier
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.answer_form import AnswerForm
from airflow_provider_llmbeam.pipeline.audit.trail import AuditTrail, record_of
from airflow_provider_llmbeam.pipeline.elements import characters_of, prompt_of_example
from airflow_provider_llmbeam.pipeline.engine_thread import EngineThread
from airflow_provider_llmbeam.pipeline.lease.launcher import Launcher
from airflow_provider_llmbeam.pipeline.media.stored import StoredMedia, media_identities
from airflow_provider_llmbeam.pipeline.media.uploads import open_uploads
from airflow_provider_llmbeam.pipeline.pacing.leased_admission import LeasedAdmission
from airflow_provider_llmbeam.pipeline.pacing.machine_governor import MachineGovernor
from airflow_provider_llmbeam.pipeline.pacing.open_files import reserve_open_files
from airflow_provider_llmbeam.pipeline.reporting.metrics import count
from airflow_provider_llmbeam.pipeline.reporting.progress_objects import batch_ended, publish_progress
from airflow_provider_llmbeam.pipeline.secrets import known_secrets, load_environment
from airflow_provider_llmbeam.providers.backends import open_backend
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.job.handler_parts import HandlerParts
from airflow_provider_llmbeam.spec.limits import Batching, Limits
from airflow_provider_llmbeam.spec.model import Embedding, Generation, Model, OpenAIModel, VertexEndpointModel
from airflow_provider_llmbeam.spec.model.environment import with_base_url
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter
from airflow_provider_llmbeam.spec.model.media import media_rules
from airflow_provider_llmbeam.spec.model.model import key_variables
from airflow_provider_llmbeam.spec.model.price import price_of
from airflow_provider_llmbeam.spec.model.tier import FLEX_TIERS, RequestedTier, ordinary_tier
from airflow_provider_llmbeam.spec.protocol.counts import NAMESPACE, Counts

_log = logging.getLogger(__name__)

ExampleT = TypeVar("ExampleT")

#: Budgets by run. A failed bundle loses its client and is tried four times: each attempt would have a new budget.
_BUDGETS: dict[str, Budget] = {}

#: Circuit breakers by run, for the same reason: what the first attempt has found costs the others nothing.
_BREAKERS: dict[str, tuple[Pilot, Outage]] = {}

#: Largest assumed difference between the clocks of a worker and of the launcher, in seconds.
CLOCK_SECONDS = 600.0

#: Time that a batch of a stopped job waits for the cancellation of the job before it fails, in seconds: its error
#: would end the job as FAILED. Dataflow tries a bundle four times, so a job that nobody cancels ends in minutes.
CANCELLATION_SECONDS = 60.0

#: A prompt of this many bytes counts as one more row of a batch, so that a batch of the default size holds
#: about 64 MiB at most, whatever the lengths.
BYTES_PER_BATCH_UNIT = 8 * 2**10


class LLMModelHandler(ModelHandler[ExampleT, PredictionResult, EngineThread]):
    """One `PredictionResult` per example, in every case: its `inference` is a `Completion` or a `Failure`.

        RunInference(LLMModelHandler(GeminiModel(name="gemini-3.5-flash-lite")))

    Batches are large and fixed: the sliding window of requests lives inside one `run_inference` call, and only
    the last window of a batch drains. Beam's own Gemini handler sends a batch as one prompt and returns one
    answer for it (2.77: 40 prompts in, 5 out), hence a separate handler; it subclasses `ModelHandler`
    because `RemoteModelHandler` forbids overriding `run_inference`, and its retries are what is replaced.

    Args:
        model: The model, or its fields, as in a job; also of the next three and of `embedding`.
        generation: Parameters of the answer.
        limits: Quotas, timeouts and retries.
        batching: Batch size and length buckets.
        output_schema: JSON Schema of the answer.
        embedding: Parameters of the vectors. If set, the texts of the prompts are embedded, and `parsed` of a
            completion is the vector.
        journal_uri: Directory of the journal, which stores answers as they arrive; `None` for no journal. Give a
            server for development a directory of its own: its answers are used like those of any other.
        rates_uri: Directory of the rates that jobs have learned, see `spec.JobSpec.rates_uri`; by default that of
            the journal.
        oldest_at: Unix time; older answers in the journal are requested again.
        since: Unix time; segments of the journal that were created before are not looked up.
        refused_since: Unix time; answers that were refused before are requested again.
        stop_uri: File whose existence ends the job, see `spec.JobSpec.stop_uri`; `None` for none.
        awaits_cancellation: Whether whoever makes that file cancels the job then.
        launcher: Process whose end ends the job, too; `None` for one that the runner watches.
        prompt_of: Returns the prompt of an example; by default the example is the prompt, a `str` or a `Prompt`.
            An example for which it raises is a `Failure` of kind `template_error`.
        fingerprint_of: Returns the fingerprint of an example; by default it is computed from the prompt.
        max_repairs: Maximum number of repeated requests per prompt if the answer does not match `output_schema`.
        job: Job of the answers, if several jobs share a journal.
        environment_secrets: Environment variables that are set before the client is opened, each from a secret:
            `{"GOOGLE_API_KEY": "projects/p/secrets/gemini-key/versions/latest"}`.
        progress_prefix: Beginning of the addresses of the objects to which each worker writes its counts about
            every 15 s; `None` for none.
        cached_head: Beginning of the prompts that the provider has stored; `None` for none.
        service_tier: Tier that requests of Gemini and OpenAI ask for, see `spec.Inference`.
        flex_until: Unix time from which on only the standard tier answers early enough.
        upload_prefix: Beginning of the display names of uploads to the Gemini Developer API, of files that are too
            large for a request; `None` for no uploads, as nobody deletes them.
        audit: Audit trail of examples that are `Request`s; `None` for none. It needs a journal.

    Raises:
        JobSpecError: Names each argument that is not valid, and the expected value; or a budget needs a price.
    """

    def __init__(
        self,
        model: Model | Mapping[str, Any] | str,
        *,
        generation: Generation | Mapping[str, Any] = Generation(),  # noqa: B008 - frozen
        limits: Limits | Mapping[str, Any] = Limits(),  # noqa: B008 - frozen
        batching: Batching | Mapping[str, Any] = Batching(),  # noqa: B008 - frozen
        output_schema: Mapping[str, Any] | None = None,
        embedding: Embedding | Mapping[str, Any] | None = None,
        journal_uri: str | None = None,
        rates_uri: str | None = None,
        oldest_at: float = 0.0,
        since: float = 0.0,
        refused_since: float = 0.0,
        stop_uri: str | None = None,
        awaits_cancellation: bool = False,
        launcher: Launcher | None = None,
        prompt_of: Callable[[ExampleT], str | Prompt] | None = None,
        fingerprint_of: Callable[[ExampleT], str] | None = None,
        job: str = "",
        max_repairs: int = 0,
        environment_secrets: Mapping[str, str] = MappingProxyType({}),
        progress_prefix: str | None = None,
        cached_head: CachedHead | None = None,
        service_tier: RequestedTier = "standard",
        flex_until: float = math.inf,
        upload_prefix: str | None = None,
        audit: AuditTrail | None = None,
    ) -> None:
        super().__init__()
        self._throttled = ThrottlingSignaler(NAMESPACE)
        answer = {"output_schema": output_schema, "embedding": embedding, "max_repairs": max_repairs}
        engine = {"generation": generation, "limits": limits, "batching": batching}
        times = {"oldest_at": oldest_at, "since": since, "refused_since": refused_since, "flex_until": flex_until}
        functions = {"prompt_of": prompt_of, "fingerprint_of": fingerprint_of}
        about = {"job": job, "awaits_cancellation": awaits_cancellation, "service_tier": service_tier}
        prefixes = {"progress_prefix": progress_prefix, "upload_prefix": upload_prefix}
        uris = {"journal_uri": journal_uri, "rates_uri": rates_uri, "stop_uri": stop_uri, **prefixes}
        given = {"model": model, "environment_secrets": environment_secrets, **engine, **answer, **times}
        parts = HandlerParts.parse({**given, **functions, **about, **uris})
        for field in ("journal_uri", "rates_uri", "stop_uri"):
            storage.check_scheme(field, uris[field])
        self._model = with_base_url(parts.model, os.environ)
        self._generation, self._batching, self._embedding = parts.generation, parts.batching, parts.embedding
        self._limits = limits = parts.limits
        self._price = price_of(self._model, limits.price)
        ordinary = ordinary_tier(parts.service_tier)
        if limits.budget_usd is not None and (self._price is None or self._price.ratio_at(ordinary) is None):
            name, field = f"{self._model.type} model {self._model.name!r}", "`limits.price`"
            if self._price is not None:
                name, field = f"{name} at the {ordinary} tier", f"{field} with `priority_ratio`"
            raise JobSpecError(
                f"`limits.budget_usd`: the price of {name} is not known; set {field}. Nothing was sent or billed."
            )
        self._output_schema, self._max_repairs = parts.output_schema, parts.max_repairs
        self._journal_uri, self._stop_uri = parts.journal_uri, parts.stop_uri
        self._rates_uri = self._journal_uri if parts.rates_uri is None else parts.rates_uri
        self._oldest_at, self._since, self._refused_since = parts.oldest_at, parts.since, parts.refused_since
        self._awaits_cancellation, self._launcher = parts.awaits_cancellation, launcher
        self._prompt_of, self._fingerprint_of, self._job = parts.prompt_of, parts.fingerprint_of, parts.job
        self._environment_secrets = parts.environment_secrets
        self._progress_prefix, self._upload_prefix = parts.progress_prefix, parts.upload_prefix
        self._service_tier, self._flex_until = parts.service_tier, parts.flex_until
        self._cached_head, self._audit = cached_head, audit
        self._run = uuid.uuid4().hex

    def load_model(self) -> EngineThread:
        """Sets the keys, then opens the client, once per process."""
        reserve_open_files(self._limits.max_in_flight)
        load_environment(self._environment_secrets)
        governor = MachineGovernor(self._model, self._limits, self._rates_uri)
        open_engine = partial(self._open_engine, governor)
        if self._journal_uri is None:
            return EngineThread(open_engine, None, self._price)
        storage.make_private(self._journal_uri)
        journal = Journal(
            self._journal_uri,
            job=self._job,
            files=storage,
            oldest_at=self._oldest_at,
            since=self._since,
            accepts=AnswerForm.of(
                self._embedding, self._output_schema, self._max_repairs, self._refused_since
            ).accepts,
            redact=lambda message: redact(message, self._secrets()),
        )
        return EngineThread(
            open_engine,
            journal,
            self._price,
            self._stop_is_requested,
            self._await_cancellation,
            governor.batch_ended,
        )

    def _stop_is_requested(self) -> bool:
        try:
            if self._launcher is not None and self._launcher.has_ended(time.monotonic()):
                _log.warning("The process that started this job has ended, so this worker sends nothing more.")
                return True
            return self._stop_uri is not None and storage.exists(self._stop_uri)
        except Exception as error:  # noqa: BLE001 - a poll that fails must not fail the batch; the next one follows
            _log.debug("Whether the job is to end could not be read: %s", error)
            return False

    def _await_cancellation(self) -> None:
        if self._awaits_cancellation:
            _log.info("The job was told to stop. What was in flight is recorded; waiting for the cancellation.")
            time.sleep(CANCELLATION_SECONDS)

    def run_inference(
        self,
        batch: Sequence[ExampleT],
        model: EngineThread,
        inference_args: dict[str, Any] | None = None,
    ) -> list[PredictionResult]:
        """Answers a batch; the prediction of a failed prompt is a `Failure`, without secrets in its message."""
        publish_progress(self._progress_prefix)
        found = [self.prompt(example) for example in batch]
        prompts = [prompt for prompt in found if isinstance(prompt, Prompt)]
        asked = [example for example, prompt in zip(batch, found, strict=True) if isinstance(prompt, Prompt)]
        count(Counts(failed=len(found) - len(prompts)))
        fingerprints = self._fingerprints(asked, prompts)
        audited = record_of(self._audit, asked)
        answered = iter(model.answer(prompts, fingerprints, self._throttled.signal_throttled, count, audited))
        batch_ended()
        return self.results(batch, [next(answered) if isinstance(one, Prompt) else one for one in found])

    def prompt(self, example: ExampleT) -> Prompt | Failure:
        """Returns the prompt of an example, or why it has none."""
        return prompt_of_example(example, self._prompt_of)

    def results(self, batch: Sequence[ExampleT], outcomes: Sequence[Outcome]) -> list[PredictionResult]:
        """Returns the predictions of a batch, without secrets in the messages of its failures."""
        return [
            PredictionResult(example, outcome, self._model.name)
            for example, outcome in zip(batch, self._without_secrets(outcomes), strict=True)
        ]

    @property
    def has_journal(self) -> bool:
        """Whether the answers are recorded in a journal."""
        return self._journal_uri is not None

    def batch_elements_kwargs(self) -> dict[str, Any]:
        """Returns a fixed batch size, to which long prompts count more."""
        size = self._batching.max_batch_size
        return {
            "min_batch_size": size,
            "max_batch_size": size,
            # At most the batch size: a heavier element makes Beam emit an empty batch.
            "element_size_fn": lambda element: min(
                size, 1 + characters_of(element, self._prompt_of) // BYTES_PER_BATCH_UNIT
            ),
        }

    def get_num_bytes(self, batch: Sequence[ExampleT]) -> int:
        """Counts characters; Beam's default pickles the batch a second time to measure it."""
        return sum(characters_of(example, self._prompt_of) for example in batch)

    def update_model_path(self, model_path: str | None = None) -> None:
        """Rejects a model from a side input: fingerprints, price and quota are those of the model of the handler.

        Raises:
            ValueError: A model was given.
        """
        if model_path:
            raise ValueError(
                "`model_metadata_pcoll` and `watch_model_pattern` cannot change the model of `LLMModelHandler`; "
                f"got {model_path!r}. Nothing of this batch was sent or billed. Make a handler for each model."
            )

    def get_metrics_namespace(self) -> str:
        """Returns the namespace of the inference metrics of Beam."""
        return "llmbeam"

    def validate_inference_args(self, inference_args: dict[str, Any] | None) -> None:
        """Rejects inference arguments: `generation` has all parameters.

        Raises:
            ValueError: Arguments were given.
        """
        if inference_args:
            raise ValueError(f"`inference_args` are not used, set `generation` instead; got {inference_args!r}.")

    def _without_secrets(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Redacts the messages of failures, in which servers and proxies quote keys.

        Here, as no other process surely has the keys. Without a failure it takes 45 ns per prompt (measured).
        """
        if Failure not in map(type, outcomes):
            return outcomes
        secrets = self._secrets()
        # Prompts that are not sent, as others failed before, have one message.
        messages = {outcome.message for outcome in outcomes if isinstance(outcome, Failure)}
        redacted = {message: redact(message, secrets) for message in messages}
        return [
            replace(outcome, message=redacted[outcome.message]) if isinstance(outcome, Failure) else outcome
            for outcome in outcomes
        ]

    def _secrets(self) -> Sequence[str]:
        return known_secrets((*self._environment_secrets, *key_variables(self._model)))

    def _fingerprints(self, batch: Sequence[ExampleT], prompts: Sequence[Prompt]) -> list[str]:
        if self._journal_uri is None:
            return []
        if self._fingerprint_of is not None:
            return [self._fingerprint_of(example) for example in batch]
        fingerprint = Fingerprinter(self._model, self._generation, self._output_schema, self._embedding)
        rules, files = media_rules(self._model), StoredMedia()
        return [
            fingerprint(prompt.text, prompt.system, media_identities(prompt.media, rules, files))
            for prompt in prompts
        ]

    def _open_engine(self, governor: MachineGovernor) -> Engine:
        limits = self._limits
        has_quota = limits.requests_per_minute is not None or limits.tokens_per_minute is not None
        open_client = partial(
            open_backend, self._model, self._generation, self._output_schema, self._embedding, self._cached_head
        )
        backend, flex = open_client(asked_tier=ordinary_tier(self._service_tier)), None
        if self._service_tier in FLEX_TIERS:
            has_fallback = self._service_tier == "flex_then_standard"
            capacity = FlexCapacity(has_fallback, self._flex_until, limits.max_throttled_seconds)
            flex = FlexTier(open_client(asked_tier="flex"), limits.request_timeout_seconds, capacity)
        # A vector costs no output tokens, so none are reserved.
        max_output_tokens = 0 if self._embedding else self._generation.max_output_tokens
        max_repairs = self._max_repairs if self._output_schema is not None else 0
        pilot = Pilot(
            max_repairs=max_repairs,
            max_output_tokens=max_output_tokens,
            max_failed_ratio=limits.max_dead_letter_ratio,
        )
        pilot, outage = _BREAKERS.setdefault(self._run, (pilot, Outage()))
        return Engine(
            backend,
            governor=LeasedAdmission(governor.admission),
            buckets=LengthBuckets(self._batching.resolved_boundaries, max_output_tokens, is_guessed=has_quota),
            parser=VectorParser(self._embedding.dimensions)
            if self._embedding
            else OutputParser(self._output_schema, self._generation.choices),
            policy=RetryPolicy(limits.max_attempts, limits.max_throttled_seconds),
            max_in_flight=limits.max_in_flight,
            request_timeout_seconds=limits.request_timeout_seconds,
            max_repairs=max_repairs,
            batching=self._static_batching(backend),
            concurrency=None
            if has_quota or not isinstance(self._model, OpenAIModel | VertexEndpointModel)
            else ConcurrencyLimit(limits.max_in_flight),
            price=self._price,
            budget=_BUDGETS.setdefault(self._run, Budget(limits.budget_usd)) if limits.budget_usd else None,
            media=MediaLoader(
                media_rules(self._model), StoredMedia(), open_uploads(self._model, self._upload_prefix)
            ),
            pilot=pilot,
            outage=outage,
            flex=flex,
        )

    def _static_batching(self, backend: Backend) -> StaticBatching:
        batching = self._batching
        limits = getattr(backend, "limits", None)
        if not isinstance(limits, StaticBatching):
            limits = StaticBatching(max_padded_tokens=batching.max_padded_tokens)
        return limits.within(batching.max_padded_tokens, batching.max_instances)
