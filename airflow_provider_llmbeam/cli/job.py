"""`llmbeam run` and `llmbeam estimate`."""

from __future__ import annotations

import click

from airflow_provider_llmbeam.cli.pipeline import JOB, pipeline


@click.command(context_settings={"ignore_unknown_options": True})
@JOB
@click.option("--defer", is_flag=True, help="Exit with 75 during batch inference; the same command continues.")
@click.argument("beam_options", nargs=-1, type=click.UNPROCESSED, metavar="[BEAM OPTIONS]...")
def run(job: str, defer: bool, beam_options: tuple[str, ...]) -> None:
    """Run a job, and print the manifest of its report.

    A job that is interrupted, or fails, continues with the same command: what was answered is not sent again.
    """
    pipeline(f"--spec={job}", *(["--defer"] if defer else []), *beam_options)


@click.command()
@JOB
@click.option("--sample-size", type=click.IntRange(0), default=32, show_default=True, help="Prompts to send.")
def estimate(job: str, sample_size: int) -> None:
    """Estimate tokens, cost and duration of a job.

    A few prompts are sent; the job keeps their answers. With --sample-size 0 nothing is sent.
    """
    pipeline(f"--spec={job}", "--estimate", f"--sample-size={sample_size}")
