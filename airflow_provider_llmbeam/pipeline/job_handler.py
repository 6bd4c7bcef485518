"""The engine as the Beam `ModelHandler` of a job."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, TypeVar

from apache_beam.io.components.adaptive_throttler import ThrottlingSignaler
from apache_beam.ml.inference.base import ModelHandler, PredictionResult

from airflow_provider_llmbeam.engine.backend import Backend
from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.engine.journal.journal import Journal
from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.media.loader import MediaLoader
from airflow_provider_llmbeam.engine.outcome import Failure, Outcome
from airflow_provider_llmbeam.engine.output import open_parser
from airflow_provider_llmbeam.engine.pacing.budget import Budget
from airflow_provider_llmbeam.engine.pacing.concurrency import ConcurrencyLimit
from airflow_provider_llmbeam.engine.pacing.flex import FlexCapacity
from airflow_provider_llmbeam.engine.pacing.outage import Outage
from airflow_provider_llmbeam.engine.pacing.pilot import Pilot
from airflow_provider_llmbeam.engine.plan import StaticBatching
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RetryPolicy
from airflow_provider_llmbeam.engine.tier import FlexTier
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.answer_form import answer_form, oldest_useful_at
from airflow_provider_llmbeam.pipeline.audit.trail import AuditTrail, record_of
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.engine_thread import EngineThread
from airflow_provider_llmbeam.pipeline.lease import LeasedAdmission
from airflow_provider_llmbeam.pipeline.media.stored import StoredMedia
from airflow_provider_llmbeam.pipeline.media.uploads import open_uploads
from airflow_provider_llmbeam.pipeline.pacing.machine_governor import MachineGovernor
from airflow_provider_llmbeam.pipeline.pacing.open_files import reserve_open_files
from airflow_provider_llmbeam.pipeline.reporting.metrics import count
from airflow_provider_llmbeam.pipeline.reporting.progress import publish_progress, write_progress_soon
from airflow_provider_llmbeam.pipeline.secrets import known_secrets, load_environment
from airflow_provider_llmbeam.pipeline.shared_budget import open_budget
from airflow_provider_llmbeam.providers.backends import open_backend
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.identity import display_name_prefix
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model import OpenAIModel, VertexEndpointModel
from airflow_provider_llmbeam.spec.model.price import price_of
from airflow_provider_llmbeam.spec.model.tier import FLEX_TIERS, flex_tier, ordinary_tier
from airflow_provider_llmbeam.spec.protocol.counts import NAMESPACE, Counts
from airflow_provider_llmbeam.spec.runner import DetachedRunner, limits_of_a_worker
from airflow_provider_llmbeam.spec.usage_tier import threshold_of

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


class JobHandler(ModelHandler[ExampleT, PredictionResult, EngineThread]):
    """Answers the requests of a job: one `PredictionResult` per example, in every case.

    Its `inference` is a `Completion` or a `Failure`. Batches are large and fixed: the sliding window of requests
    lives inside one `run_inference` call, and only the last window of a batch drains. Beam's own Gemini handler
    sends a batch as one prompt and returns one answer for it (2.77: 40 prompts in, 5 out), hence a separate
    handler; it subclasses `ModelHandler` because `RemoteModelHandler` forbids overriding `run_inference`, and its
    retries are what is replaced.

    Args:
        spec: The job.
        context: Its run.
    """

    #: Whether local files of prompts may be links: those of a job were resolved when they were checked.
    follows_links: ClassVar[bool] = False

    def __init__(self, spec: JobSpec, context: RunContext) -> None:
        super().__init__()
        self.spec, self.context = spec, context
        # What follows from the spec in the process of the launch: the environment of a worker may be another one.
        self.journal_uri: str | None = spec.paths.journal_uri
        self.rates_uri: str | None = spec.paths.rates_uri
        self.environment_secrets = spec.environment_secrets
        self.upload_prefix = display_name_prefix(spec) if spec.prompt.media else None
        self.price = price_of(spec.model, spec.limits.price)
        self.audit = AuditTrail.of(spec)
        self.is_resident = False
        self._throttled = ThrottlingSignaler(NAMESPACE)

    def load_model(self) -> EngineThread:
        """Sets the keys, then opens the client, once per process."""
        spec = self.spec
        limits = limits_of_a_worker(spec.runner, spec.limits)
        reserve_open_files(limits.max_in_flight)
        load_environment(self.environment_secrets)
        governor = MachineGovernor(spec.model, limits, self.rates_uri)
        open_engine = partial(self._open_engine, governor)
        return EngineThread(
            open_engine,
            self._open_journal(),
            self.price,
            self._stop_is_requested,
            self._await_cancellation,
            partial(self._batch_ended, governor),
        )

    def _open_journal(self) -> Journal | None:
        if self.journal_uri is None:
            return None
        storage.make_private(self.journal_uri)
        return Journal(
            self.journal_uri,
            job=self.spec.name,
            files=storage,
            oldest_at=oldest_useful_at(self.spec, self.context.started_at),
            since=self.context.started_at - CLOCK_SECONDS,
            accepts=answer_form(self.spec, self.context).accepts,
        )

    def _stop_is_requested(self) -> bool:
        launcher, stop_uri = self.context.launcher, self.context.stop_uri
        try:
            if launcher is not None and launcher.has_ended(time.monotonic()):
                _log.warning("The process that started this job has ended, so this worker sends nothing more.")
                return True
            return stop_uri is not None and storage.exists(stop_uri)
        except Exception as error:  # noqa: BLE001 - a poll that fails must not fail the batch; the next one follows
            _log.debug("Whether the job is to end could not be read: %s", error)
            return False

    def _await_cancellation(self) -> None:
        """Waits for whoever has told a job elsewhere to stop, and cancels it then."""
        if isinstance(self.spec.runner, DetachedRunner):
            _log.info("The job was told to stop. What was in flight is recorded; waiting for the cancellation.")
            time.sleep(CANCELLATION_SECONDS)

    def run_inference(
        self,
        batch: Sequence[ExampleT],
        model: EngineThread,
        inference_args: dict[str, Any] | None = None,
    ) -> list[PredictionResult]:
        """Answers a batch; the prediction of a failed prompt is a `Failure`, without secrets in its message."""
        publish_progress(self.context.progress_prefix)
        found = [self.prompt(example) for example in batch]
        prompts = [prompt for prompt in found if isinstance(prompt, Prompt)]
        asked = [example for example, prompt in zip(batch, found, strict=True) if isinstance(prompt, Prompt)]
        self.count(Counts(failed=len(found) - len(prompts)))
        fingerprints = [] if self.journal_uri is None else self.fingerprints(asked, prompts)
        audited = record_of(self.audit, asked)
        answered = iter(model.answer(prompts, fingerprints, self._throttled.signal_throttled, self.count, audited))
        write_progress_soon()
        return self.results(batch, [next(answered) if isinstance(one, Prompt) else one for one in found])

    def prompt(self, example: Any) -> Prompt | Failure:
        """Returns the prompt of an example, or why it has none."""
        prompt: Prompt = example.prompt
        return prompt

    def fingerprints(self, batch: Sequence[Any], prompts: Sequence[Prompt]) -> list[str]:
        """Returns the fingerprints of examples by which the journal knows their prompts."""
        return [example.fingerprint for example in batch]

    def characters(self, element: Any) -> int:
        """Counts the characters of an example; an element is an example, or what a wrapper of Beam makes of it."""
        number: int = element.prompt.characters
        return number

    def count(self, counts: Counts) -> None:
        """Adds to the counts of the job."""
        count(counts)

    def results(self, batch: Sequence[ExampleT], outcomes: Sequence[Outcome]) -> list[PredictionResult]:
        """Returns the predictions of a batch."""
        return [
            PredictionResult(example, outcome, self.spec.model.name)
            for example, outcome in zip(batch, outcomes, strict=True)
        ]

    def batch_elements_kwargs(self) -> dict[str, Any]:
        """Returns a fixed batch size, to which long prompts count more."""
        size = self.spec.batching.max_batch_size
        return {
            "min_batch_size": size,
            "max_batch_size": size,
            # At most the batch size: a heavier element makes Beam emit an empty batch.
            "element_size_fn": lambda element: min(size, 1 + self.characters(element) // BYTES_PER_BATCH_UNIT),
        }

    def get_num_bytes(self, batch: Sequence[ExampleT]) -> int:
        """Counts characters; Beam's default pickles the batch a second time to measure it."""
        return sum(map(self.characters, batch))

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

    def _secrets(self) -> Sequence[str]:
        return known_secrets((*self.environment_secrets, *self.spec.model.api.secret_variables))

    def _open_engine(self, governor: MachineGovernor) -> Engine:
        spec, limits, run = self.spec, self.spec.limits, self.context.run
        model, schema, embedding = spec.model, spec.prompt.output_schema, spec.embedding
        quotas = (limits.requests_per_minute, limits.tokens_per_minute, threshold_of(model, limits))
        has_quota = quotas != (None, None, None)
        # The pilot of batch inference tests what is paid for later.
        as_batch = spec.inference.mode != "online"
        open_client = partial(
            open_backend,
            model,
            spec.generation,
            schema,
            embedding,
            self.context.cached_head,
            as_batch=as_batch,
        )
        tier = spec.inference.service_tier
        backend, flex = open_client(asked_tier=ordinary_tier(tier)), None
        if tier in FLEX_TIERS:
            has_fallback = tier == "flex_then_standard"
            capacity = FlexCapacity(has_fallback, self.context.flex_until, limits.max_throttled_seconds)
            flex = FlexTier(open_client(asked_tier=flex_tier(tier)), limits.request_timeout_seconds, capacity)
        files = StoredMedia(follows_links=self.follows_links)
        # A vector costs no output tokens, so none are reserved.
        max_output_tokens = spec.max_output_tokens
        max_repairs = spec.prompt.max_repairs if schema is not None else 0
        pilot = Pilot(
            max_repairs=max_repairs,
            max_output_tokens=max_output_tokens,
            max_failed_ratio=limits.max_dead_letter_ratio,
        )
        pilot, outage = _BREAKERS.setdefault(run, (pilot, Outage(limits.max_outage_seconds)))
        return Engine(
            backend,
            governor=LeasedAdmission(governor.admission),
            buckets=LengthBuckets(spec.batching.resolved_boundaries, max_output_tokens, is_guessed=has_quota),
            parser=open_parser(schema, spec.generation, embedding),
            policy=RetryPolicy(limits.max_attempts, limits.max_throttled_seconds),
            max_in_flight=limits.max_in_flight,
            request_timeout_seconds=limits.request_timeout_seconds,
            max_repairs=max_repairs,
            batching=self._static_batching(backend),
            concurrency=None
            if has_quota or not isinstance(model, OpenAIModel | VertexEndpointModel)
            else ConcurrencyLimit(limits.max_in_flight),
            price=self.price,
            budget=self._open_budget(),
            media=MediaLoader(model.media, files, open_uploads(model, self.upload_prefix)),
            pilot=pilot,
            outage=outage,
            flex=flex,
            # Here, as no other process surely has the keys. An outcome takes 0.13 µs (measured).
            redact=lru_cache(maxsize=1024)(partial(redact, secrets=self._secrets())),
            is_resident=self.is_resident,
        )

    def _open_budget(self) -> Budget | None:
        limits, run = self.spec.limits, self._budget_run
        if limits.budget_field and run not in _BUDGETS:
            _BUDGETS[run] = open_budget(self.spec)
        return _BUDGETS.get(run)

    @property
    def _budget_run(self) -> str:
        return self.context.budget_run or self.context.run

    def _batch_ended(self, governor: MachineGovernor) -> None:
        governor.batch_ended()
        budget = _BUDGETS.get(self._budget_run)
        if budget is not None and budget.account is not None:
            budget.account.close()

    def _static_batching(self, backend: Backend) -> StaticBatching:
        batching = self.spec.batching
        limits = getattr(backend, "limits", None)
        if not isinstance(limits, StaticBatching):
            limits = StaticBatching(max_padded_tokens=batching.max_padded_tokens)
        return limits.within(batching.max_padded_tokens, batching.max_instances)
