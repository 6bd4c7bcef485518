"""`SweepEndpointsOperator`: what outlived its expiry is removed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_llmbeam.endpoints.platforms.factory import ENDPOINT_TYPES, platform_factory
from airflow_provider_llmbeam.exceptions import JobSpecError, StillBillingError
from airflow_provider_llmbeam.tasks.errors import errors_of_airflow

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_llmbeam.endpoints.sweep import SweepManifest
    from airflow_provider_llmbeam.polling.task_log import TaskLog

#: A job of an LLM that runs for longer has been forgotten.
MAX_JOB_AGE_SECONDS = 3 * 86_400.0


class SweepEndpointsOperator(BaseOperator):
    """Deletes endpoints, services and models of ours that are past their expiry, and cancels forgotten jobs.

    For a Dag of its own: a teardown does not run while its Dag is paused, nor when a scheduler never comes back.
    It goes by the labels alone, so that it also finds what another Airflow made, and touches nothing without them.

    Args:
        locations: Regions to look in.
        project: Left out, that of the connection or the credentials.
        dry_run: Only lists what would be removed.
        older_than_seconds: Beyond the expiry that the label `llmbeam-expires` tells.
        max_job_age_seconds: A job of ours on Dataflow that runs for longer is cancelled; `None`: never.
        gone_within_seconds: How long to wait for one endpoint to be gone.
        gcp_conn_id: Connection whose credentials ask.
        impersonation_chain: Service account to act as, or several, each acting as the next.

    Templated:
        `locations`, `project`, `gcp_conn_id`, `impersonation_chain`.

    XCom:
        What was deleted, what failed, what was kept.

    Raises:
        StillBillingError: After all else was done: something that is due could not be removed.
    """

    template_fields: Sequence[str] = ("locations", "project", "gcp_conn_id", "impersonation_chain")
    ui_color = "#fce8e6"

    def __init__(
        self,
        *,
        locations: Sequence[str],
        project: str | None = None,
        dry_run: bool = False,
        older_than_seconds: float = 0.0,
        max_job_age_seconds: float | None = MAX_JOB_AGE_SECONDS,
        gone_within_seconds: float = 900.0,
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.locations = locations
        self.project = project
        self.lists_only = dry_run
        self.older_than_seconds = older_than_seconds
        self.max_job_age_seconds = max_job_age_seconds
        self.gone_within_seconds = gone_within_seconds
        self.gcp_conn_id = gcp_conn_id
        self.impersonation_chain = impersonation_chain
        if not locations:
            raise JobSpecError(f"Task {self.task_id!r}: `locations` must name a region; got {locations!r}.")

    def execute(self, context: Context) -> dict[str, Any]:
        """Looks in every location."""
        with errors_of_airflow():
            manifest = swept(
                self.locations,
                self.project,
                self.gcp_conn_id,
                self.impersonation_chain,
                dry_run=self.lists_only,
                older_than_seconds=self.older_than_seconds,
                max_job_age_seconds=self.max_job_age_seconds,
                gone_within_seconds=self.gone_within_seconds,
                log=self.log,
            )
            self.log.info("%s", manifest)
            if manifest.failed:
                raise StillBillingError(
                    f"{len(manifest.deleted)} removed, {len(manifest.failed)} not: {' '.join(manifest.failed)}"
                )
            return manifest.plain()


def swept(
    locations: Sequence[str],
    project: str | None,
    gcp_conn_id: str,
    impersonation_chain: str | Sequence[str] | None,
    *,
    dry_run: bool,
    older_than_seconds: float,
    max_job_age_seconds: float | None,
    gone_within_seconds: float,
    log: TaskLog,
) -> SweepManifest:
    """Sweeps with the hooks of a connection; see `SweepEndpointsOperator`."""
    from airflow_provider_llmbeam.endpoints.sweep import sweep
    from airflow_provider_llmbeam.hooks.dataflow import DataflowJobHook

    sites = [
        platform_factory(kind, project, gcp_conn_id, impersonation_chain)(location)
        for kind in ENDPOINT_TYPES
        for location in locations
    ]
    return sweep(
        sites,
        [DataflowJobHook(location, project, gcp_conn_id, impersonation_chain) for location in locations],
        now=time.time(),
        dry_run=dry_run,
        older_than_seconds=older_than_seconds,
        max_job_age_seconds=max_job_age_seconds,
        gone_within_seconds=gone_within_seconds,
        log=log,
    )
