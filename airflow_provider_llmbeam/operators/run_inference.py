"""`RunInferenceOperator`: run an LLM over rows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import BaseOperator

from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError
from airflow_provider_llmbeam.operators.job_process import JobProcess
from airflow_provider_llmbeam.operators.literal import literal_problems, plain
from airflow_provider_llmbeam.spec.job import JobSpec

if TYPE_CHECKING:
    from airflow.sdk import Context


class RunInferenceOperator(BaseOperator):
    """Reads rows, renders one prompt per row, asks a model, and writes the answers.

    The job is an Apache Beam pipeline in a process of its own, in this task: it ends with the task. A retry or a
    clear of the same run asks only for what is not answered yet. Every row ends among the answers or, with the
    server's words, in the dead letter.

    Args:
        source: Where rows come from, see `spec.FilesSource`, `spec.BigQuerySource` and `spec.RowsSource`.
        prompt: How a row becomes a prompt, see `spec.PromptTemplate`. Its `template` and `system` are rendered
            per row on the workers, never by Airflow; its `variables` are rendered by Airflow.
        model: Which model answers, see `spec.GeminiModel` and `spec.OpenAIModel`; also the XCom of a model spec.
        sink: Where answers go, see `spec.FilesSink`, `spec.BigQuerySink`, `spec.PostgresSink` and
            `spec.MilvusSink`.
        generation: Parameters of the answer, see `spec.Generation`.
        embedding: Asks for vectors instead of texts: parameters of the vector, see `spec.Embedding`; `{}` will do.
        limits: Quotas and patience, see `spec.Limits`.
        batching: Length buckets and batch size, see `spec.Batching`.
        cache: Shares answers with other runs and Dags, see `spec.Cache`.
        state_uri: Directory of the journal; left out, below a files sink.
        job_name: Left out, made of Dag, task and run, so that retries find their journal.
        llmbeam_conn_id: Connection with API key, base URL, project and location.

    Templated:
        `source`, `prompt_variables`, `model`, `sink`, `generation`, `embedding`, `limits`, `batching`,
        `cache`, `state_uri`, `job_name`, `llmbeam_conn_id`.

    XCom:
        The manifest: counts of rows, requests and tokens, and the addresses of answers, dead letter and report.

    Raises:
        JobSpecError: When the Dag is parsed, for what is wrong and literal.
        AirflowFailException: In `execute`, before anything is sent, for what is wrong once rendered.
        JobError: The job started and did not reach its end, or not one row was answered.
    """

    template_fields: Sequence[str] = (
        "source",
        "prompt_variables",
        "model",
        "sink",
        "generation",
        "embedding",
        "limits",
        "batching",
        "cache",
        "state_uri",
        "job_name",
        "llmbeam_conn_id",
    )
    template_fields_renderers = dict.fromkeys(template_fields[:9], "json")
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        source: Any,
        prompt: Any,
        model: Any,
        sink: Any,
        generation: Any = None,
        embedding: Any = None,
        limits: Any = None,
        batching: Any = None,
        cache: Any = None,
        state_uri: str | None = None,
        job_name: str | None = None,
        llmbeam_conn_id: str = "llmbeam_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        prompt = plain(prompt)
        self.source = plain(source)
        self.prompt = prompt
        self.prompt_variables = prompt.get("variables", {}) if isinstance(prompt, Mapping) else {}
        self.model = plain(model)
        self.sink = plain(sink)
        self.generation = plain(generation)
        self.embedding = plain(embedding)
        self.limits = plain(limits)
        self.batching = plain(batching)
        self.cache = plain(cache)
        self.state_uri = state_uri
        self.job_name = job_name
        self.llmbeam_conn_id = llmbeam_conn_id
        self._process: JobProcess | None = None
        data = self._spec_data(job_name or "parsed")
        if problems := literal_problems(JobSpec, data, ("prompt.template", "prompt.system", "prompt.media")):
            raise JobSpecError(f"Task {self.task_id!r}: {' '.join(map(str, problems))}")

    def execute(self, context: Context) -> dict[str, Any]:
        """Runs the job and waits for it."""
        from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook
        from airflow_provider_llmbeam.hooks.postgres import sink_environment

        data = self._spec_data(self.job_name or job_name(context["ti"]))
        environment: dict[str, str] = {}
        try:
            if isinstance(self.model, Mapping):
                data["model"], environment = LLMBeamHook(self.llmbeam_conn_id).complete_model({**self.model})
            spec = JobSpec.parse(data)
            environment |= sink_environment(spec.sink)
            self._process = JobProcess(spec, environment, self.log)
            return self._process.run()
        except LLMBeamError as error:
            if error.retryable:
                raise
            raise AirflowFailException(str(error)) from error

    def on_kill(self) -> None:
        """Ends the job. What it was answered so far is in the journal."""
        if self._process is not None:
            self._process.stop()

    def _spec_data(self, name: str) -> dict[str, Any]:
        prompt = self.prompt
        if isinstance(prompt, Mapping):
            prompt = {**prompt, "variables": self.prompt_variables}
        parts = {
            "name": name,
            "source": self.source,
            "prompt": prompt,
            "model": self.model,
            "sink": self.sink,
            "task": None if self.embedding is None else "embed",
            "generation": self.generation,
            "embedding": self.embedding,
            "limits": self.limits,
            "batching": self.batching,
            "cache": self.cache,
            "state_uri": self.state_uri,
        }
        return {field: value for field, value in parts.items() if value is not None}


def job_name(ti: Any) -> str:
    """Names a task's job: readable, and the same for every try of the same run."""
    identity = "\0".join(map(str, (ti.dag_id, ti.task_id, ti.run_id, ti.map_index)))
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    readable = re.sub(r"[^a-z0-9]+", "-", f"{ti.dag_id}-{ti.task_id}".lower()).strip("-")[:80]
    return f"{readable or 'job'}-{digest}"
