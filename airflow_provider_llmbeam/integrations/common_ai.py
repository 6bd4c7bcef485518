"""Batch inference of the Gemini Developer API for the `LLMBatchOperator` of the provider common-ai.

common-ai finds the adapter by the entry point `google` in the group `airflow.providers.common.ai.batch_adapters`,
for a `model_id` such as `google:gemini-3.5-flash-lite`. It submits, polls, retries and writes the results; the
requests to Google are those of this package.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar

import requests
from airflow.providers.common.ai.batch.base import (
    BatchAdapter,
    BatchRequest,
    BatchState,
    BatchStatus,
    ExtractedOutput,
    RawResultItem,
    SubmitResult,
)
from airflow.providers.common.ai.batch.output_schema import OutputSpec
from airflow.providers.common.ai.exceptions import LLMBatchInputError, LLMBatchLimitExceededError
from pydantic import ValidationError

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.providers.access import open_access
from airflow_provider_llmbeam.providers.batch import BatchJob, BatchPhase, lines_of
from airflow_provider_llmbeam.providers.errors import ApiNotFoundError
from airflow_provider_llmbeam.providers.gemini.batch import GeminiBatches
from airflow_provider_llmbeam.providers.gemini.batch_format import DeveloperFormat
from airflow_provider_llmbeam.providers.rest import open_client, session_with
from airflow_provider_llmbeam.spec.model import GeminiModel, Generation
from airflow_provider_llmbeam.spec.model.parameters import given

_log = logging.getLogger(__name__)

_STATUSES: Mapping[BatchPhase, BatchStatus] = {
    "queued": "in_progress",
    "running": "in_progress",
    "cancelling": "in_progress",
    "succeeded": "completed",
    "partial": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "expired": "expired",
}
#: What `request_params` may hold, besides the limit of the answer that the operator sets by itself.
_PARAMS = frozenset({"temperature", "top_p", "seed", "stop_sequences", "thinking_budget_tokens"})
#: Google's clock may be behind that of the worker; which batch it is, its name says.
_CLOCK_SKEW_SECONDS = 300.0


class _NotFoundError(ApiNotFoundError):
    """The batch does not exist; common-ai knows that by this status, and submits a new one."""

    status_code = 404


class GoogleBatchAdapter(BatchAdapter):
    """Batch inference of Gemini on the Developer API.

    The names of `request_params` are those of `RunInferenceOperator(generation=…)`: `temperature`, `top_p`,
    `seed`, `stop_sequences` and `thinking_budget_tokens`. `completion_window` has no meaning for Google.

    Args:
        api_key: Password of the connection; by default the key in `GOOGLE_API_KEY` or `GEMINI_API_KEY`.
        base_url: Host of the connection: another address of the same API.
        client: Session that sends the key and refuses redirects.

    Raises:
        JobSpecError: There is no key, or `base_url` is no HTTP address.
    """

    name: ClassVar[str] = "google"
    conn_types: ClassVar[frozenset[str]] = frozenset({"pydanticai", "llmbeam"})
    max_requests: ClassVar[int] = GeminiBatches.limits.max_rows
    max_payload_bytes: ClassVar[int] = GeminiBatches.limits.max_bytes
    allows_per_request_model: ClassVar[bool] = False  # the address of a submit has the model

    def __init__(
        self, *, api_key: str | None = None, base_url: str | None = None, client: requests.Session | None = None
    ) -> None:
        # Polls and results are the same for every model.
        self._model = GeminiModel(base_url=base_url)
        environment = {"GOOGLE_API_KEY": api_key} if api_key else {}
        super().__init__(client=client or session_with(open_access(self._model, environment).headers))

    def validate_requests(
        self,
        requests: list[BatchRequest],
        *,
        model: str,
        output_spec: OutputSpec,
        idempotency_key: str,
        system_prompt: str = "",
        max_tokens: int = 1024,
        request_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Refuses a batch that is too large, or has a parameter or a model that cannot be sent."""
        self.check_custom_id_length(idempotency_key, len(requests))
        if len(requests) > self.max_requests:
            raise LLMBatchLimitExceededError(
                f"A batch of Gemini takes at most {self.max_requests:,} requests; got {len(requests):,}. Nothing "
                "was sent or billed. Divide the requests among mapped tasks with `.expand()`."
            )
        lines = self._lines(
            requests, model, idempotency_key, output_spec, system_prompt, max_tokens, request_params or {}
        )
        size = 0
        for index, line in enumerate(lines):
            size += len(line)
            if size > self.max_payload_bytes:
                raise LLMBatchLimitExceededError(
                    f"A batch of Gemini takes at most {self.max_payload_bytes:,} bytes; request {index} of "
                    f"{len(requests):,} is beyond. Nothing was sent or billed. Divide the requests among mapped "
                    "tasks with `.expand()`."
                )

    def submit(
        self,
        requests: list[BatchRequest],
        *,
        model: str,
        idempotency_key: str,
        input_fingerprint: str,
        output_spec: OutputSpec,
        system_prompt: str = "",
        max_tokens: int = 1024,
        request_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> SubmitResult:
        """Uploads the requests and creates the batch, whose display name has both identifiers."""
        content = b"".join(
            self._lines(
                requests, model, idempotency_key, output_spec, system_prompt, max_tokens, request_params or {}
            )
        )
        job = self._batches(model).submit(
            _display_name(idempotency_key, input_fingerprint),
            f"{idempotency_key}.jsonl",
            lambda _uri: io.BytesIO(content),
            len(content),
        )
        return SubmitResult(batch_id=job.name, provider_input_ref=None)

    def get_batch(self, batch_id: str) -> BatchState:
        """Returns the state of a batch, with the numbers of its requests that Google has counted."""
        job = self._job(batch_id)
        counts = {"succeeded": job.answered or 0, "errored": job.failed or 0}
        if job.phase in ("cancelled", "expired"):
            # Google does not count the requests that it left; common-ai takes at most those without a result.
            counts[job.phase] = self.max_requests
        return BatchState(status=_STATUSES[job.phase], counts=counts, error_message=job.error)

    def cancel_batch(self, batch_id: str) -> None:
        """Cancels a batch; does nothing if it has ended."""
        self._batches().cancel(batch_id)

    def iter_results(self, batch_id: str) -> Iterator[RawResultItem]:
        """Returns the results in the order of the files; a line that is no result is logged and left out."""
        return self._results(self._job(batch_id))

    def build_output_directive(self, spec: OutputSpec) -> dict[str, Any]:
        """Returns the JSON Schema of the answers as `output_schema`; `{}` for plain text."""
        return {"output_schema": spec.json_schema} if spec.is_structured else {}

    def extract_output(self, raw: RawResultItem, spec: OutputSpec) -> ExtractedOutput:
        """Returns the text of an answer: JSON where a schema was asked for."""
        return ExtractedOutput(kind="json_text" if spec.is_structured else "text", text=raw.raw)

    def find_orphaned_batch(self, idempotency_key: str, input_fingerprint: str, not_before: str) -> str | None:
        """Returns the newest batch that was submitted with both identifiers at `not_before` or later."""
        since = datetime.fromisoformat(not_before).timestamp() if not_before else 0.0
        found = (
            job.name
            for job in self._batches().find(_display_name(idempotency_key, input_fingerprint))
            if job.created_at >= since - _CLOCK_SKEW_SECONDS
        )
        return next(found, None)

    def _batches(self, model: str | None = None) -> GeminiBatches:
        address = self._model if model is None else self._model.model_copy(update={"name": model})
        return GeminiBatches(address, open_client(address, self._client))

    def _job(self, batch_id: str) -> BatchJob:
        try:
            return self._batches().get(batch_id)
        except ApiNotFoundError as error:
            raise _NotFoundError(str(error)) from error

    def _lines(
        self,
        requests: list[BatchRequest],
        model: str,
        idempotency_key: str,
        spec: OutputSpec,
        system_prompt: str,
        max_tokens: int,
        params: Mapping[str, Any],
    ) -> Iterator[bytes]:
        """Yields the lines of the request file; the index of a request ends its key."""
        schema = self.build_output_directive(spec).get("output_schema")
        formats: dict[str, DeveloperFormat] = {}
        for index, request in enumerate(requests):
            name = self.resolve_request_model(request.get("model"), default_bare_model=model, request_index=index)
            if name != model:
                raise LLMBatchInputError(
                    f"Request {index} has the model {name!r}, but all requests of a batch of Gemini have "
                    f"one model; expected {model!r}. Nothing was sent or billed."
                )
            found = {**params, **(request.get("params") or {})}
            found["max_output_tokens"] = request.get("max_tokens") or max_tokens
            key = json.dumps(found, sort_keys=True, default=str)
            if key not in formats:
                formats[key] = DeveloperFormat(self._model, _generation(found, index, self._model), schema)
            prompt = Prompt(request["prompt"], system=request.get("system_prompt") or system_prompt or None)
            yield formats[key].encode(f"{idempotency_key}-{index}", prompt)[1]

    def _results(self, job: BatchJob) -> Iterator[RawResultItem]:
        results = DeveloperFormat(self._model, Generation(), None)
        for file, chunks in self._batches().results(job):
            for line in lines_of(chunks):
                try:
                    found = results.decode(line)
                    yield _item(found.key, int(found.key.rpartition("-")[2]), found.result)
                except ValueError as error:
                    _log.warning(
                        "A line of %s of batch %s is no result: %s. It begins with %r.",
                        file,
                        job.name,
                        error,
                        line[:200],
                    )


def _generation(params: Mapping[str, Any], index: int, model: GeminiModel) -> Generation:
    """Returns the parameters of an answer.

    Raises:
        LLMBatchInputError: One is unknown or invalid.
    """
    try:
        if unknown := params.keys() - _PARAMS - {"max_output_tokens"}:
            raise ValueError(f"unknown {', '.join(map(repr, sorted(unknown)))}")
        generation = Generation.model_validate(params)
        for name in given(generation):
            if why := model.parameters.find_fault(name, generation):
                raise ValueError(f"`{name}` {why}")
        return generation
    except (ValueError, ValidationError) as error:
        raise LLMBatchInputError(
            f"The parameters of request {index} are invalid: {error}. Expected {', '.join(sorted(_PARAMS))} as in "
            "`RunInferenceOperator(generation=…)`. Nothing was sent or billed."
        ) from error


def _display_name(idempotency_key: str, input_fingerprint: str) -> str:
    return f"llm-batch-{idempotency_key}-{input_fingerprint[:16]}"


def _item(key: str, index: int, result: Reply | RequestError) -> RawResultItem:
    usage = {"input_tokens": result.tokens.input, "output_tokens": result.tokens.output}
    if isinstance(result, RequestError):
        error = {
            "type": "provider_error",
            "message": result.message,
            "provider_code": str(result.http_status),
            "stage": "provider",
        }
        return RawResultItem(key, index, "errored", None, usage, result.kind, error, None)
    return RawResultItem(
        key, index, "success", result.model, usage, result.finish_reason, error=None, raw=result.text
    )
