"""`llmbeam` and its commands. What a command needs is imported when it is called: Beam takes a second."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import click

from airflow_provider_llmbeam import __version__
from airflow_provider_llmbeam.redaction import redact, visible

NEEDS_SANDBOX = (
    "The sandbox is a distribution of its own, `llmbeam-sandbox`, which is not installed here: "
    "`pip install` its wheel, or `./sandbox` in a clone of this project."
)
#: A task of a Dag file, or the spec of a job, which may be on Cloud Storage.
_JOB = click.argument("job", metavar="JOB")
_FILE = click.Path(exists=True, dir_okay=False)
#: Exit code of `forget` if something is left.
_LEFT = 4
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_DATE = click.option("--date", "when", help="Of a task: day, time or id of the Dag run. Default: the newest one.")
_MAP_INDEX = click.option("--map-index", type=click.IntRange(0), help="Of a mapped task: index of the instance.")


def _of_task(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options with which a command finds the run of a task."""
    return _DATE(_MAP_INDEX(command))


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
    epilog="JOB is a task of a Dag file, dags/x.py::task, or the JSON of a spec: docs/command-line.md.",
)
@click.version_option(__version__, message="%(version)s")
def llmbeam() -> None:
    """Run an LLM over a table: no row is lost, and no answer is paid for twice."""


@llmbeam.command(context_settings={"ignore_unknown_options": True})
@click.argument("job", metavar="JOB.json")
@click.option("--defer", is_flag=True, help="Exit with 75 during batch inference; the same command continues.")
@_AS_JSON
@click.argument("beam_options", nargs=-1, type=click.UNPROCESSED, metavar="[BEAM OPTIONS]...")
def run(job: str, defer: bool, as_json: bool, beam_options: tuple[str, ...]) -> None:
    """Run a job without Airflow; --json prints the manifest of its report.

    A job that is interrupted, or fails, continues with the same command: what was answered is not sent again.
    """
    _finish(*_execute(spec=job, step="run", beam_options=beam_options, defers=defer), as_json)


@llmbeam.command()
@_JOB
@click.option("--rows", type=click.IntRange(1, 100), default=1, show_default=True, help="Number of rows to show.")
@click.option("--key", "keys", multiple=True, help="Show the row with this key; may be repeated.")
@_of_task
@_AS_JSON
def check(job: str, rows: int, keys: tuple[str, ...], as_json: bool, **task: Any) -> None:
    """Check a job, and show what it would ask.

    Nothing is sent to a model. Its source is read, and its templates, columns, sink, keys and limits are checked.
    Exits with 2 if it could not start, and with 3 if it is over budget.
    """
    ended = _execute(spec=job, step="check", given={"rows": rows, "keys": keys}, **task)

    from airflow_provider_llmbeam.pipeline.measure.check import JobCheck

    _finish(*ended, as_json, JobCheck.model_validate)


@llmbeam.command()
@_JOB
@click.option("--rows", type=click.IntRange(1, 100), default=3, show_default=True, help="Number of rows.")
@click.option("--by", type=click.Choice(["random", "length"]), default="random", help="Which rows.")
@click.option("--seed", type=int, default=0, help="Another seed selects other rows at random.")
@click.option("--key", "keys", multiple=True, help="Show the row with this key; may be repeated.")
@click.option("--dry", is_flag=True, help="Render the prompts, and send nothing.")
@_of_task
@_AS_JSON
def preview(
    job: str, rows: int, by: str, seed: int, keys: tuple[str, ...], dry: bool, as_json: bool, **task: Any
) -> None:
    """Show some rows with their prompts, answers, tokens and cost.

    The answers are kept: other runs of a task use them with `cache` or `job_name`.
    """
    given = {"rows": rows, "by": by, "seed": seed, "keys": keys, "sends": not dry}
    ended = _execute(spec=job, step="preview", given=given, **task)

    from airflow_provider_llmbeam.spec.protocol.preview import Preview

    _finish(*ended, as_json, Preview.of)


@llmbeam.command()
@_JOB
@click.option("--sample-size", type=click.IntRange(0), default=32, show_default=True, help="Prompts to send.")
@_of_task
@_AS_JSON
def estimate(job: str, sample_size: int, as_json: bool, **task: Any) -> None:
    """Estimate tokens, cost and duration of a job.

    A few prompts are sent, and their answers are kept as by `preview`. With --sample-size 0 nothing is sent.
    Exits with 3 if the job is over budget.
    """
    ended = _execute(spec=job, step="estimate", given={"sample_size": sample_size}, **task)

    from airflow_provider_llmbeam.pipeline.measure.estimate.estimate import Estimate

    _finish(*ended, as_json, Estimate.model_validate)


@llmbeam.command()
@_JOB
@click.option("--points", type=click.IntRange(1), default=20, show_default=True, help="Lines of the table.")
@_of_task
@_AS_JSON
def cascade(job: str, points: int, as_json: bool, **task: Any) -> None:
    """Calibrate the cascade of a job, and show what it would save.

    The sample is answered by all stages and by the model; nothing else is sent. The next run uses the answers, and
    the calibration.
    """
    ended = _execute(spec=job, step="cascade", given={"max_points": points}, **task)

    from airflow_provider_llmbeam.pipeline.cascade.trial import CascadeTrial

    _finish(*ended, as_json, CascadeTrial.model_validate)


