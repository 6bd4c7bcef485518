"""How a command calls the pipeline, which takes a second to import."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import click

#: The spec of a job; it may be on Cloud Storage.
JOB = click.argument("job", metavar="JOB.json")


def pipeline(*arguments: str) -> NoReturn:
    """Runs the entry point of the pipeline, and exits with its code."""
    from airflow_provider_llmbeam.pipeline.__main__ import main

    sys.exit(main(arguments))


def outcome(*arguments: str, part: str, as_json: bool) -> Any:
    """Returns a part of the outcome of the entry point of the pipeline; exits if it failed, or has printed it."""
    from airflow_provider_llmbeam.pipeline.__main__ import main

    with tempfile.TemporaryDirectory(prefix="llmbeam-") as directory:
        path = Path(directory, "result.json")
        if code := main((*arguments, f"--result={path}")):
            sys.exit(code)
        found = json.loads(path.read_text())[part]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        sys.exit()
    return found
