"""`llmbeam` and its commands."""

from __future__ import annotations

import signal
from typing import Any

import click

from airflow_provider_llmbeam import __version__
from airflow_provider_llmbeam.cli.forget import forget
from airflow_provider_llmbeam.cli.job import estimate, run
from airflow_provider_llmbeam.cli.measure import compare, diff, evaluate, preview
from airflow_provider_llmbeam.cli.sandbox import sandbox
from airflow_provider_llmbeam.cli.sweep import sweep


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


for command in (run, preview, estimate, diff, evaluate, compare, forget, sweep, sandbox):
    llmbeam.add_command(command)