@llmbeam.command()
@_JOB
@click.option("--run-for", "run_for_seconds", type=click.FloatRange(0, min_open=True), help="Seconds to run.")
@click.option("--drain", is_flag=True, help="End as soon as no message is left.")
@click.option("--http", metavar="HOST:PORT", help="Serve /healthz, /readyz and /metrics here.")
@click.option("--member", help="Name of this process in the group. Default: by host and free number.")
@_of_task
def stream(job: str, when: str | None, map_index: int | None, **run: Any) -> None:
    """Answer the messages of a Kafka topic as they come, each paid once.

    Prints a line of counts as JSON every ten seconds. SIGTERM ends it when what is in flight is answered and
    committed; the same command continues from there, on as many machines as there are partitions.
    """
    code, _ = _execute(spec=job, step="stream", given=run, when=when, map_index=map_index)
    sys.exit(code)


@llmbeam.command()
@click.argument("jobs", nargs=-1, required=True, metavar="[OLD.json] JOB")
@_of_task
@_AS_JSON
def diff(jobs: tuple[str, ...], as_json: bool, **task: Any) -> None:
    """Show what changed since the last run of a job, or since another spec, and what is paid again.

    The source is read, and nothing is sent.
    """
    if len(jobs) > 2:
        raise click.UsageError("Expected a job, and before it the JSON of an earlier spec, if any.")
    ended = _execute(spec=jobs[-1], step="diff", given=jobs[0] if len(jobs) == 2 else None, **task)

    from airflow_provider_llmbeam.pipeline.measure.diff import SpecDiff

    _finish(*ended, as_json, SpecDiff.model_validate)


@llmbeam.command()
@_JOB
@click.option("--key", "keys", multiple=True, help='The key of a row, e.g. 4 or {"id": 4}; may be repeated.')
@click.option("--fingerprint", "fingerprints", multiple=True, help="The fingerprint of a prompt; may be repeated.")
@click.option("--all-jobs", is_flag=True, help="Also the other jobs below `state_uri`, e.g. of earlier Dag runs.")
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@_of_task
@_AS_JSON
def forget(
    job: str,
    keys: tuple[str, ...],
    fingerprints: tuple[str, ...],
    all_jobs: bool,
    dry_run: bool,
    as_json: bool,
    **task: Any,
) -> None:
    """Remove the answers of rows from journal, cache, output and reports.

    Nothing is sent, and the source stays as it is. Prints what was removed, what is left, and what could not be
    reached. Exits with 0 if it is complete, 4 if something is left that it names, 1 if the job is running or
    something failed, 2 if the spec is not valid. It can be repeated. See docs/deletion.md.
    """
    rows = {"keys": keys, "fingerprints": fingerprints, "all_jobs": all_jobs, "dry_run": dry_run}
    ended = _execute(spec=job, step="forget", given=rows, **task)

    from airflow_provider_llmbeam.pipeline.measure.forget.run import Forgotten

    is_left = ended[1]["result"]["left"] and not dry_run
    _finish(_LEFT if is_left else ended[0], ended[1], as_json, Forgotten.model_validate)


def _add_command(name: str, step: str, file: str, text: str) -> None:
    """Adds the command of a step that a file asks for; one in brackets may be left out."""

    @llmbeam.command(name, help=text)
    @_JOB
    @click.argument("given", type=_FILE, metavar=file, required=not file.startswith("["))
    @_of_task
    @_AS_JSON
    def do_step(job: str, given: str | None, as_json: bool, **task: Any) -> None:
        _finish(*_execute(spec=job, step=step, given=given, **task), as_json)


_add_command(
    "evaluate",
    "evaluate",
    "[EVALUATION.json]",
    "Evaluate a job on a golden set; an `EvaluateInferenceOperator` has its own.\n\n"
    "Exits with 1, 99 or 0 if a score is not accepted, as `on_failure` says. See docs/evaluate.md.",
)
_add_command(
    "compare",
    "compare",
    "[COMPARISON.json]",
    "Compare a job with another prompt or model; a `CompareInferenceOperator` has its own.\n\n"
    "See docs/evaluate.md.",
)
_add_command(
    "sample", "sample_answers", "SAMPLE.json", "Select answers for a review by a person.\n\nSee docs/review.md."
)
_add_command(
    "add-golden", "add_golden", "VERDICTS.json", "Add reviewed answers to a golden set.\n\nSee docs/review.md."
)


