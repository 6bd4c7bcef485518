"""Airflow hook of Google Cloud Dataflow."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import RequestRefusedError
from airflow_provider_llmbeam.hooks.google.base import REQUEST_SECONDS, RegionalHook, retry
from airflow_provider_llmbeam.hooks.google.errors import before_submission
from airflow_provider_llmbeam.redaction import redact
from airflow_provider_llmbeam.spec.identity import JOB_LABEL
from airflow_provider_llmbeam.spec.protocol.counts import NAMESPACE, Counts
from airflow_provider_llmbeam.spec.remote_job import Phase, RemoteJob, newest_first

if TYPE_CHECKING:
    from google.cloud.dataflow_v1beta3 import Job, JobMessage, MetricUpdate

#: Timeouts of one cancellation request and of all its retries, in seconds: a trigger's `on_kill` is limited to
#: 30 s (`[triggerer] on_kill_timeout`).
CANCEL_REQUEST_SECONDS = 10.0
CANCEL_SECONDS = 20.0
#: Largest number of jobs of a region that are searched; running jobs come first.
MAX_LISTED = 5_000
#: Largest numbers of error messages of a job that are read, and that are kept.
MAX_MESSAGES = 500
KEPT_MESSAGES = 50
#: Any identity in the name of a job, see `spec.identity.identity`.
_IDENTITY = r"[a-z][a-z0-9-]*-[0-9a-f]{12}"

#: All states of `JobState` in google-cloud-dataflow-client 0.13.
PHASES: Mapping[str, Phase] = MappingProxyType(
    {
        "JOB_STATE_UNKNOWN": "running",
        "JOB_STATE_STOPPED": "running",  # the service's name for a job that has not started
        "JOB_STATE_RUNNING": "running",
        "JOB_STATE_DONE": "done",
        "JOB_STATE_FAILED": "failed",
        "JOB_STATE_CANCELLED": "cancelled",
        "JOB_STATE_UPDATED": "replaced",
        "JOB_STATE_DRAINING": "running",
        "JOB_STATE_DRAINED": "drained",
        "JOB_STATE_PENDING": "running",
        "JOB_STATE_CANCELLING": "cancelling",
        "JOB_STATE_QUEUED": "running",
        "JOB_STATE_RESOURCE_CLEANING_UP": "running",
        "JOB_STATE_PAUSING": "running",
        "JOB_STATE_PAUSED": "running",
    }
)
_COUNTS = frozenset(field.name for field in fields(Counts))


class DataflowJobHook(RegionalHook):
    """Finds, reads, launches and cancels the jobs of one project and region."""

    service = "dataflow.googleapis.com"
    role = "roles/dataflow.developer"

    def get(self, job_id: str, within_seconds: float | None = None) -> RemoteJob:
        """Returns a job.

        Args:
            job_id: ID of the job.
            within_seconds: Timeout of a single request, in seconds; by default there are retries.

        Raises:
            CloudError: See `hooks.google.errors`.
        """
        from google.cloud.dataflow_v1beta3 import GetJobRequest, JobView

        with self._translate_errors(f"show job {job_id!r}", missing=f"job {job_id!r} in {self.location!r}"):
            # Other views contain neither labels nor environment.
            request = GetJobRequest(**self._place(), job_id=job_id, view=JobView.JOB_VIEW_DESCRIPTION)
            options = self._options() if within_seconds is None else {"timeout": within_seconds, "retry": None}
            return job_of(self._client("JobsV1Beta3Client").get_job(request, **options))

    def find(self, identity: str, *, active_only: bool = False) -> list[RemoteJob]:
        """Returns the jobs of an identity, see `spec.identity`: those of every try of one task.

        The service cannot filter by label. Names given by this package start with the identity, so a job is
        identified by its label or its name.

        Args:
            identity: Value of the label `llmbeam-job`.
            active_only: Whether to leave out jobs that have ended.

        Returns:
            The jobs, newest first.

        Raises:
            CloudError: See `hooks.google.errors`.
        """
        listed = self._list(re.escape(identity), active_only=active_only)
        found = [job for job in listed if belongs_to(job, identity)]
        return newest_first(found)

    def active(self) -> list[RemoteJob]:
        """Lists the jobs of this package that have not ended.

        Raises:
            CloudError: See `hooks.google.errors`.
        """
        listed = self._list(_IDENTITY, active_only=True)
        return [job for job in listed if JOB_LABEL in job.labels and not job.is_over]

    def _list(self, identity: str, *, active_only: bool) -> list[RemoteJob]:
        """Lists the jobs that have labels, or a name with an identity; of the latter the labels are read.

        A list always contains summaries, which have no labels (`ListJobsRequest.view` and `JobView` in
        google-cloud-dataflow-client 0.13).

        Args:
            identity: Regular expression of the identity.
            active_only: Whether to leave out jobs that have ended.
        """
        from google.cloud.dataflow_v1beta3 import ListJobsRequest

        which = ListJobsRequest.Filter.ACTIVE if active_only else ListJobsRequest.Filter.ALL
        with self._translate_errors(f"list the jobs of {self.location!r}", missing=f"region {self.location!r}"):
            request = ListJobsRequest(**self._place(), filter=which, page_size=1_000)
            pager = self._client("JobsV1Beta3Client").list_jobs(request, **self._options())
            listed = [job_of(job) for job in islice(pager, MAX_LISTED)]
        named = re.compile(rf"{identity}-[0-9a-f]{{8}}")
        found = [job for job in listed if job.labels or named.fullmatch(job.name)]
        return [job if job.labels else self.get(job.job_id) for job in found]

    def cancel(self, job_id: str) -> None:
        """Requests the cancellation of a job; a job that has ended is left unchanged.

        Raises:
            CloudError: See `hooks.google.errors`.
        """
        from google.cloud.dataflow_v1beta3 import Job, JobState, UpdateJobRequest

        translated = self._translate_errors(
            f"cancel job {job_id!r}", missing=f"job {job_id!r} in {self.location!r}"
        )
        wanted = Job(requested_state=JobState.JOB_STATE_CANCELLED)
        try:
            with translated:
                request = UpdateJobRequest(**self._place(), job_id=job_id, job=wanted)
                client = self._client("JobsV1Beta3Client")
                client.update_job(request, retry=retry(CANCEL_SECONDS), timeout=CANCEL_REQUEST_SECONDS)
        except RequestRefusedError:
            if not self.get(job_id).is_over:
                raise

    def error_messages(self, job_id: str) -> list[str]:
        """Returns the error messages of a job, oldest first, each text once, at most the last 50.

        Raises:
            CloudError: See `hooks.google.errors`.
        """
        from google.cloud.dataflow_v1beta3 import JobMessageImportance, ListJobMessagesRequest

        with self._translate_errors(f"show the messages of job {job_id!r}", missing=f"job {job_id!r}"):
            request = ListJobMessagesRequest(
                **self._place(), job_id=job_id, minimum_importance=JobMessageImportance.JOB_MESSAGE_ERROR
            )
            pager = self._client("MessagesV1Beta3Client").list_job_messages(request, **self._options())
            return texts_of(islice(pager, MAX_MESSAGES), KEPT_MESSAGES)

    def counts(self, job_id: str, *, running: bool = True) -> Counts:
        """Returns the counters of a job.

        Args:
            job_id: ID of the job.
            running: Whether to count bundles in progress.

        Raises:
            CloudError: See `hooks.google.errors`.
        """
        from google.cloud.dataflow_v1beta3 import GetJobMetricsRequest

        with self._translate_errors(f"show the counters of job {job_id!r}", missing=f"job {job_id!r}"):
            request = GetJobMetricsRequest(**self._place(), job_id=job_id)
            reply = self._client("MetricsV1Beta3Client").get_job_metrics(request, **self._options())
            return counts_of(reply.metrics, running=running)

    def launch_flex_template(
        self,
        template_uri: str,
        *,
        name: str,
        parameters: Mapping[str, str],
        environment: Mapping[str, Any],
        labels: Mapping[str, str],
    ) -> RemoteJob:
        """Launches a job from a Flex Template, or finds the running job of that name.

        Args:
            template_uri: Address of the template, `gs://….json`.
            name: Name of the job; Dataflow runs at most one job of a name.
            parameters: Parameters of the template.
            environment: Fields of `FlexTemplateRuntimeEnvironment`, see `flex_template.environment`.
            labels: Labels of the job.

        Raises:
            JobSpecError: The request was refused, and there is no job.
            CloudUnavailableError: It is unknown whether the job exists; `find` can determine it.
        """
        from google.api_core.exceptions import Conflict
        from google.cloud.dataflow_v1beta3 import (
            FlexTemplateRuntimeEnvironment,
            LaunchFlexTemplateParameter,
            LaunchFlexTemplateRequest,
        )

        with (
            before_submission(),
            self._translate_errors(f"launch {template_uri!r}", missing=f"template {template_uri!r}"),
        ):
            parameter = LaunchFlexTemplateParameter(
                job_name=name,
                container_spec_gcs_path=template_uri,
                parameters=dict(parameters),
                environment=FlexTemplateRuntimeEnvironment(**environment, additional_user_labels=dict(labels)),
            )
            request = LaunchFlexTemplateRequest(**self._place(), launch_parameter=parameter)
            client = self._client("FlexTemplatesServiceClient")
            try:
                # Not retried here: a lost reply may have been that of a created job.
                return job_of(client.launch_flex_template(request, retry=None, timeout=REQUEST_SECONDS).job)
            except Conflict:
                if (running := self._find_running(name)) is None:
                    raise
                self.log.info("Job %r runs already as %r.", name, running.job_id)
                return running

    def _find_running(self, name: str) -> RemoteJob | None:
        from google.cloud.dataflow_v1beta3 import ListJobsRequest

        request = ListJobsRequest(**self._place(), filter=ListJobsRequest.Filter.ACTIVE, name=name)
        jobs = map(job_of, self._client("JobsV1Beta3Client").list_jobs(request, **self._options()))
        return next((job for job in jobs if job.name == name and not job.is_over), None)

    def _client(self, name: str) -> Any:
        from google.cloud import dataflow_v1beta3

        return self._rest_client(getattr(dataflow_v1beta3, name))

    def _place(self) -> dict[str, str]:
        return {"project_id": self.project, "location": self.location}


def belongs_to(job: RemoteJob, identity: str) -> bool:
    """Returns whether a job has an identity, by its label or its name."""
    named = re.fullmatch(rf"{re.escape(identity)}-[0-9a-f]{{8}}", job.name) is not None
    return job.labels.get(JOB_LABEL, identity if named else "") == identity


def job_of(reply: Job) -> RemoteJob:
    """Returns a job; a state that is unknown to the client keeps its number."""
    from google.cloud import dataflow_v1beta3

    states: Any = dataflow_v1beta3.JobState  # an enum, although its annotations do not show it
    # Read from the underlying message, since proto-plus warns about unknown numbers.
    number = type(reply).pb(reply).current_state
    names = {member.value: member.name for member in states}
    created_at: Any = reply.create_time  # proto-plus converts it to a datetime
    state = names.get(number, f"JOB_STATE_{number}")
    return RemoteJob(
        job_id=reply.id,
        name=reply.name,
        state=state,
        phase=PHASES.get(state, "unknown"),
        created_at=datetime.fromtimestamp(created_at.timestamp(), UTC) if created_at else None,
        labels=dict(reply.labels),
        replaced_by=reply.replaced_by_job_id or None,
    )


def counts_of(metrics: Iterable[MetricUpdate], *, running: bool) -> Counts:
    """Returns the sums of this package's counters over the steps of the pipeline.

    Dataflow reports a counter of a step twice: as committed, and with what bundles in progress have counted
    (`tentative`), which decreases when a bundle fails. One of the two counts is used, never both.

    Args:
        metrics: Metrics of the job.
        running: Whether to count bundles in progress.
    """
    tentative: dict[tuple[str, str], int] = {}
    committed: dict[tuple[str, str], int] = {}
    for metric in metrics:
        name, context = metric.name.name, metric.name.context
        if context.get("namespace") != NAMESPACE or name not in _COUNTS or not metric.scalar:
            continue
        values = tentative if context.get("tentative") == "true" else committed
        values[name, context.get("step", "")] = _whole(metric.scalar)
    preferred, other = (tentative, committed) if running else (committed, tentative)
    totals: Counter[str] = Counter()
    for (name, _), value in {**other, **preferred}.items():
        totals[name] += value
    return Counts(**totals)


def texts_of(messages: Iterable[JobMessage], limit: int) -> list[str]:
    """Returns the last `limit` distinct texts, in order, without secrets that have a known form or place."""
    return [redact(text) for text in [*dict.fromkeys(message.message_text for message in messages)][-limit:]]


def _whole(scalar: object) -> int:
    # A 64-bit integer is a string in JSON.
    return int(float(scalar)) if isinstance(scalar, str | int | float) else 0
