"""`llmbeam` and its commands. What a command needs is imported when it is called: Beam takes a second."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
from typing import Any, NoReturn

import click

from airflow_provider_llmbeam import __version__
from airflow_provider_llmbeam.redaction import redact, visible

NEEDS_SANDBOX = (
    "The sandbox is a distribution of its own, `llmbeam-sandbox`, which is not installed here: "
    "`pip install ./sandbox` in a clone of this project."
)
#: The spec of a job; it may be on Cloud Storage.
_JOB = click.argument("job", metavar="JOB.json")
_FILE = click.Path(exists=True, dir_okay=False)
#: Exit code of `forget` if something is left.
_LEFT = 4
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class _Commands(click.Group):
    """The commands; Ctrl-C while one of them is still being imported ends with a sentence, as it does later."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted. The same command continues.", err=True)
            ctx.exit(128 + signal.SIGINT)  # as of a shell


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A job is described in a file, JOB.json: docs/command-line.md.",
)
@click.version_option(__version__, message="%(version)s")
def llmbeam() -> None:
    """Run an LLM over a table: no row is lost, and no answer is paid for twice."""


@llmbeam.command(context_settings={"ignore_unknown_options": True})
@_JOB
@click.option("--defer", is_flag=True, help="Exit with 75 during batch inference; the same command continues.")
@click.argument("beam_options", nargs=-1, type=click.UNPROCESSED, metavar="[BEAM OPTIONS]...")
def run(job: str, defer: bool, beam_options: tuple[str, ...]) -> None:
    """Run a job, and print the manifest of its report.

    A job that is interrupted, or fails, continues with the same command: what was answered is not sent again.
    """
    _print_outcome(job, "run", beam_options=beam_options, defers=defer)


@llmbeam.command()
@_JOB
@click.option("--rows", type=click.IntRange(1, 100), default=3, show_default=True, help="Number of rows.")
@click.option("--by", type=click.Choice(["random", "length"]), default="random", help="Which rows.")
@click.option("--seed", type=int, default=0, help="Another seed selects other rows at random.")
@click.option("--key", "keys", multiple=True, help="Show the row with this key; may be repeated.")
@click.option("--dry", is_flag=True, help="Render the prompts, and send nothing.")
@_AS_JSON
def preview(job: str, rows: int, by: str, seed: int, keys: tuple[str, ...], dry: bool, as_json: bool) -> None:
    """Show some rows with their prompts, answers, tokens and cost.

    The job keeps the answers, so that it does not pay for them again.
    """
    found = _result(job, "preview", {"rows": rows, "by": by, "seed": seed, "keys": keys, "sends": not dry})

    from airflow_provider_llmbeam.spec.protocol.preview import Preview

    _print(found, None if as_json else str(Preview.of(found)))


@llmbeam.command()
@_JOB
@click.option("--sample-size", type=click.IntRange(0), default=32, show_default=True, help="Prompts to send.")
def estimate(job: str, sample_size: int) -> None:
    """Estimate tokens, cost and duration of a job.

    A few prompts are sent; the job keeps their answers. With --sample-size 0 nothing is sent.
    """
    _print_outcome(job, "estimate", given={"sample_size": sample_size})


@llmbeam.command()
@click.argument("old", metavar="OLD.json")
@click.argument("new", metavar="NEW.json")
@_AS_JSON
def diff(old: str, new: str, as_json: bool) -> None:
    """Show what a new spec changes, and what is paid again.

    The source is read, and nothing is sent.
    """
    found = _result(new, "diff", old)

    from airflow_provider_llmbeam.pipeline.measure.diff import SpecDiff

    _print(found, None if as_json else str(SpecDiff.model_validate(found)))


@llmbeam.command()
@_JOB
@click.argument("evaluation", type=_FILE, metavar="EVALUATION.json")
def evaluate(job: str, evaluation: str) -> None:
    """Evaluate a job on a golden set, and print the scores.

    Exits with 1, 99 or 0 if a score is not accepted, as `on_failure` says. See docs/evaluate.md.
    """
    _print_outcome(job, "evaluate", given=evaluation)


