"""Jobs on Google Cloud Dataflow."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.providers.google.common.hooks.base_google import GoogleBaseHook
from airflow.sdk import Connection

from airflow_provider_llmbeam.counts import Counts
from airflow_provider_llmbeam.exceptions import AccessDeniedError, JobSpecError, RequestRefusedError
from airflow_provider_llmbeam.hooks.dataflow_job import DataflowJob
from airflow_provider_llmbeam.hooks.dataflow_replies import counts_of, job_of, texts_of
from airflow_provider_llmbeam.hooks.google_errors import (
    CloudRequest,
    before_submission,
    is_transient,
    translated,
    usable_connection,
)
from airflow_provider_llmbeam.spec.identity import JOB_LABEL

if TYPE_CHECKING:
    from google.api_core.retry import Retry

#: Of one request, and of all tries of one.
REQUEST_SECONDS = 30.0
RETRY_SECONDS = 60.0
#: Of a cancellation: a trigger's `on_kill` is given 30 s (`[triggerer] on_kill_timeout`).
CANCEL_REQUEST_SECONDS = 10.0
CANCEL_SECONDS = 20.0
#: Jobs of a region that are searched, those that run first.
MAX_LISTED = 5_000
#: Error messages that are read of a job, and kept.
MAX_MESSAGES = 500
KEPT_MESSAGES = 50


class DataflowJobHook(GoogleBaseHook):
    """Finds, looks at, launches and cancels the jobs of one project and region.

    Without a connection `google_cloud_default` the credentials are those of the machine.

    Args:
        location: Region, e.g. `europe-west1`.
        project: Left out, that of the connection or the credentials.
        gcp_conn_id: Airflow connection of type `google_cloud_platform`.
        impersonation_chain: Service account to act as, or several, each acting as the next.

    Raises:
        AccessDeniedError: There is no connection of that name.
    """

    def __init__(
        self,
        location: str,
        project: str | None = None,
        gcp_conn_id: str = GoogleBaseHook.default_conn_name,
        impersonation_chain: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__(gcp_conn_id=gcp_conn_id, impersonation_chain=impersonation_chain)
        self.location = location
        self._project = project
        self._clients: dict[str, Any] = {}

    @classmethod
    def get_connection(cls, conn_id: str) -> Any:
        """Reads the connection, or makes an empty one where there is none of the default name."""
        try:
            return super().get_connection(conn_id)
        except AirflowNotFoundException as error:
            if conn_id == cls.default_conn_name:
                return Connection(conn_id=conn_id, conn_type=cls.conn_type)
            raise AccessDeniedError(
                f"`gcp_conn_id`: there is no connection {conn_id!r}. Add it under Admin, Connections, with the "
                "type Google Cloud."
            ) from error

    @property
    def project(self) -> str:
        """The project of the jobs.

        Raises:
            CloudError: There are no credentials to ask.
            JobSpecError: Nobody names a project.
        """
        if self._project is None:
            with usable_connection(self.gcp_conn_id):
                _, self._project = self.get_credentials_and_project_id()
        if not self._project:
            raise JobSpecError(
                f"`runner.project` is left out, and neither connection {self.gcp_conn_id!r} nor its credentials "
                "name a project. Nothing was sent or billed."
            )
        return self._project

    def get(self, job_id: str) -> DataflowJob:
        """Looks at a job.

        Raises:
            CloudError: See `google_errors`.
        """
        from google.cloud.dataflow_v1beta3 import GetJobRequest, JobView

        request = self._request(f"show job {job_id!r}", missing=f"job {job_id!r} in {self.location!r}")
        with translated(request):
            # Without this view neither labels nor environment come back.
            asked = GetJobRequest(**self._place(), job_id=job_id, view=JobView.JOB_VIEW_DESCRIPTION)
            return job_of(self._client("JobsV1Beta3Client").get_job(asked, **self._patience()))

    def find(self, identity: str, *, active_only: bool = False) -> list[DataflowJob]:
        """Finds the jobs of an identity, see `spec.identity`: every try of one task.

        The service filters by no label, and says that a list shows summaries, which may lack them: a name of ours
        starts with the identity, so either will do.

        Args:
            identity: Value of the label `llmbeam-job`.
            active_only: Leaves out jobs that are over.

        Returns:
            The newest first.

        Raises:
            CloudError: See `google_errors`.
        """
        from google.cloud.dataflow_v1beta3 import ListJobsRequest

        which = ListJobsRequest.Filter.ACTIVE if active_only else ListJobsRequest.Filter.ALL
        with translated(self._request(f"list the jobs of {self.location!r}", missing=f"region {self.location!r}")):
            asked = ListJobsRequest(**self._place(), filter=which, page_size=1_000)
            pager = self._client("JobsV1Beta3Client").list_jobs(asked, **self._patience())
            found = [job for job in map(job_of, islice(pager, MAX_LISTED)) if belongs_to(job, identity)]
        return sorted(found, key=lambda job: job.created_at.timestamp() if job.created_at else 0.0, reverse=True)

    def cancel(self, job_id: str) -> None:
        """Asks for the end of a job; one that is over stays as it is.

        Raises:
            CloudError: See `google_errors`.
        """
        from google.cloud.dataflow_v1beta3 import Job, JobState, UpdateJobRequest

        request = self._request(f"cancel job {job_id!r}", missing=f"job {job_id!r} in {self.location!r}")
        wanted = Job(requested_state=JobState.JOB_STATE_CANCELLED)
        try:
            with translated(request):
                asked = UpdateJobRequest(**self._place(), job_id=job_id, job=wanted)
                patience = {"retry": _retry(CANCEL_SECONDS), "timeout": CANCEL_REQUEST_SECONDS}
                self._client("JobsV1Beta3Client").update_job(asked, **patience)
        except RequestRefusedError:
            if not self.get(job_id).is_over:
                raise

    def error_messages(self, job_id: str) -> list[str]:
        """Reads what went wrong in a job, the oldest first, each text once, the last 50 of them.

        Raises:
            CloudError: See `google_errors`.
        """
        from google.cloud.dataflow_v1beta3 import JobMessageImportance, ListJobMessagesRequest

        with translated(self._request(f"show the messages of job {job_id!r}", missing=f"job {job_id!r}")):
            asked = ListJobMessagesRequest(
                **self._place(), job_id=job_id, minimum_importance=JobMessageImportance.JOB_MESSAGE_ERROR
            )
            pager = self._client("MessagesV1Beta3Client").list_job_messages(asked, **self._patience())
            return texts_of(islice(pager, MAX_MESSAGES), KEPT_MESSAGES)

    def counts(self, job_id: str, *, running: bool = True) -> Counts:
        """Reads the counters of a job.

        Args:
            job_id: Its id.
            running: Whether bundles in progress count.

        Raises:
            CloudError: See `google_errors`.
        """
        from google.cloud.dataflow_v1beta3 import GetJobMetricsRequest

        with translated(self._request(f"show the counters of job {job_id!r}", missing=f"job {job_id!r}")):
            asked = GetJobMetricsRequest(**self._place(), job_id=job_id)
            reply = self._client("MetricsV1Beta3Client").get_job_metrics(asked, **self._patience())
            return counts_of(reply.metrics, running=running)

    def launch_flex_template(
        self,
        template_uri: str,
        *,
        name: str,
        parameters: Mapping[str, str],
        environment: Mapping[str, Any],
        labels: Mapping[str, str],
    ) -> DataflowJob:
        """Starts a job from a Flex Template, or finds the one of that name that runs already.

        Args:
            template_uri: `gs://….json`.
            name: Of the job; Dataflow runs at most one of a name.
            parameters: Of the template.
            environment: Fields of `FlexTemplateRuntimeEnvironment`, see `flex_template.environment`.
            labels: Of the job.

        Raises:
            JobSpecError: It was refused, and there is no job.
            CloudUnavailableError: Whether there is a job is not known; `find` tells.
        """
        from google.api_core.exceptions import Conflict
        from google.cloud.dataflow_v1beta3 import (
            FlexTemplateRuntimeEnvironment,
            LaunchFlexTemplateParameter,
            LaunchFlexTemplateRequest,
        )

        with (
            before_submission(),
            translated(self._request(f"launch {template_uri!r}", missing=f"template {template_uri!r}")),
        ):
            parameter = LaunchFlexTemplateParameter(
                job_name=name,
                container_spec_gcs_path=template_uri,
                parameters=dict(parameters),
                environment=FlexTemplateRuntimeEnvironment(**environment, additional_user_labels=dict(labels)),
            )
            asked = LaunchFlexTemplateRequest(**self._place(), launch_parameter=parameter)
            client = self._client("FlexTemplatesServiceClient")
            try:
                # Not tried again here: a reply that got lost may have been that of a job.
                return job_of(client.launch_flex_template(asked, retry=None, timeout=REQUEST_SECONDS).job)
            except Conflict:
                if (running := self._running(name)) is None:
                    raise
                self.log.info("Job %r runs already as %r.", name, running.job_id)
                return running

    def check_bucket(self, uri: str) -> None:
        """Sees whether a directory on Cloud Storage can be read: lists at most one object.

        Raises:
            JobSpecError: There is no such bucket, or the account may not list it.
            CloudUnavailableError: Cloud Storage did not answer.
        """
        from google.cloud.storage import Client  # type: ignore[import-untyped]

        address = urlsplit(uri)
        bucket = f"gs://{address.netloc}"
        with before_submission():
            request = CloudRequest(
                action=f"list {uri!r}",
                project=self.project,
                service="storage.googleapis.com",
                role="roles/storage.objectAdmin",
                missing=f"bucket {bucket!r}",
            )
            with usable_connection(self.gcp_conn_id):
                credentials = self.get_credentials()
            with translated(request):
                # The bucket itself may be read by fewer accounts: roles/storage.objectAdmin lacks
                # storage.buckets.get.
                client = Client(self.project, credentials, client_options=self.get_client_options())
                retry = _retry(RETRY_SECONDS)
                prefix = address.path.lstrip("/")
                objects = client.list_blobs(
                    address.netloc, prefix=prefix, max_results=1, timeout=REQUEST_SECONDS, retry=retry
                )
                next(iter(objects), None)

    def _running(self, name: str) -> DataflowJob | None:
        from google.cloud.dataflow_v1beta3 import ListJobsRequest

        asked = ListJobsRequest(**self._place(), filter=ListJobsRequest.Filter.ACTIVE, name=name)
        jobs = map(job_of, self._client("JobsV1Beta3Client").list_jobs(asked, **self._patience()))
        return next((job for job in jobs if job.name == name and not job.is_over), None)

    def _client(self, name: str) -> Any:
        """A client over HTTP: gRPC is a second way through a proxy, and has threads that outlive a fork."""
        if name not in self._clients:
            from google.cloud import dataflow_v1beta3

            with usable_connection(self.gcp_conn_id):
                credentials = self.get_credentials()
            self._clients[name] = getattr(dataflow_v1beta3, name)(
                credentials=credentials, transport="rest", client_options=self.get_client_options()
            )
        return self._clients[name]

    def _place(self) -> dict[str, str]:
        return {"project_id": self.project, "location": self.location}

    def _request(self, action: str, *, missing: str) -> CloudRequest:
        return CloudRequest(action=action, project=self.project, missing=missing)

    def _patience(self) -> dict[str, Any]:
        return {"retry": _retry(RETRY_SECONDS), "timeout": REQUEST_SECONDS}


def belongs_to(job: DataflowJob, identity: str) -> bool:
    """Whether a job has an identity, by its label or by its name."""
    named = re.fullmatch(rf"{re.escape(identity)}-[0-9a-f]{{8}}", job.name) is not None
    return job.labels.get(JOB_LABEL, identity if named else "") == identity


def _retry(seconds: float) -> Retry:
    from google.api_core.retry import Retry

    return Retry(predicate=is_transient, initial=1.0, maximum=10.0, timeout=seconds)
