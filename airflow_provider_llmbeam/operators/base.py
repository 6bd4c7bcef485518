"""The arguments that running a job and estimating it share, and the spec that they make."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.deployment import own_deployment, require_deployment
from airflow_provider_llmbeam.hooks.google.authentication import with_key
from airflow_provider_llmbeam.integrations.openlineage.task import HasLineage, JobFacts
from airflow_provider_llmbeam.integrations.opentelemetry import current_trace_id
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.operators.arguments import check_arguments
from airflow_provider_llmbeam.operators.deadline import with_deadline, with_stand_in
from airflow_provider_llmbeam.operators.identity import airflow_run_of, budget_name, job_name, owner_of
from airflow_provider_llmbeam.operators.literal import Unrendered, literal_problems, plain
from airflow_provider_llmbeam.operators.notify import notify
from airflow_provider_llmbeam.operators.other_models import OtherModels
from airflow_provider_llmbeam.operators.written import WrittenInDag
from airflow_provider_llmbeam.spec.identity import with_billing_labels
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model import model_data
from airflow_provider_llmbeam.spec.model.server import with_base_urls
from airflow_provider_llmbeam.spec.prompt import prompt_data
from airflow_provider_llmbeam.spec.protocol.alert import Alert
from airflow_provider_llmbeam.spec.protocol.manifest import PAGE_KEY
from airflow_provider_llmbeam.spec.runner import runner_data
from airflow_provider_llmbeam.spec.sink import PostgresSink

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier, Context, XComArg

    from airflow_provider_llmbeam.jobs.client import Files
    from airflow_provider_llmbeam.spec.alerts import Alerts
    from airflow_provider_llmbeam.spec.cache import Cache
    from airflow_provider_llmbeam.spec.cascade import Cascade
    from airflow_provider_llmbeam.spec.conversation import Conversation
    from airflow_provider_llmbeam.spec.inference import Inference
    from airflow_provider_llmbeam.spec.limits import Batching, Limits
    from airflow_provider_llmbeam.spec.model import Embedding, Generation, Model
    from airflow_provider_llmbeam.spec.prompt import PromptTemplate
    from airflow_provider_llmbeam.spec.runner import Runner
    from airflow_provider_llmbeam.spec.safety import Safety
    from airflow_provider_llmbeam.spec.sink import Sink
    from airflow_provider_llmbeam.spec.source import Source
    from airflow_provider_llmbeam.spec.traces import Traces


#: Fields of the spec that are templated arguments of the same name: objects, and two texts.
_PARTS = (
    "source",
    "model",
    "sink",
    "generation",
    "embedding",
    "cascade",
    "conversation",
    "inference",
    "limits",
    "batching",
    "alerts",
    "traces",
    "safety",
    "cache",
    "runner",
    "state_uri",
    "kms_key_name",
)

#: A template of what differs between runs of a Dag.
_OF_RUN = re.compile(r"\{\{[^}]*\b(ds|ts|ds_nodash|ts_nodash\w*|run_id|dag_run|\w+_date|data_interval_\w+)\b")


class InferenceJobOperator(WrittenInDag, HasLineage, BaseOperator):
    """Base of `RunInferenceOperator`, which documents the arguments, and of `EstimateInferenceOperator`.

    Both take the same ones, so that a Dag can write them once; an estimate raises no alerts.
    """

    template_fields: Sequence[str] = (
        "prompt_variables",
        *_PARTS,
        "job_name",
        "llmbeam_conn_id",
        "gcp_conn_id",
        "impersonation_chain",
        "prompt_per_row",
    )
    #: For the query of a SQL source in a file.
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers = dict.fromkeys(("prompt_variables", *_PARTS[:-2], "prompt_per_row"), "json")

    #: Whether the task writes answers.
    _writes = True
    #: The rules that its arguments must satisfy when the Dag is parsed.
    _rules: type[JobSpec] = JobSpec

    def __init__(
        self,
        *,
        source: Source | Mapping[str, Any] | XComArg,
        prompt: PromptTemplate | Mapping[str, Any] | str,
        model: Model | Mapping[str, Any] | str | XComArg,
        sink: Sink | Mapping[str, Any] | str | XComArg,
        generation: Generation | Mapping[str, Any] | XComArg | None = None,
        embedding: Embedding | Mapping[str, Any] | XComArg | None = None,
        cascade: Cascade | Mapping[str, Any] | XComArg | None = None,
        conversation: Conversation | Mapping[str, Any] | XComArg | None = None,
        inference: Inference | Mapping[str, Any] | XComArg | None = None,
        limits: Limits | Mapping[str, Any] | XComArg | None = None,
        batching: Batching | Mapping[str, Any] | XComArg | None = None,
        alerts: Alerts | Mapping[str, Any] | XComArg | None = None,
        traces: Traces | Mapping[str, Any] | XComArg | None = None,
        safety: Safety | Mapping[str, Any] | XComArg | None = None,
        notifiers: Sequence[BaseNotifier] | BaseNotifier = (),
        cache: Cache | Mapping[str, Any] | XComArg | None = None,
        runner: Runner | Mapping[str, Any] | XComArg | None = None,
        state_uri: str | None = None,
        kms_key_name: str | None = None,
        job_name: str | None = None,
        llmbeam_conn_id: str = "llmbeam_default",
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        check_arguments(type(self), kwargs)
        super().__init__(**kwargs)
        plain_prompt = prompt_data(plain(prompt))
        self.source = plain(source)
        self.prompt = plain_prompt
        self.prompt_variables = plain_prompt.get("variables", {}) if isinstance(plain_prompt, Mapping) else {}
        # Shown among the rendered fields, and never rendered: the templates are those of the rows.
        self.prompt_per_row = Unrendered(_without_variables(plain_prompt))
        self.model = model_data(plain(model))
        self.sink = plain(sink)
        self.generation = plain(generation)
        self.embedding = plain(embedding)
        self.cascade = plain(cascade)
        self.conversation = plain(conversation)
        self.inference = plain(inference)
        self.limits = plain(limits)
        self.batching = plain(batching)
        self.alerts = plain(alerts)
        self.traces = plain(traces)
        self.safety = plain(safety)
        self.notifiers = (notifiers,) if isinstance(notifiers, str) or callable(notifiers) else tuple(notifiers)
        if wrong := [one for one in self.notifiers if not callable(one)]:
            raise JobSpecError(
                f"Task {self.task_id!r}: `notifiers`: must be notifiers of Airflow, e.g. SmtpNotifier(to=…); got "
                f"{wrong[0]!r}."
            )
        self.cache = plain(cache)
        self.runner = plain(runner)
        self.state_uri = plain(state_uri)
        self.kms_key_name = plain(kms_key_name)
        self.job_name = job_name
        self.llmbeam_conn_id = llmbeam_conn_id
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        self.deferrable = deferrable
        self._process: JobProcess | None = None
        self._facts: JobFacts | None = None
        self._manifest: dict[str, Any] | None = None
        try:
            data = self._spec_data(job_name or "parsed", with_stand_in(self.inference, self.get_dag()))
        except JobSpecError as error:
            raise JobSpecError(f"Task {self.task_id!r}: {error}") from None
        problems = literal_problems(self._rules, data, ("prompt.template", "prompt.system", "prompt.media"))
        if problems:
            words = (replace(one, field="job_name") if one.field == "name" else one for one in problems)
            raise JobSpecError(f"Task {self.task_id!r}: {' '.join(map(str, words))}")
        if self._writes:
            self._warn_of_traps()

    def _warn_of_traps(self) -> None:
        """Logs what is allowed, and does not do what it seems to."""
        uri = self.sink.get("uri") if isinstance(self.sink, Mapping) else self.sink
        field, state_uri = ("sink.uri", uri) if self.state_uri is None else ("state_uri", self.state_uri)
        if isinstance(state_uri, str) and _OF_RUN.search(state_uri):
            self.log.warning(
                "Task %r: `%s` %r is another one in each run, and the journal lies below it, so that no run finds "
                "answers or figures of an earlier one. Set `state_uri` to a directory without a template.",
                self.task_id,
                field,
                state_uri,
            )
        on_missing = self.source.get("on_missing") if isinstance(self.source, Mapping) else None
        if on_missing == "retry" and not self.retries:
            self.log.warning(
                "Task %r: `source.on_missing` 'retry' waits for a late file by the retries of the task, which has "
                "none. Set `retries` and `retry_delay`.",
                self.task_id,
            )

    def on_kill(self) -> None:
        """Stops the process of the job. Its answers so far are in the journal."""
        if self._process is not None:
            self._process.stop()

    def _job(self, context: Context) -> tuple[JobSpec, dict[str, str]]:
        """Returns the complete spec, and the environment variables with its secrets.

        Raises:
            JobSpecError: An argument is invalid, or this Airflow has no name for a job on Dataflow or Flink.
        """
        from airflow_provider_llmbeam.hooks.connections import connection_environment

        inference = with_deadline(self.inference, self.get_dag(), context.get("dag_run"), self.log)
        spec, secrets = self._connect(self._build_data(context, inference))
        spec = _with_budget(_with_end_of_run(spec, context), context, self.get_dag())
        spec = with_billing_labels(spec, context["ti"].dag_id, context["ti"].task_id)
        environment = secrets | connection_environment(spec)
        self._facts = JobFacts(spec, _postgres_dsns(spec, environment))
        return spec, environment

    @staticmethod
    def _show_page(page: dict[str, Any] | None, context: Context) -> None:
        """Keeps the page of what the task has reported, for the page "Inference" of Airflow."""
        if page is not None:
            context["ti"].xcom_push(key=PAGE_KEY, value=page)

    def _notify(self, context: Context, alert: Alert) -> None:
        notify(self.notifiers, alert, context, self.log)

    def resolve_job(self, context: Context) -> tuple[JobSpec, dict[str, str], Any]:
        """Returns what a task asks of a job: spec, variables with its secrets, and the input of its step.

        For the command line, which has no task: the task is rendered, and nothing was sent.

        Raises:
            JobSpecError: See `_job`.
        """
        return *self._job(context), None

    def _build_data(self, context: Context, inference: Any) -> dict[str, Any]:
        """Returns the spec as plain data, with all by which a job elsewhere is found again.

        Raises:
            JobSpecError: This Airflow has no name for a job on Dataflow or Flink, or the project is not known.
        """
        name = self.job_name or self._own_job_name(context["ti"])
        data = self._spec_data(name, inference)
        data["owner"] = owner_of(context["ti"])
        logical_date = getattr(context.get("dag_run"), "logical_date", None)
        data["airflow_run"] = airflow_run_of(context["ti"], name, logical_date)
        data["trace_id"] = current_trace_id()
        runner = runner_data(self.runner)
        runner_type = runner.get("type") if isinstance(runner, Mapping) else None
        data["deployment"] = require_deployment() if runner_type in ("dataflow", "flink") else own_deployment()
        if runner_type == "dataflow" and not runner.get("project"):
            location = str(runner.get("location"))
            data["runner"] = {**runner, "project": self._read_project(location)}
        return data

    def _files_of(self, spec: JobSpec) -> Callable[[str], Files]:
        """Returns what makes the client of the filesystem of an address, for the files of a job."""
        from airflow_provider_llmbeam.hooks.storage import files_at

        return partial(files_at, gcp_conn_id=self.gcp_conn_id, kms_key_name=spec.kms_key_name)

    def _read_project(self, location: str) -> str:
        """Returns the project of the connection or of its credentials.

        Raises:
            JobSpecError: Neither names one.
        """
        from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook
        from airflow_provider_llmbeam.hooks.google.errors import before_submission

        with before_submission():
            return DataflowJobHook(location, None, self.gcp_conn_id, self.impersonation_chain).project

    def _connect(self, data: Mapping[str, Any]) -> tuple[JobSpec, dict[str, str]]:
        """Returns the spec with what connections and the environment give its models, and variables with secrets.

        Raises:
            JobSpecError: An argument is invalid, or names what is not allowed.
        """
        from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook

        connected, secrets = {**data}, dict[str, str]()
        model = model_data(plain(self.model))
        if isinstance(model, Mapping):
            connected, secrets = LLMBeamHook(self.llmbeam_conn_id).complete({**data, "model": model})
        models = OtherModels(self.model, self.llmbeam_conn_id, secrets)
        if self.safety is not None:
            connected["safety"] = models.complete_guard(self.safety)
        if self.cascade is not None:
            connected["cascade"] = models.complete_stages(self.cascade)
        connected["sink"] = models.complete_sink(connected.get("sink"))
        if connected.get("sinks"):
            connected["sinks"] = [*map(models.complete_sink, connected["sinks"])]
        spec = with_base_urls(with_key(JobSpec.parse(connected), self.gcp_conn_id), os.environ, self.log)
        self._check_allowed(spec)
        return spec, secrets

    def _job_facts(self, task_instance: Any) -> JobFacts:
        facts = self._facts
        if facts is None:  # the task failed early, or an error hid the connection when it resumed
            name = self.job_name or self._own_job_name(task_instance)
            facts = JobFacts(JobSpec.parse(self._spec_data(name, with_stand_in(self.inference, None))))
        return replace(facts, writes=self._writes, manifest=self._manifest)

    def _own_job_name(self, ti: Any) -> str:
        return job_name(ti)

    def _spec_data(self, name: str, inference: Any) -> dict[str, Any]:
        prompt = self.prompt
        if isinstance(prompt, Mapping):
            prompt = {**prompt, "variables": self.prompt_variables}
        parts = {field: getattr(self, field) for field in _PARTS}
        task = None if self.embedding is None else "embed"
        parts |= {"name": name, "prompt": prompt, "inference": inference, "task": task}
        return {field: value for field, value in parts.items() if value is not None}


def _with_end_of_run(spec: JobSpec, context: Context) -> JobSpec:
    """Returns the spec with a date and time in `inference.finish_by`: all tries have the same one."""
    if spec.inference.finish_by is None:
        return spec
    started_at = context["dag_run"].start_date or datetime.now(UTC)
    inference = spec.inference.model_copy(update={"finish_by": spec.inference.end_of_run(started_at)})
    return spec.model_copy(update={"inference": inference})


def _with_budget(spec: JobSpec, context: Context, dag: Any) -> JobSpec:
    """Returns the spec with the name of the budget that its run shares, or without it if it shares none."""
    budget = spec.limits.budget
    if budget is None:
        return spec
    name = budget_name(budget.over, context["ti"], context["dag_run"], UTC if dag is None else dag.timezone)
    named = None if name is None else budget.model_copy(update={"over": name})
    return spec.model_copy(update={"limits": spec.limits.model_copy(update={"budget": named})})


def _postgres_dsns(spec: JobSpec, environment: Mapping[str, str]) -> dict[str, str]:
    names = {sink.dsn_env for sink in spec.sinks_by_field.values() if isinstance(sink, PostgresSink)}
    return {name: dsn for name in names if (dsn := environment.get(name) or os.environ.get(name))}


def _without_variables(prompt: Any) -> Any:
    """Returns a prompt as it was written, without its variables, which are a field of their own."""
    if not isinstance(prompt, Mapping):
        return prompt
    return {name: value for name, value in prompt.items() if name != "variables"}