@llmbeam.command()
@_JOB
@click.argument("comparison", type=_FILE, metavar="COMPARISON.json")
def compare(job: str, comparison: str) -> None:
    """Compare a job with another prompt or model.

    See docs/evaluate.md.
    """
    _print_outcome(job, "compare", given=comparison)


@llmbeam.command()
@_JOB
@click.option("--key", "keys", multiple=True, help='The key of a row, e.g. 4 or {"id": 4}; may be repeated.')
@click.option("--fingerprint", "fingerprints", multiple=True, help="The fingerprint of a prompt; may be repeated.")
@click.option("--all-jobs", is_flag=True, help="Also the other jobs below `state_uri`, e.g. of earlier Dag runs.")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@_AS_JSON
def forget(
    job: str,
    keys: tuple[str, ...],
    fingerprints: tuple[str, ...],
    all_jobs: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove the answers of rows from journal, cache, output and reports.

    Nothing is sent, and the source stays as it is. Prints what was removed, what is left, and what could not be
    reached. Exits with 0 if it is complete, 4 if something is left that it names, 1 if the job is running or
    something failed, 2 if the spec is not valid. It can be repeated. See docs/deletion.md.
    """
    rows = {"keys": keys, "fingerprints": fingerprints, "all_jobs": all_jobs, "dry_run": dry_run}
    found = _result(job, "forget", rows)

    from airflow_provider_llmbeam.pipeline.measure.forget.run import Forgotten

    _print(found, None if as_json else str(Forgotten.model_validate(found)))
    if found["left"] and not dry_run:
        sys.exit(_LEFT)


@llmbeam.command()
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
        from airflow_provider_llmbeam.operators.sweep import MAX_JOB_AGE_SECONDS, SweepEndpointsOperator

        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
        try:
            task = SweepEndpointsOperator(
                task_id="sweep",
                locations=locations,
                project=project,
                deployments=deployments or None,
                dry_run=dry_run,
                older_than_seconds=older_than_seconds,
                max_job_age_seconds=MAX_JOB_AGE_SECONDS if max_job_age_seconds is None else max_job_age_seconds,
                gcp_conn_id=gcp_conn_id,
            )
            manifest = task.sweep(logging.getLogger(__name__))
        except LLMBeamError as error:
            click.echo(redact(str(error)), err=True)
            sys.exit(1)
    _print(manifest.plain())
    sys.exit(1 if manifest.failed else 0)


@llmbeam.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def sandbox(options: tuple[str, ...]) -> None:
    """Serve emulated models, or with --env a whole cloud."""
    try:
        from llmbeam_sandbox.__main__ import main
    except ModuleNotFoundError as error:
        if error.name != "llmbeam_sandbox":
            raise
        raise click.ClickException(NEEDS_SANDBOX) from None
    sys.exit(main(options))


def _print(found: Any, text: str | None = None) -> None:
    """Prints a text for people, parts of which rows and servers wrote; without one JSON, as ASCII."""
    click.echo(json.dumps(found, indent=2) if text is None else visible(text))


def _print_outcome(job: str, step: str, **arguments: Any) -> NoReturn:
    """Executes a command, prints its outcome as JSON, and exits with its code."""
    from airflow_provider_llmbeam.pipeline.__main__ import write_outcome
    from airflow_provider_llmbeam.pipeline.command import Command, execute

    code, outcome = execute(Command(spec=job, step=step, **arguments))
    if outcome:
        write_outcome(None, outcome)
    sys.exit(code)


def _result(job: str, step: str, given: Any) -> Any:
    """Returns the result of a step; exits if there is none."""
    from airflow_provider_llmbeam.pipeline.command import Command, execute

    code, outcome = execute(Command(spec=job, step=step, given=given))
    if code:
        sys.exit(code)
    return outcome["result"]