@llmbeam.command()
@click.argument("job", metavar="[JOB]", required=False)
@click.option("--send", "sends", is_flag=True, help="Also run trial jobs of 1 to 10 rows, which are billed.")
@click.option("--gcp-conn-id", default="google_cloud_default", show_default=True, help="Of JOB.json.")
@_of_task
@_AS_JSON
def doctor(
    job: str | None, sends: bool, gcp_conn_id: str, when: str | None, map_index: int | None, as_json: bool
) -> None:
    """Check what a job needs: account, APIs, permissions, quota, buckets, tables, network, packages.

    Prints what holds, what does not, and the command that fixes it; without JOB, of this machine and the account.
    Changes nothing, and sends nothing that is billed without --send. Needs Airflow, for its connections. Exits
    with 1 if something does not hold.
    """
    # The log of Airflow, which goes to the standard output.
    with contextlib.redirect_stdout(sys.stderr):
        from airflow_provider_llmbeam.doctor.run import diagnose

        logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
        found = diagnose(job, when=when, map_index=map_index, gcp_conn_id=gcp_conn_id, sends=sends)
    _print(found.plain(), None if as_json else str(found))
    sys.exit(1 if found.has_fault else 0)


@llmbeam.command()
def schema() -> None:
    """Print the JSON Schema of JOB.json, for editors and validators."""
    from airflow_provider_llmbeam.spec import JobSpec

    _print(JobSpec.json_schema())


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
        from airflow_provider_llmbeam.operators.dag_task import airflow_of_tasks
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
            with airflow_of_tasks():
                manifest = task.sweep(logging.getLogger(__name__))
        except LLMBeamError as error:
            click.echo(redact(str(error)), err=True)
            sys.exit(1)
    _print(manifest.plain())
    sys.exit(1 if manifest.failed else 0)


def _read_percent(_context: click.Context, _option: click.Parameter, value: str) -> float:
    """Reads a share such as `2%`."""
    try:
        number, is_percent = float(value.removesuffix("%")), value.endswith("%")
    except ValueError:
        number, is_percent = 0.0, False
    if not is_percent or not 0 <= number < float("inf"):
        raise click.BadParameter(f"Expected a percentage, e.g. 2%; got {value!r}.")
    return number / 100


_TIME = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M"])


@llmbeam.command()
@click.argument("states", nargs=-1, required=True, metavar="STATE...")
@click.option("--export", required=True, metavar="PROJECT.DATASET.TABLE", help="Cloud Billing export in BigQuery.")
@click.option("--since", type=_TIME, help="Begin of the usage, in UTC. Default: yesterday.")
@click.option("--until", type=_TIME, help="Its end. Default: a day later.")
@click.option("--max-difference", default="2%", show_default=True, callback=_read_percent, help="The bound.")
@click.option(
    "--ignore", "ignored", multiple=True, metavar="CAUSE", help="A cause that does not count; may be repeated."
)
@_AS_JSON
def reconcile(
    states: tuple[str, ...],
    export: str,
    since: datetime | None,
    until: datetime | None,
    max_difference: float,
    ignored: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare the cost in the reports below STATE with the bill.

    STATE is a `state_uri`, or the `uri` of a files sink. Prints the difference for each set of labels, by cause:
    other-calls, cached-tokens, price-change, missing-day, unexplained. Exits with 1 if it is above the bound, and
    with 2 if there is nothing to compare. See docs/reference/reconcile.md.
    """
    from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError
    from airflow_provider_llmbeam.pipeline.measure.reconcile.differences import CAUSES
    from airflow_provider_llmbeam.pipeline.measure.reconcile.run import reconcile_bill

    if unknown := set(ignored).difference(CAUSES):
        raise click.UsageError(f"`--ignore` {', '.join(sorted(unknown))}: expected of {', '.join(CAUSES)}.")
    now = datetime.now(UTC)
    yesterday = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    begin = yesterday if since is None else since.replace(tzinfo=UTC)
    end = begin + timedelta(days=1) if until is None else until.replace(tzinfo=UTC)
    try:
        found = reconcile_bill(
            states,
            export,
            since=begin,
            until=end,
            now=now,
            max_difference_ratio=max_difference,
            ignored=ignored,
        )
    except LLMBeamError as error:
        click.echo(redact(str(error)), err=True)
        sys.exit(2 if isinstance(error, JobSpecError) else 1)
    _print(found.model_dump(mode="json"), None if as_json else str(found))
    sys.exit(0 if found.agrees else 1)


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


def _execute(**command: Any) -> tuple[int, dict[str, Any]]:
    """Executes a command; returns its exit code and its outcome, or exits if it has none."""
    from airflow_provider_llmbeam.pipeline.command import Command, execute

    code, outcome = execute(Command(**command))
    outcome.pop("log", None)  # it is printed
    if not outcome or "error" in outcome:  # the log has it
        sys.exit(code)
    return code, outcome


def _finish(
    code: int, outcome: dict[str, Any], as_json: bool, restore: Callable[[Any], Any] | None = None
) -> NoReturn:
    """Prints an outcome, as JSON or as the text that `restore` makes of it, if the log has none; exits."""
    from airflow_provider_llmbeam.pipeline.__main__ import write_outcome

    if as_json:
        write_outcome(None, outcome)
    elif restore is not None:
        _print(outcome, str(restore(outcome["result"])))
    sys.exit(code)
