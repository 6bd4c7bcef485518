"""`SweepEndpointsOperator`: removes resources that are past their expiry; and the base of the sweepers."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_llmbeam.endpoints.platform import ENDPOINT_TYPES, platform_factory
from airflow_provider_llmbeam.exceptions import JobSpecError, StillBillingError
from airflow_provider_llmbeam.hooks.deployment import deployment_names, require_deployment
from airflow_provider_llmbeam.operators.arguments import check_arguments
from airflow_provider_llmbeam.operators.errors import errors_of_airflow, retry_failed_reads
from airflow_provider_llmbeam.operators.literal import is_pending
from airflow_provider_llmbeam.spec.fields.text import from_text

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_llmbeam.endpoints.sweep import SweepManifest
    from airflow_provider_llmbeam.polling.poller import TaskLog

#: Age above which a running job of an LLM is considered forgotten, in seconds.
MAX_JOB_AGE_SECONDS = 3 * 86_400.0


class _SweepOperator(BaseOperator):
    """Base of the operators that remove what was left behind."""

    ui_color = "#fce8e6"

    @abstractmethod
    def sweep(self, log: TaskLog) -> SweepManifest:
        """Sweeps with the arguments, as Airflow rendered them."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Sweeps, and fails if something is left."""
        with errors_of_airflow():
            manifest = self.sweep(self.log)
            self.log.info("%s", manifest)
            if manifest.failed:
                raise StillBillingError(
                    f"{len(manifest.cancelled)} cancelled, {len(manifest.deleted)} deleted, "
                    f"{len(manifest.failed)} not: {' '.join(manifest.failed)}"
                )
            return manifest.plain()


class SweepEndpointsOperator(_SweepOperator):
    """Deletes this package's endpoints, services and models that are past their expiry; cancels forgotten jobs.

    Intended for a separate Dag: a teardown does not run while its Dag is paused, or if its scheduler never
    restarts. Resources and jobs are selected by their labels; those of another Airflow are swept only if
    `deployments` names it, and unlabelled ones never.

    Args:
        locations: Regions to sweep: those of the endpoints, and those of the Dataflow jobs.
        project: Google Cloud project; by default that of the connection or the credentials.
        deployments: Names of the Airflow deployments whose resources are swept, see `[llmbeam] deployment`; by
            default this one.
        dry_run: Whether to only list what would be removed.
        older_than_seconds: Minimum time since the expiry in the label `llmbeam-expires`, in seconds.
        max_job_age_seconds: Age above which a running Dataflow job of this package is cancelled, in seconds;
            `None`: never.
        gone_within_seconds: Time limit for the removal of one endpoint, in seconds.
        gcp_conn_id: Airflow connection of type Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.

    Templated:
        `locations`, `project`, `deployments`, `gcp_conn_id`, `impersonation_chain`.

    XCom:
        The resources that were deleted, the jobs that were cancelled, what failed, what was kept, and what belongs
        to other deployments.

    Raises:
        JobSpecError: A literal argument is invalid; raised when the Dag is parsed.
        AirflowFailException: A rendered argument is invalid.
        StillBillingError: A resource past its expiry could not be removed; raised after all others were handled.
            Or the connection could not be read, so that nothing was swept; Airflow's retries apply.
    """

    template_fields: Sequence[str] = ("locations", "project", "deployments", "gcp_conn_id", "impersonation_chain")

    def __init__(
        self,
        *,
        locations: Sequence[str],
        project: str | None = None,
        deployments: Sequence[str] | None = None,
        dry_run: bool = False,
        older_than_seconds: float = 0.0,
        max_job_age_seconds: float | None = MAX_JOB_AGE_SECONDS,
        gone_within_seconds: float = 900.0,
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        check_arguments(type(self), kwargs)
        super().__init__(**kwargs)
        self.locations = locations
        self.project = project
        self.deployments = deployments
        self.lists_only = dry_run
        self.older_than_seconds = older_than_seconds
        self.max_job_age_seconds = max_job_age_seconds
        self.gone_within_seconds = gone_within_seconds
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        try:
            if not is_pending(locations):
                _location_names(locations)
            if not is_pending(deployments):
                deployment_names(deployments)
        except JobSpecError as error:
            raise JobSpecError(f"Task {self.task_id!r}: {error}") from None

    def sweep(self, log: TaskLog) -> SweepManifest:
        """Sweeps every location, with the hooks of the connection; the command line calls it, too.

        Raises:
            JobSpecError: `locations` or `deployments` is invalid; nothing was swept.
            StillBillingError: The connection could not be read; nothing was swept.
        """
        from airflow_provider_llmbeam.endpoints.sweep import DataflowJobs, Endpoints, sweep
        from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook

        account = self.project, self.gcp_conn_id, self.impersonation_chain
        places = _location_names(self.locations)
        names = deployment_names(self.deployments) or (require_deployment(),)
        where, now = f"What has expired in {', '.join(map(repr, places))}", time.time()
        with retry_failed_reads(self.gcp_conn_id, where, "A retry or the next sweep tries again."):
            endpoints = [
                Endpoints(
                    platform=platform_factory(kind, *account)(location),
                    deployments=names,
                    expired_before=now - self.older_than_seconds,
                    gone_within_seconds=self.gone_within_seconds,
                    log=log,
                )
                for kind in ENDPOINT_TYPES
                for location in places
            ]
            jobs = [
                DataflowJobs(
                    service=DataflowJobHook(location, *account),
                    endpoints=endpoints,
                    deployments=names,
                    now=now,
                    max_age_seconds=self.max_job_age_seconds,
                )
                for location in places
            ]
        return sweep((*endpoints, *jobs), deployments=names, dry_run=self.lists_only, log=log)


def _location_names(locations: Any) -> tuple[str, ...]:
    """Returns the locations to sweep, perhaps from a text that Airflow rendered.

    Raises:
        JobSpecError: It is not a list, or it names none: a sweep of no region would succeed.
    """
    names = from_text(locations)
    if (
        not isinstance(names, list | tuple | set | frozenset)
        or not names
        or not all(isinstance(name, str) and name for name in names)
    ):
        raise JobSpecError(f"`locations` must be a list of regions, e.g. ['us-central1']; got {locations!r}.")
    return tuple(names)
