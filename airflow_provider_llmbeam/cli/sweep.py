"""`llmbeam sweep`: the sweeper of endpoints, e.g. for cron."""

from __future__ import annotations

import contextlib
import json
import logging
import sys

import click


@click.command()
@click.option("--location", "locations", multiple=True, required=True, help="A region; may be repeated.")
@click.option("--project", help="Google Cloud project; by default that of the credentials.")
@click.option("--deployment", "deployments", multiple=True, help="An Airflow; may be repeated. Default: this one.")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option("--older-than-seconds", type=float, default=0.0, help="Time beyond the expiry.")
@click.option(
    "--max-job-age-seconds", type=float, help="Age at which a job of no task is cancelled. Default: 3 days."
)
@click.option("--gcp-conn-id", default="google_cloud_default", show_default=True, help="An Airflow connection.")
def sweep(
    locations: tuple[str, ...],
    project: str | None,
    deployments: tuple[str, ...],
    dry_run: bool,
    older_than_seconds: float,
    max_job_age_seconds: float | None,
    gcp_conn_id: str,
) -> None:
    """Delete endpoints, services and models past their expiry, and cancel orphaned jobs.

    Needs Airflow, for its connection. Prints a manifest as JSON; exits with 1 if something could not be removed.
    """
    # The log of Airflow, which goes to the standard output.
    with contextlib.redirect_stdout(sys.stderr):
        from airflow_provider_llmbeam.exceptions import LLMBeamError
        from airflow_provider_llmbeam.operators.sweep import MAX_JOB_AGE_SECONDS, swept

        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
        try:
            manifest = swept(
                locations,
                project,
                gcp_conn_id,
                None,
                deployments=deployments or None,
                dry_run=dry_run,
                older_than_seconds=older_than_seconds,
                max_job_age_seconds=MAX_JOB_AGE_SECONDS if max_job_age_seconds is None else max_job_age_seconds,
                gone_within_seconds=900.0,
                log=logging.getLogger(__name__),
            )
        except LLMBeamError as error:
            click.echo(str(error), err=True)
            sys.exit(1)
    click.echo(json.dumps(manifest.plain(), indent=2))
    sys.exit(1 if manifest.failed else 0)
