"""`RunInferenceOperator`: runs an LLM over rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError
from airflow_provider_llmbeam.hooks.google.authentication import google_credentials
from airflow_provider_llmbeam.integrations.opentelemetry import count_outcome, record_job
from airflow_provider_llmbeam.jobs.client import SubmittedJob, connect
from airflow_provider_llmbeam.jobs.launcher import JobLauncher
from airflow_provider_llmbeam.jobs.outcome import JobResult
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.operators.assets import add_manifest
from airflow_provider_llmbeam.operators.base import InferenceJobOperator
from airflow_provider_llmbeam.operators.deadline import with_stand_in
from airflow_provider_llmbeam.operators.errors import errors_of_airflow, unless_skipped
from airflow_provider_llmbeam.operators.links import (
    DataflowLink,
    FlinkLink,
    OutputLink,
    ReportLink,
    StoresLinks,
    XComLink,
    dataflow_url,
    flink_url,
    output_url,
    report_url,
)
from airflow_provider_llmbeam.polling.poller import Wait, poll_until_result
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.alert import Alert
from airflow_provider_llmbeam.spec.protocol.manifest import ERROR_KEY
from airflow_provider_llmbeam.spec.runner import DataflowRunner, DetachedRunner
from airflow_provider_llmbeam.triggers.airflow_compat import TaskDeferralError, TaskDeferralTimeout
from airflow_provider_llmbeam.triggers.job import JobTrigger, WaitTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_llmbeam.spec.protocol.preview import Preview


#: Shortest time between two polls of a task that is deferred during batch inference, in seconds.
MIN_DEFERRED_SECONDS = 60.0
#: Fields by which a job elsewhere is found again, and values of those that a spec needs besides.
_IDENTIFYING = ("name", "owner", "deployment", "airflow_run", "sink", "runner", "state_uri")
_STAND_INS: dict[str, Any] = {
    "source": {"uri": "gs://unknown/rows.jsonl", "key": "id"},
    "prompt": "{{ row.text }}",
    "model": {"type": "echo"},
}


class RunInferenceOperator(StoresLinks, InferenceJobOperator):
    """Reads rows, renders one prompt per row, sends the prompts to a model, and writes the answers.

    The job is an Apache Beam pipeline. It runs in a separate process on the worker, which ends with the task, or,
    with a `runner`, on Dataflow or Flink, where the task finds it again even if the worker is lost, and by default
    waits without a worker slot. A retry or a clear of the same run requests only the missing answers. Every row
    ends among the answers or, with the server's message, in the dead letter.

    Args:
        source: Source of the rows, see `spec.FilesSource`, `spec.BigQuerySource`, `spec.SqlSource`,
            `spec.KafkaSource`, `spec.PubSubSource` and `spec.RowsSource`.
        prompt: Prompt of a row, see `spec.PromptTemplate`, or its template alone. Its `template` and `system` are
            rendered per row on the workers, never by Airflow; its `variables` are rendered by Airflow.
        model: Model that answers, see `spec.GeminiModel` and `spec.OpenAIModel`, the name of a Gemini model, or
            the XCom of a model spec.
        sink: Destination of the answers, see `spec.FilesSink`, `spec.BigQuerySink`, `spec.PostgresSink`,
            `spec.MilvusSink`, `spec.KafkaSink` and `spec.PubSubSink`; or a directory.
        generation: Parameters of the answers, see `spec.Generation`.
        embedding: Parameters of the vectors, see `spec.Embedding`; requests vectors instead of texts. May be `{}`.
        cascade: Cheaper models that are asked before `model`, which answers only what they might answer
            differently, see `spec.Cascade`.
        conversation: Rows of one key that are asked in order, each with its history, see `spec.Conversation`.
        inference: Online or batch inference, the service tier, and the time by which the answers are needed, see
            `spec.Inference`.
        limits: Rates, retries, timeouts and budget, see `spec.Limits`.
        batching: Length buckets and batch size, see `spec.Batching`.
        alerts: What raises an alert, see `spec.Alerts`.
        notifiers: Notifiers of Airflow, e.g. of the providers slack, smtp and http. Each is called once for each
            alert of a run, with the alert as `llmbeam_alert` in its context.
        traces: Which rows are spans of the job's trace: `spec.Traces`.
        safety: What protects the people whose data is sent, and records who sent it: `spec.Safety`.
        cache: Sharing of answers with other runs and Dags, see `spec.Cache`.
        runner: Runner of the job, see `spec.DataflowRunner`, `spec.FlinkRunner`, `spec.PrismRunner` and
            `spec.PortableRunner`; by default a process on the worker.
        state_uri: Directory of the journal; by default below a files sink.
        kms_key_name: Key of Cloud KMS, see docs/reference/encryption.md; by default `kms_key_name` in the extra
            fields of `gcp_conn_id`.
        job_name: Name of the job; by default derived from Dag, task and run, so that retries find their journal.
            On Dataflow, a task waits for a running job of its name, and does not replace that of another run.
        llmbeam_conn_id: Connection with API key, base URL, project and location.
        gcp_conn_id: Connection whose credentials read, write and submit on Google Cloud; without a default
            connection, the credentials of the worker.
        impersonation_chain: Service account to impersonate on Dataflow, or a chain of them.
        deferrable: Whether the task releases its worker slot while the job runs on Dataflow or Flink, or during
            batch inference.

    Templated:
        `source`, `prompt_variables`, `model`, `sink`, `generation`, `embedding`, `cascade`, `conversation`,
        `inference`, `limits`, `batching`, `alerts`, `traces`, `safety`, `cache`, `runner`, `state_uri`,
        `kms_key_name`, `job_name`, `llmbeam_conn_id`, `gcp_conn_id`, `impersonation_chain`.

    XCom:
        The manifest: counts of rows, requests and tokens, the cost, and the addresses of answers, dead letter and
        report. It is also the `extra` of the events of the assets in `outlets`. `llmbeam_error`: name of the
        error of a task that failed, e.g. `DriftError`.

    Raises:
        JobSpecError: A literal argument is invalid; raised when the Dag is parsed.
        AirflowFailException: A rendered argument is invalid; raised by `execute` before anything is sent.
        AirflowSkipException: The source has no rows, and `source.on_empty` is 'skip'.
        JobError: The job started and did not finish, or no row was answered.
    """

    links: Sequence[XComLink] = (DataflowLink(), FlinkLink(), OutputLink(), ReportLink())
    ui_color = "#e8f0fe"

    _remote: JobLauncher | None = None
    _submitted: SubmittedJob | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Runs the job and waits for it."""
        with self._report_outcome(context):
            return self._run(context, started_at=time.time())

    def preview(
        self,
        rows: int = 3,
        *,
        by: Literal["random", "length"] = "random",
        seed: int = 0,
        keys: Sequence[str] = (),
        sends: bool = True,
    ) -> Preview:
        """Shows some rows with their prompts and answers, e.g. in a notebook; needs no Dag run.

        Airflow renders no template of the arguments here. The answers are kept below `state_uri`, as those of a
        job that is called `job_name` or 'preview'; other jobs use them if they share its `cache`.

        Args:
            rows: Number of rows, see `spec.evaluation.PreviewSample`.
            by: Which rows.
            seed: Seed of the selection at random.
            keys: Keys of the rows.
            sends: Whether the prompts are sent.

        Raises:
            JobSpecError: An argument is invalid, or there is no such row; nothing was sent.
            LLMBeamError: The prompts could not be sent.
        """
        from airflow_provider_llmbeam.spec.evaluation import PreviewSample
        from airflow_provider_llmbeam.spec.protocol.preview import Preview

        sample = PreviewSample.parse({"rows": rows, "by": by, "seed": seed, "keys": tuple(keys), "sends": sends})
        self._keep_written()
        data = self._spec_data(self.job_name or "preview", with_stand_in(self.inference, None))
        spec, secrets = self._connect(data)
        with google_credentials(spec, self.gcp_conn_id):
            process = JobProcess(spec, secrets, self.log, files_at=self._files_of(spec))
            return Preview.of(process.run_step("preview", sample))

    def continue_batch(
        self, context: Context, event: dict[str, Any], started_at: float | None = None
    ) -> dict[str, Any]:
        """Polls batch inference, and goes on with the job once that is over; Airflow calls it."""
        with self._report_outcome(context):
            # `dag.test` of Airflow 3.3 drops the arguments.
            return self._run(context, started_at=started_at or time.time())

    def execute_complete(
        self, context: Context, event: dict[str, Any], job: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Resumes after the event of the trigger; Airflow calls it."""
        with self._report_outcome(context):
            seen = JobResult.from_event(event)
            if job is None:  # `dag.test` of Airflow 3.3 drops the arguments
                task_job = SubmittedJob.of(self._job(context)[0], seen.job_id, is_attached=False)
            else:
                task_job = SubmittedJob(**job)
            self._remote = self._launcher(context)
            if job is not None:
                with suppress(Exception):  # for the lineage alone; the report needs no connection to the model
                    self._job(context)
            return self._conclude(task_job, seen, context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Handles the job when waiting for it failed, or took longer than `execution_timeout`."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except (TaskDeferralError, TaskDeferralTimeout) as error:
            # Airflow 3.3 replaces the arguments of `defer` with the error: the job is found by its label.
            why = f"Waiting for the job ended with {type(error).__name__}."
            try:
                spec = self._left_spec(context)
            except Exception:  # e.g. its project is that of a connection which cannot be read
                self.log.exception("%s Its job was not cancelled, and may still be running and billing.", why)
                raise error from None
            if isinstance(spec.runner, DetachedRunner):
                self._launcher(context).abandon_all(spec, why)
            else:
                self.log.warning("%s Its batch-inference jobs are left running, and bill; a retry uses them.", why)
            raise

    def on_kill(self) -> None:
        """Ends the job. The journal keeps the answers so far."""
        super().on_kill()
        if self._remote is not None:
            self._remote.kill(self._submitted)

    def _left_spec(self, context: Context) -> JobSpec:
        """Returns the spec by which the job is found again.

        What comes from connections, XComs or a deadline is left out if it cannot be read any more: the job would
        run on. Its name, deployment, runner and directories identify it.
        """
        with suppress(Exception):
            return self._job(context)[0]
        data = self._build_data(context, with_stand_in(self.inference, None))
        with suppress(ValueError):  # of pydantic
            return JobSpec.model_validate(data, context={"has_connection": True})
        own = {field: data[field] for field in _IDENTIFYING if field in data}
        return JobSpec.model_validate(own | _STAND_INS, context={"has_connection": True})

    def _run(self, context: Context, started_at: float) -> dict[str, Any]:
        spec, environment = self._job(context)
        if self.impersonation_chain and not isinstance(spec.runner, DataflowRunner):
            raise JobSpecError(
                f"`impersonation_chain`: needs a `runner` of type 'dataflow'; got {self.impersonation_chain!r}."
            )
        if isinstance(spec.runner, DetachedRunner):
            self._remote = self._launcher(context)
            return self._run_elsewhere(spec, self._remote, context)
        self._process = JobProcess(
            spec, environment, self.log, on_alert=partial(self._notify, context), files_at=self._files_of(spec)
        )
        self.store_link(context, OutputLink(), output_url(spec))
        is_deferred = self.deferrable and spec.inference.mode != "online"
        with google_credentials(spec, self.gcp_conn_id):
            outcome = self._process.run(defers=is_deferred)
        if "batch" in outcome:
            self._defer_batch(outcome["batch"]["wait_seconds"], started_at)
        return self._published(outcome["report"], self._process.page, context)

    def _defer_batch(self, wait_seconds: float, started_at: float) -> None:
        # A poll is a process of some seconds, so it is rarer than in a process that waits.
        seconds = max(wait_seconds, MIN_DEFERRED_SECONDS)
        self.log.info("Batch inference goes on at the provider. The task releases its slot for %.0f s.", seconds)
        now, timeout = time.time(), self.execution_timeout
        if timeout is not None:  # it counts all waits; Airflow fails a task that is deferred with none left
            timeout = max(timeout - timedelta(seconds=now - started_at), timedelta(0))
        self.defer(
            trigger=WaitTrigger(until=now + seconds),
            method_name="continue_batch",
            kwargs={"started_at": started_at},
            timeout=timeout,
        )

    def _launcher(self, context: Context) -> JobLauncher:
        client = partial(connect, gcp_conn_id=self.gcp_conn_id, impersonation_chain=self.impersonation_chain)
        return JobLauncher(client, context.get("task_state_store"), self.log)

    def _run_elsewhere(self, spec: JobSpec, launcher: JobLauncher, context: Context) -> dict[str, Any]:
        self._submitted = job = launcher.obtain(spec)
        self._show_links(spec, job, context)
        assert isinstance(spec.runner, DetachedRunner)
        trigger = JobTrigger(
            job=job.plain(),
            gcp_conn_id=self.gcp_conn_id,
            impersonation_chain=self.impersonation_chain,
            poll_interval_seconds=spec.runner.poll_interval_seconds,
            budget_usd=spec.limits.budget_usd,
        )
        watch = trigger.make_poller(self.log)
        seen = watch.poll()  # a job that has ended needs no trigger
        if isinstance(seen, Wait) and self.deferrable:
            self.defer(
                trigger=trigger,
                method_name="execute_complete",
                kwargs={"job": job.plain()},
                timeout=self.execution_timeout,
            )
        if isinstance(seen, Wait):
            try:
                seen = poll_until_result(watch)
            except BaseException as error:  # such as Airflow's `execution_timeout`
                self._remote = None
                launcher.abandon(job, f"Waiting for the job ended with {type(error).__name__}.")
                raise
        self._submitted = None
        return self._conclude(job, seen, context)

    def _conclude(self, job: SubmittedJob, seen: JobResult, context: Context) -> dict[str, Any]:
        assert self._remote is not None
        if seen.outcome == "cancelled" and job.is_attached:
            # A clear cancels the job of the previous try, sometimes after this try has found it. A cancellation in
            # the console looks the same; the job that is submitted now is not attached.
            self.log.warning("%s It was that of an earlier try; submitting it again.", seen.message)
            return self._run(context, started_at=time.time())
        manifest = self._remote.collect(job, seen)
        for alert in manifest["alerts"]:
            self._notify(context, Alert(**alert))
        return self._published(manifest, self._remote.page(job, manifest["report_html_uri"]), context)

    def _published(
        self, manifest: dict[str, Any], page: dict[str, Any] | None, context: Context
    ) -> dict[str, Any]:
        """Tells metrics, lineage, assets and the page in Airflow what a job reported; returns its manifest."""
        self._manifest = manifest = self._record(manifest, context)
        unless_skipped(manifest)
        self.store_link(context, ReportLink(), report_url(manifest))
        self._show_page(page, context)
        add_manifest(context, self.outlets, manifest)
        return manifest

    def _record(self, manifest: dict[str, Any], context: Context) -> dict[str, Any]:
        """Records a job for metrics and traces; returns its manifest without what only these need."""
        durations, rows = manifest.pop("latency_counts", {}), manifest.pop("traced_rows", [])
        record_job(manifest, durations, rows, context["ti"], embeds=self.embedding is not None)
        return manifest

    @contextmanager
    def _report_outcome(self, context: Context) -> Iterator[None]:
        """Counts the outcome; keeps the name of an error, and the page of a job that failed after its last row."""
        with errors_of_airflow(self), count_outcome(context["ti"]):
            try:
                yield
            except LLMBeamError as error:
                context["ti"].xcom_push(key=ERROR_KEY, value=type(error).__name__)
                self._show_page(error.page, context)
                if error.report is not None:
                    self._record(error.report, context)
                raise

    def _show_links(self, spec: JobSpec, job: SubmittedJob, context: Context) -> None:
        link, url = (
            (FlinkLink(), flink_url(job.rest_url, job.id))
            if job.rest_url
            else (DataflowLink(), dataflow_url(job.project, job.location, job.id))
        )
        self.log.info("%s: %s", link.name, url)
        self.store_link(context, link, url)
        self.store_link(context, OutputLink(), output_url(spec))
