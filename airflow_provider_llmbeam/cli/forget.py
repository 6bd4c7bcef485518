"""`llmbeam forget`: removes the answers of some rows."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from airflow_provider_llmbeam.cli.pipeline import JOB, outcome


@click.command()
@JOB
@click.option("--key", "keys", multiple=True, help='The key of a row, e.g. 4 or {"id": 4}; may be repeated.')
@click.option("--fingerprint", "fingerprints", multiple=True, help="The fingerprint of a prompt; may be repeated.")
@click.option("--all-jobs", is_flag=True, help="Also the other jobs below `state_uri`, e.g. of earlier Dag runs.")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def forget(
    job: str,
    keys: tuple[str, ...],
    fingerprints: tuple[str, ...],
    all_jobs: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove the answers of rows from journal, cache, output and reports.

    Nothing is sent, and the source stays as it is. Prints what was removed, and what could not be reached. Exits
    with 0 if it is complete, 1 if the job is running or something failed, 2 if the spec is not valid. It can be
    repeated. See docs/deletion.md.
    """
    from airflow_provider_llmbeam.exceptions import JobSpecError
    from airflow_provider_llmbeam.spec.safety import RowsToForget

    fields = {"keys": keys, "fingerprints": fingerprints, "all_jobs": all_jobs, "dry_run": dry_run}
    try:
        rows = RowsToForget.parse(fields)
    except JobSpecError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    with tempfile.TemporaryDirectory(prefix="llmbeam-") as directory:
        path = Path(directory, "rows.json")
        path.write_text(rows.model_dump_json())
        found = outcome(f"--spec={job}", f"--forget={path}", part="forgotten", as_json=as_json)

    from airflow_provider_llmbeam.pipeline.measure.forget.outcome import Forgotten

    click.echo(str(Forgotten.model_validate(found)))
