"""`llmbeam sandbox`."""

from __future__ import annotations

import sys

import click

NEEDS_SANDBOX = (
    "The sandbox is a distribution of its own, `llmbeam-sandbox`, which is not installed here: "
    "`pip install ./sandbox` in a clone of this project."
)


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
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
