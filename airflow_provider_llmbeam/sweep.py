"""The sweeper for cron: `python -m airflow_provider_llmbeam.sweep --project p --location us-central1`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence

from airflow_provider_llmbeam.exceptions import LLMBeamError
from airflow_provider_llmbeam.operators.sweep import MAX_JOB_AGE_SECONDS, swept

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the manifest as JSON.

    Returns:
        Exit status: 0, or 1 if a resource past its expiry could not be removed.
    """
    parser = argparse.ArgumentParser(prog="python -m airflow_provider_llmbeam.sweep", description=__doc__)
    parser.add_argument("--project", help="left out, that of the credentials")
    parser.add_argument("--location", action="append", required=True, help="a region; may be given several times")
    parser.add_argument(
        "--deployment",
        action="append",
        help="an Airflow; may be given several times; left out, that of this machine",
    )
    parser.add_argument("--dry-run", action="store_true", help="only list what would be removed")
    parser.add_argument("--older-than-seconds", type=float, default=0.0, help="beyond the expiry")
    parser.add_argument("--max-job-age-seconds", type=float, default=MAX_JOB_AGE_SECONDS)
    parser.add_argument("--gcp-conn-id", default="google_cloud_default", help="an Airflow connection")
    given = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    try:
        manifest = swept(
            given.location,
            given.project,
            given.gcp_conn_id,
            None,
            deployments=given.deployment,
            dry_run=given.dry_run,
            older_than_seconds=given.older_than_seconds,
            max_job_age_seconds=given.max_job_age_seconds,
            gone_within_seconds=900.0,
            log=log,
        )
    except LLMBeamError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(manifest.plain(), indent=2) + "\n")
    return 1 if manifest.failed else 0


if __name__ == "__main__":
    sys.exit(main())
