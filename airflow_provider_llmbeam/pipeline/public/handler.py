"""The engine as the Beam `ModelHandler` of a pipeline that is no job."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.job_handler import ExampleT, JobHandler
from airflow_provider_llmbeam.pipeline.media.stored import StoredMedia, media_identities
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.base import SpecModel, plain_directory, without_user
from airflow_provider_llmbeam.spec.fields.names import EnvironmentSecrets
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.limits import Batching, Limits
from airflow_provider_llmbeam.spec.model import Embedding, Generation, Model
from airflow_provider_llmbeam.spec.model.server import with_base_urls
from airflow_provider_llmbeam.spec.model.tier import RequestedTier


class _Given(SpecModel):
    """What a pipeline gives beside the parts of a job."""

    journal_uri: Annotated[str, AfterValidator(without_user), AfterValidator(plain_directory)] | None
    environment_secrets: EnvironmentSecrets
    upload_prefix: str | None
    prompt_of: Callable[[Any], Any] | None
    fingerprint_of: Callable[[Any], Any] | None


class LLMModelHandler(JobHandler[ExampleT]):
    """One `PredictionResult` per example, in every case: its `inference` is a `Completion` or a `Failure`.

    A handler is what Beam's `RunInference` calls: it opens one `Engine` in each worker process, in a thread, and
    hands it the batches. Jobs use the base class, `JobHandler`, which takes its settings from a `JobSpec`; this
    one is for pipelines that are no job, and takes them as arguments.

        RunInference(LLMModelHandler(GeminiModel(name="gemini-3.5-flash-lite")))

    Args:
        model: The model, or its fields, as in a job; also of the next three and of `embedding`.
        generation: Parameters of the answer.
        limits: Quotas, timeouts and retries.
        batching: Batch size and length buckets.
        output_schema: JSON Schema of the answer.
        max_repairs: Maximum number of repeated requests per prompt if the answer does not match `output_schema`.
        embedding: Parameters of the vectors. If set, the texts of the prompts are embedded, and `parsed` of a
            completion is the vector.
        service_tier: Tier that requests of Gemini and OpenAI ask for, see `spec.Inference`.
        journal_uri: Directory of the journal, which stores answers as they arrive; `None` for no journal. Give a
            server for development a directory of its own: its answers are used like those of any other.
        environment_secrets: Environment variables that are set before the client is opened, each from a secret:
            `{"GOOGLE_API_KEY": "projects/p/secrets/gemini-key/versions/latest"}`.
        upload_prefix: Beginning of the display names of uploads to the Gemini Developer API, of files that are too
            large for a request; `None` for no uploads, as nobody deletes them.
        prompt_of: Returns the prompt of an example; by default the example is the prompt, a `str` or a `Prompt`.
            An example for which it raises is a `Failure` of kind `template_error`.
        fingerprint_of: Returns the fingerprint of an example; by default it is computed from the prompt.

    Raises:
        JobSpecError: Names each argument that is not valid as in a job, and the expected value.
    """

    follows_links = True

    def __init__(
        self,
        model: Model | Mapping[str, Any] | str,
        *,
        generation: Generation | Mapping[str, Any] = Generation(),  # noqa: B008 - frozen
        limits: Limits | Mapping[str, Any] = Limits(),  # noqa: B008 - frozen
        batching: Batching | Mapping[str, Any] = Batching(),  # noqa: B008 - frozen
        output_schema: Mapping[str, Any] | None = None,
        max_repairs: int = 0,
        embedding: Embedding | Mapping[str, Any] | None = None,
        service_tier: RequestedTier = "standard",
        journal_uri: str | None = None,
        environment_secrets: Mapping[str, str] = MappingProxyType({}),
        upload_prefix: str | None = None,
        prompt_of: Callable[[ExampleT], str | Prompt] | None = None,
        fingerprint_of: Callable[[ExampleT], str] | None = None,
    ) -> None:
        given = _Given.parse(
            {
                "journal_uri": journal_uri,
                "environment_secrets": environment_secrets,
                "upload_prefix": upload_prefix,
                "prompt_of": prompt_of,
                "fingerprint_of": fingerprint_of,
            }
        )
        storage.check_scheme("journal_uri", journal_uri)
        prompt = {"template": "{{ row.prompt }}", "output_schema": output_schema, "max_repairs": max_repairs}
        spec = pipeline_job(
            prompt,
            model,
            task="generate" if embedding is None else "embed",
            embedding=embedding,
            generation=generation,
            limits=limits,
            batching=batching,
            inference={"service_tier": service_tier},
        )
        super().__init__(with_base_urls(spec, os.environ), RunContext())
        self.journal_uri = self.rates_uri = given.journal_uri
        self.environment_secrets, self.upload_prefix = given.environment_secrets, given.upload_prefix
        self._prompt_of, self._fingerprint_of = prompt_of, fingerprint_of

    def prompt(self, example: Any) -> Prompt | Failure:
        """Returns the prompt of an example, or why it has none."""
        try:
            found: Any = self._prompt_of(example) if self._prompt_of else example
        except Exception as error:  # noqa: BLE001 - it may raise anything, and only this example fails
            message = redact(f"`prompt_of` raised {type(error).__name__}: {error}", self._secrets())
            return Failure(kind="template_error", message=message)
        if isinstance(found, Prompt):
            return found
        if isinstance(found, str):
            return Prompt(found)
        return Failure(
            kind="template_error",
            message=f"the prompt must be a `str` or a `Prompt`, not a value of type {type(found).__name__!r}: "
            "pass `prompt_of`, or, for pairs of a key and a prompt, wrap the handler in `KeyedModelHandler`",
        )

    def fingerprints(self, batch: Sequence[Any], prompts: Sequence[Prompt]) -> list[str]:
        """Returns the fingerprints of examples by which the journal knows their prompts."""
        if self._fingerprint_of is not None:
            return [self._fingerprint_of(example) for example in batch]
        fingerprint = self.spec.fingerprinter()
        rules, files = self.spec.model.media, StoredMedia(follows_links=self.follows_links)
        return [
            fingerprint(prompt.text, prompt.system, media_identities(prompt.media, rules, files))
            for prompt in prompts
        ]

    def characters(self, element: Any) -> int:
        """Counts the characters of a prompt; `KeyedModelHandler` makes pairs of a key and an example."""
        found = self.prompt(element)
        if isinstance(found, Failure) and isinstance(element, tuple) and len(element) == 2:
            found = self.prompt(element[1])
        return found.characters if isinstance(found, Prompt) else 0

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


def pipeline_job(prompt: Any, model: Any, **parts: Any) -> JobSpec:
    """Returns the job that asks the model as a pipeline does; of its source and its sink a pipeline has others.

    Raises:
        JobSpecError: A part is not valid.
    """
    return JobSpec.parse(
        {
            "name": "pipeline",
            "source": {"type": "rows", "rows": [], "key": "row"},
            "sink": {"uri": "."},
            "prompt": prompt,
            "model": model,
            **parts,
        }
    )
