"""`llmbeam sandbox`."""

from __future__ import annotations

import sys

import click


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def sandbox(options: tuple[str, ...]) -> None:
    """Serve emulated models, or with --env a whole cloud."""
    from airflow_provider_llmbeam.sandbox.__main__ import main

    sys.exit(main(options))
