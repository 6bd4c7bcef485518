"""The engine as a Beam `ModelHandler`."""

from __future__ import annotations

import logging
import math
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from apache_beam.io.components.adaptive_throttler import ThrottlingSignaler
from apache_beam.ml.inference.base import ModelHandler, PredictionResult

from airflow_provider_llmbeam.counts import NAMESPACE
from airflow_provider_llmbeam.engine.backends import open_backend
from airflow_provider_llmbeam.engine.backends.base import Backend
from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.engine.journal import Journal
from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.output import OutputParser, VectorParser
from airflow_provider_llmbeam.engine.pacing.budget import Budget
from airflow_provider_llmbeam.engine.pacing.concurrency import ConcurrencyLimit
from airflow_provider_llmbeam.engine.pacing.gate import Admission
from airflow_provider_llmbeam.engine.pacing.governor import Governor
from airflow_provider_llmbeam.engine.pacing.shared_governor import SharedGovernor, shared_path
from airflow_provider_llmbeam.engine.plan import StaticBatching
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RetryPolicy
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.elements import Request
from airflow_provider_llmbeam.pipeline.engine_thread import EngineThread
from airflow_provider_llmbeam.pipeline.reporting.metrics import count
from airflow_provider_llmbeam.pipeline.secrets import load_environment
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.limits import Batching, Limits
from airflow_provider_llmbeam.spec.model import (
    EchoModel,
    Embedding,
    GeminiModel,
    Generation,
    Model,
    OpenAIModel,
    VertexEndpointModel,
)
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter
from airflow_provider_llmbeam.spec.model.price import price_of
from airflow_provider_llmbeam.spec.runner.workers import limits_of_a_worker

_log = logging.getLogger(__name__)

ExampleT = TypeVar("ExampleT")

#: Budgets by run. A failed bundle loses its client and is tried four times: each attempt would have a new budget.
_BUDGETS: dict[str, Budget] = {}

#: A prompt of this many bytes counts as one more row of a batch, so that a batch of the default size holds
#: about 64 MiB at most, whatever the lengths.
BYTES_PER_BATCH_UNIT = 8 * 2**10


