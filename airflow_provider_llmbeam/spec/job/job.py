"""The spec of a job: the one value that Airflow hands to Beam."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.alerts import Alerts
from airflow_provider_llmbeam.spec.base import (
    SpecModel,
    may_have_project,
    plain_directory,
    without_user,
)
from airflow_provider_llmbeam.spec.cache import Cache
from airflow_provider_llmbeam.spec.conversation import Conversation
from airflow_provider_llmbeam.spec.deployment import DeploymentName
from airflow_provider_llmbeam.spec.fields.names import JobName
from airflow_provider_llmbeam.spec.inference import Inference
from airflow_provider_llmbeam.spec.job.output_rules import reads_own_dead_letter
from airflow_provider_llmbeam.spec.job.rules import job_fault
from airflow_provider_llmbeam.spec.limits import Batching, Limits
from airflow_provider_llmbeam.spec.model import (
    Embedding,
    Generation,
    Model,
    key_variables,
)
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter
from airflow_provider_llmbeam.spec.model.server import Server, server_of
from airflow_provider_llmbeam.spec.prompt import Prompt
from airflow_provider_llmbeam.spec.runner import DataflowRunner, DirectRunner, Runner
from airflow_provider_llmbeam.spec.safety import AirflowRun, FilesAudit, Safety
from airflow_provider_llmbeam.spec.sink import FilesSink, KafkaSink, MilvusSink, PostgresSink, Sink
from airflow_provider_llmbeam.spec.source import BigQuerySource, KafkaSource, Source

#: Name of the file in which the launcher of a Flex Template leaves its error.
LAUNCH_ERROR_NAME = "launch-error.txt"


class JobSpec(SpecModel):
    """A job: its source, prompt, model and sink.

    It holds no secrets: keys come from the environment (`GOOGLE_API_KEY`, `OpenAIModel.api_key_env`), on Dataflow
    from Secret Manager (`DataflowRunner.environment_secrets`).

    Attributes:
        version: Version of this format.
        name: Name of the job; runs of the same name share a journal below `state_uri`.
        deployment: Airflow deployment that runs the job; jobs of another one are neither found nor cancelled.
        owner: What the job is called from run to run: Dag, task and map index, set by the operator. It owns a
            files sink, see `FilesSink`. Empty: `name`.
        airflow_run: Task instance that runs the job, set by the operator; for the audit.
        task: `generate` requests a text; `embed` a vector of the text of the prompt.
        source: Source of the rows.
        prompt: Templates of the prompt.
        model: The model.
        generation: Parameters of the text.
        embedding: Parameters of the vector, with `embed` only.
        conversation: Rows of one key that are asked in order, each with its history. `None`: every row by itself.
        inference: Online or batch inference, and the time by which the answers are needed.
        limits: Rates, retries, timeouts and budget.
        batching: Size of batches and length buckets.
        sink: Sink of the answers.
        alerts: What raises an alert while the job runs, and when it has ended.
        safety: What protects the people whose data is sent, and records who sent it.
        cache: Cache shared with other jobs. `None`: only runs of this job share their answers.
        runner: Runner of the pipeline; by default a process on this machine.
        state_uri: Directory of the journal, which holds answers already paid for. `None`: `.llmbeam/` below a
            files sink.
    """

    version: Literal[1] = 1
    name: JobName
    deployment: DeploymentName = ""
    owner: Annotated[str, Field(max_length=1000)] = ""
    airflow_run: AirflowRun | None = None
    task: Literal["generate", "embed"] = "generate"
    source: Source
    prompt: Prompt
    model: Model
    generation: Generation = Generation()
    embedding: Embedding | None = None
    conversation: Conversation | None = None
    inference: Inference = Inference()
    limits: Limits = Limits()
    batching: Batching = Batching()
    sink: Sink
    alerts: Alerts = Alerts()
    safety: Safety = Safety()
    cache: Cache | None = None
    runner: Runner = DirectRunner()
    state_uri: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _embedding_by_default(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("task") == "embed" and data.get("embedding") is None:
            return {**data, "embedding": Embedding()}
        return data

    _no_password = field_validator("state_uri")(without_user)

    @field_validator("state_uri")
    @classmethod
    def _directory(cls, state_uri: str | None) -> str | None:
        return None if state_uri is None else plain_directory(state_uri)

    @model_validator(mode="after")
    def _parts_match(self, info: ValidationInfo) -> Self:
        if fault := job_fault(self, has_project=may_have_project(getattr(self.model, "project", None), info)):
            raise fault
        return self

    @property
    def max_output_tokens(self) -> int:
        """Maximum length of an answer, in tokens; 0 if the answers are vectors."""
        return 0 if self.embedding is not None else self.generation.max_output_tokens

    @property
    def home_uri(self) -> str:
        """Directory of the state of this job."""
        if self.state_uri is not None:
            return f"{self.state_uri}{self.name}/"
        return f"{self.output_uri}.llmbeam/{self.name}/"

    @property
    def output_uri(self) -> str:
        """Directory of the report and the dead letter, and of the answers of a files sink."""
        return self.sink.uri if isinstance(self.sink, FilesSink) else self.home_uri

    @property
    def dead_letter_uri(self) -> str:
        """Address of the dead letter."""
        return f"{self.output_uri}dead_letter-00000-of-00001.jsonl"

    @property
    def report_uri(self) -> str:
        """Address of the report of the last run that published."""
        return f"{self.output_uri}report.json"

    @property
    def report_html_uri(self) -> str:
        """Address of the same report as a page."""
        return f"{self.output_uri}report.html"

    @property
    def skipped_uri(self) -> str:
        """Address of the report of a run that was skipped and published nothing."""
        return f"{self.home_uri}skipped.json"

    @property
    def failed_uri(self) -> str:
        """Address of the report of a run in which too many rows failed, and which published no answers."""
        return f"{self.home_uri}failed.json"

    @property
    def failed_html_uri(self) -> str:
        """Address of the same report as a page."""
        return f"{self.home_uri}failed.html"

    @property
    def launch_error_uri(self) -> str:
        """Address of the error of the launcher of a Flex Template, beside the spec that it reads."""
        return f"{self.home_uri}{LAUNCH_ERROR_NAME}"

    @property
    def alerts_uri(self) -> str:
        """Address of the file that names the alerts that the run has raised."""
        return f"{self.home_uri}alerts.json"

    @property
    def owner_uri(self) -> str | None:
        """Address of the file that names the owner of a files sink."""
        return f"{self.sink.uri}.llmbeam/_owner.json" if isinstance(self.sink, FilesSink) else None

    @property
    def merges_by_key(self) -> bool:
        """Whether rows whose keys this run does not have stay, in the answers of a files sink and the dead letter.

        They also stay in the dead letter that the job reads itself, whatever the sink: they would be lost.
        """
        return getattr(self.sink, "on_existing", None) == "merge" or reads_own_dead_letter(self)

    @property
    def staging_uri(self) -> str:
        """Directory of unpublished files, on the filesystem of the output, where a rename is cheap."""
        if isinstance(self.sink, FilesSink):
            return f"{self.sink.uri}.llmbeam/{self.name}/staging/"
        return f"{self.home_uri}staging/"

    @property
    def journal_uri(self) -> str:
        """Directory of the journal segments of the model's server; with a cache it is shared with other jobs."""
        return f"{self._journal}{self.server.namespace(is_shared=self.cache is not None)}/"

    @property
    def journal_uris(self) -> tuple[str, ...]:
        """Directories whose answers are used: that of the model's server, and that of the providers.

        The latter also has the answers that other servers gave before each server had its own directory.
        """
        return tuple(dict.fromkeys((self.journal_uri, f"{self._journal}/")))

    @property
    def rates_uri(self) -> str:
        """Directory of the rates that jobs have learned of servers; all jobs with this `state_uri` share it."""
        return f"{self.state_uri or f'{self.output_uri}.llmbeam/'}rates/"

    @property
    def inspections_uri(self) -> str:
        """Directory of what a detector of type `dlp` has found; with a cache it is shared with other jobs."""
        return f"{self._journal}@inspections/"

    @property
    def _journal(self) -> str:
        return f"{self.home_uri}journal" if self.cache is None else f"{self.state_uri}cache/{self.cache.scope}"

    @property
    def private_uris(self) -> tuple[str, ...]:
        """Directories that belong to this package: nobody else needs to read them."""
        below_sink = (f"{self.sink.uri}.llmbeam/",) if isinstance(self.sink, FilesSink) else ()
        shared = (f"{self.state_uri}cache/",) if self.cache is not None else ()
        history = (f"{self.state_uri}conversations/",) if self.conversation is not None else ()
        audit = () if self.audit_uri is None else (self.audit_uri,)
        return (*below_sink, *shared, *history, *((self.home_uri,) if self.state_uri is not None else ()), *audit)

    @property
    def audit_uri(self) -> str | None:
        """Directory of the audit records, or of those that are to be loaded; `None` for no audit."""
        audit = self.safety.audit
        if audit is None:
            return None
        return audit.uri if isinstance(audit, FilesAudit) else f"{self.home_uri}audit/"

    @property
    def models(self) -> tuple[Model, ...]:
        """The models that the job asks: its own, and that of its guard."""
        moderation = self.safety.moderation
        return (self.model,) if moderation is None else (self.model, moderation.model)

    def fingerprinter(self) -> Fingerprinter:
        """Returns what computes the fingerprints of the prompts of this job."""
        return Fingerprinter(self.model, self.generation, self.prompt.output_schema, self.embedding)

    @property
    def extra_columns(self) -> tuple[str, ...]:
        """Columns that an output row has only with parameters of the answer, or with moderation."""
        moderation = self.safety.moderation
        return (*self.generation.extra_columns, *(() if moderation is None else moderation.extra_columns))

    @property
    def server(self) -> Server:
        """The server that answers the requests of this job in this process."""
        return server_of(self.model, os.environ)

    @property
    def stop_uri(self) -> str:
        """File whose existence ends the job: every worker records what is in flight, and sends nothing more."""
        return f"{self.home_uri}stop"

    @property
    def sent_uri(self) -> str:
        """File that names the answers of the last run that were sent to a queue."""
        return f"{self.home_uri}sent.json"

    @property
    def lease_uri(self) -> str:
        """File or object that names the process that runs the job."""
        return f"{self.home_uri}lease"

    @property
    def launch_uri(self) -> str:
        """File that the launch of the job writes, for workers elsewhere that must have the same disk."""
        return f"{self.home_uri}launch"

    @property
    def progress_uri(self) -> str:
        """Directory in which workers in other processes write their counts, while the job runs."""
        return f"{self.home_uri}progress/"

    @property
    def export_uri(self) -> str:
        """Directory of the exports of a BigQuery source, for this job only."""
        given = self.source.export_uri if isinstance(self.source, BigQuerySource) else None
        return f"{given}{self.name}/" if given else f"{self.home_uri}export/"

    @property
    def environment_secrets(self) -> dict[str, str]:
        """Environment variables of the workers, each from a secret; none if the job runs on this machine."""
        return self.runner.environment_secrets if isinstance(self.runner, DataflowRunner) else {}

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """Environment variables with secrets that the job reads by the names in this spec."""
        keys = (name for model in self.models for name in key_variables(model))
        privacy = self.safety.privacy
        own = () if privacy is None else (privacy.key_env,)
        names = (*self.environment_secrets, *keys, *own)
        if isinstance(self.source, KafkaSource):
            names = (*names, self.source.config_env)
        match self.sink:
            case PostgresSink():
                return (*names, self.sink.dsn_env)
            case MilvusSink():
                return (*names, self.sink.token_env)
            case KafkaSink():
                return (*names, self.sink.config_env)
        return names

    @property
    def temp_uri(self) -> str:
        """Directory in which Dataflow stages files."""
        given = self.runner.temp_uri if isinstance(self.runner, DataflowRunner) else None
        return given or f"{self.home_uri}dataflow/"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Reads a spec from JSON text.

        Raises:
            JobSpecError: The text is not JSON, or not a job spec.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise JobSpecError(f"The job spec is not JSON: {error}. Nothing was sent or billed.") from None
        return cls.parse(data)
