"""`llmbeam preview`, `diff`, `evaluate` and `compare`: what is known of a job before it runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from airflow_provider_llmbeam.cli.pipeline import JOB, outcome, pipeline

_FILE = click.Path(exists=True, dir_okay=False)
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command()
@JOB
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
    from airflow_provider_llmbeam.spec.evaluation import PreviewSample
    from airflow_provider_llmbeam.spec.protocol.preview import Preview

    sample = PreviewSample.parse({"rows": rows, "by": by, "seed": seed, "keys": keys, "sends": not dry})
    with tempfile.TemporaryDirectory(prefix="llmbeam-") as directory:
        path = Path(directory, "sample.json")
        path.write_text(sample.model_dump_json())
        found = outcome(f"--spec={job}", f"--preview={path}", part="preview", as_json=as_json)
    click.echo(str(Preview.of(found)))


@click.command()
@click.argument("old", metavar="OLD.json")
@click.argument("new", metavar="NEW.json")
@_AS_JSON
def diff(old: str, new: str, as_json: bool) -> None:
    """Show what a new spec changes, and what is paid again.

    The source is read, and nothing is sent.
    """
    found = outcome(f"--spec={new}", f"--diff={old}", part="difference", as_json=as_json)
    # Imported after the entry point, which imports Beam in its own way (`pipeline.job.importing_beam`).
    from airflow_provider_llmbeam.pipeline.measure.evaluation.difference import Difference

    click.echo(str(Difference.of(found)))


@click.command()
@JOB
@click.argument("evaluation", type=_FILE, metavar="EVALUATION.json")
def evaluate(job: str, evaluation: str) -> None:
    """Evaluate a job on a golden set, and print the scores.

    Exits with 1, 99 or 0 if a score is not accepted, as `on_failure` says. See docs/evaluate.md.
    """
    pipeline(f"--spec={job}", f"--evaluate={evaluation}")


@click.command()
@JOB
@click.argument("comparison", type=_FILE, metavar="COMPARISON.json")
def compare(job: str, comparison: str) -> None:
    """Compare a job with another prompt or model.

    See docs/evaluate.md.
    """
    pipeline(f"--spec={job}", f"--compare={comparison}")