class LLMModelHandler(ModelHandler[ExampleT, PredictionResult, EngineThread]):
    """One `PredictionResult` per example, in every case: its `inference` is a `Completion` or a `Failure`.

        RunInference(LLMModelHandler(GeminiModel(name="gemini-2.5-flash")))

    Batches are large and fixed: the sliding window of requests lives inside one `run_inference` call, and only
    the last window of a batch drains. Beam's own Gemini handler sends a batch as one prompt and returns one
    answer for it (2.77: 40 prompts in, 5 out), hence a separate handler; it subclasses `ModelHandler`
    because `RemoteModelHandler` forbids overriding `run_inference`, and its retries are what is replaced.

    Args:
        model: The model.
        generation: Parameters of the answer.
        limits: Quotas, timeouts and retries.
        batching: Batch size and length buckets.
        output_schema: JSON Schema of the answer.
        embedding: Parameters of the vectors. If set, the texts of the prompts are embedded, and `parsed` of a
            completion is the vector.
        journal_uri: Directory of the journal, which stores answers as they arrive; `None` for no journal.
        oldest_at: Unix time; older answers in the journal are requested again.
        prompt_of: Returns the prompt of an example; by default the example is the prompt, a `str` or a `Prompt`.
        fingerprint_of: Returns the fingerprint of an example; by default it is computed from the prompt.
        max_repairs: Maximum number of repeated requests per prompt if the answer does not match `output_schema`.
        job: Job of the answers, if several jobs share a journal.
        environment_secrets: Environment variables that are set before the client is opened, each from a secret:
            `{"GOOGLE_API_KEY": "projects/p/secrets/gemini-key/versions/latest"}`.
    """

    def __init__(
        self,
        model: Model,
        *,
        generation: Generation = Generation(),  # noqa: B008 - frozen
        limits: Limits = Limits(),  # noqa: B008 - frozen
        batching: Batching = Batching(),  # noqa: B008 - frozen
        output_schema: Mapping[str, Any] | None = None,
        embedding: Embedding | None = None,
        journal_uri: str | None = None,
        oldest_at: float = 0.0,
        prompt_of: Callable[[ExampleT], str | Prompt] | None = None,
        fingerprint_of: Callable[[ExampleT], str] | None = None,
        job: str = "",
        max_repairs: int = 0,
        environment_secrets: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self._throttled = ThrottlingSignaler(NAMESPACE)
        self._model = model
        self._generation = generation
        self._limits = limits
        self._batching = batching
        self._output_schema = output_schema
        self._embedding = embedding
        self._journal_uri = journal_uri
        self._oldest_at = oldest_at
        self._prompt_of = prompt_of
        self._fingerprint_of = fingerprint_of
        self._job = job
        self._max_repairs = max_repairs
        self._environment_secrets = dict(environment_secrets)
        self._run = uuid.uuid4().hex

    def load_model(self) -> EngineThread:
        """Sets the keys, then opens the client, once per process."""
        load_environment(self._environment_secrets)
        if self._journal_uri is None:
            return EngineThread(self._open_engine, None)
        journal = Journal(self._journal_uri, job=self._job, files=storage, oldest_at=self._oldest_at)
        return EngineThread(self._open_engine, journal)

    def run_inference(
        self,
        batch: Sequence[ExampleT],
        model: EngineThread,
        inference_args: dict[str, Any] | None = None,
    ) -> list[PredictionResult]:
        """Answers a batch; the prediction of a failed prompt is a `Failure`."""
        prompts = [self._prompt(example) for example in batch]
        fingerprints = self._fingerprints(batch, prompts)
        outcomes = model.answer(prompts, fingerprints, self._throttled.signal_throttled, count)
        return [
            PredictionResult(example, outcome, self._model.name)
            for example, outcome in zip(batch, outcomes, strict=True)
        ]

    def batch_elements_kwargs(self) -> dict[str, Any]:
        """Returns a fixed batch size, to which long prompts count more."""
        size = self._batching.max_batch_size
        return {
            "min_batch_size": size,
            "max_batch_size": size,
            # At most the batch size: a heavier element makes Beam emit an empty batch.
            "element_size_fn": lambda example: min(
                size, 1 + len(self._prompt(example).text) // BYTES_PER_BATCH_UNIT
            ),
        }

    def get_num_bytes(self, batch: Sequence[ExampleT]) -> int:
        """Counts characters; Beam's default pickles the batch a second time to measure it."""
        return sum(len(self._prompt(example).text) for example in batch)

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

    def _prompt(self, example: ExampleT) -> Prompt:
        found = self._prompt_of(example) if self._prompt_of else example
        return found if isinstance(found, Prompt) else Prompt(str(found))

    def _fingerprints(self, batch: Sequence[ExampleT], prompts: Sequence[Prompt]) -> list[str]:
        if self._journal_uri is None:
            return []
        if self._fingerprint_of is not None:
            return [self._fingerprint_of(example) for example in batch]
        fingerprint = Fingerprinter(self._model, self._generation, self._output_schema, self._embedding)
        return [fingerprint(prompt.text, prompt.system, prompt.media) for prompt in prompts]

    def _open_engine(self) -> Engine:
        limits = self._limits
        has_quota = limits.requests_per_minute is not None or limits.tokens_per_minute is not None
        backend = open_backend(self._model, self._generation, self._output_schema, self._embedding)
        # A vector costs no output tokens, so none are reserved.
        max_output_tokens = 0 if self._embedding else self._generation.max_output_tokens
        return Engine(
            backend,
            governor=machine_governor(self._model, limits),
            buckets=LengthBuckets(self._batching.resolved_boundaries, max_output_tokens),
            parser=VectorParser(self._embedding.dimensions)
            if self._embedding
            else OutputParser(self._output_schema),
            policy=RetryPolicy(limits.max_attempts, limits.max_throttled_seconds),
            max_in_flight=limits.max_in_flight,
            request_timeout_seconds=limits.request_timeout_seconds,
            max_repairs=self._max_repairs if self._output_schema is not None else 0,
            batching=self._static_batching(backend),
            concurrency=None
            if has_quota or not isinstance(self._model, OpenAIModel | VertexEndpointModel)
            else ConcurrencyLimit(limits.max_in_flight),
            budget=_budget(self._model, limits, self._run),
        )

    def _static_batching(self, backend: Backend) -> StaticBatching:
        batching = self._batching
        limits = getattr(backend, "limits", None)
        if isinstance(limits, StaticBatching):
            return limits.within(batching.max_padded_tokens, batching.max_instances)
        return StaticBatching(max_padded_tokens=batching.max_padded_tokens).within(
            batching.max_padded_tokens, batching.max_instances
        )


def handler_of_job(spec: JobSpec, oldest_at: float) -> LLMModelHandler[Request]:
    """Returns the handler of a job, with its limits and its journal."""
    return LLMModelHandler(
        spec.model,
        generation=spec.generation,
        limits=limits_of_a_worker(spec.runner, spec.limits),
        batching=spec.batching,
        output_schema=spec.prompt.output_schema,
        embedding=spec.embedding,
        journal_uri=spec.journal_uri,
        oldest_at=oldest_at,
        prompt_of=lambda request: request.prompt,
        fingerprint_of=lambda request: request.fingerprint,
        job=spec.name,
        max_repairs=spec.prompt.max_repairs,
        environment_secrets=spec.environment_secrets,
    )


def machine_governor(model: Model, limits: Limits) -> Admission:
    """Returns the governor that all processes of this machine share for a model, its key and its limits.

    It is a governor of this process only if files cannot be shared, and for `echo`.
    """
    if isinstance(model, EchoModel):
        return Governor(requests_per_minute=limits.requests_per_minute or math.inf)
    governor = Governor(
        requests_per_minute=_share(limits.requests_per_minute, limits.share_ratio),
        tokens_per_minute=_share(limits.tokens_per_minute, limits.share_ratio),
        expected_workers=limits.expected_workers or 1,
    )
    key = _key_of(model)
    quota = (limits.requests_per_minute, limits.tokens_per_minute, limits.share_ratio, limits.expected_workers)
    try:
        return SharedGovernor(governor, shared_path(model.model_dump(), key, quota))
    except OSError as error:
        _log.warning("Each process has its own governor, since no file can be shared: %s", error)
        return governor


def _key_of(model: GeminiModel | OpenAIModel | VertexEndpointModel) -> str | None:
    """Returns the API key of a model, which has its own quota; `None` for a token."""
    match model:
        case OpenAIModel(id_token_audience=None):
            return os.environ.get(model.api_key_env)
        case GeminiModel():
            return os.environ.get("GOOGLE_API_KEY")
    return None


def _budget(model: Model, limits: Limits, run: str) -> Budget | None:
    if limits.budget_usd is None:
        return None
    price = price_of(model, limits.price)
    if price is None:
        raise JobSpecError(
            f"`limits.budget_usd`: the price of {model.type} model {model.name!r} is not known; set "
            "`limits.price`. Nothing was sent or billed."
        )
    return _BUDGETS.setdefault(run, Budget(limits.budget_usd, price))


def _share(per_minute: float | None, ratio: float) -> float | None:
    return None if per_minute is None else per_minute * ratio
