"""Entry point of the container of a Flex Template: `--spec gs://….json` and the options that Dataflow adds."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_llmbeam import exceptions
from airflow_provider_llmbeam.pipeline.__main__ import EXIT_FAILED
from airflow_provider_llmbeam.pipeline.__main__ import main as run_command
from airflow_provider_llmbeam.spec.job.paths import LAUNCH_ERROR_NAME


def main(argv: Sequence[str]) -> int:
    """Prepares the job of a spec for Dataflow; writes the error beside the spec if that fails.

    The task reads it there: Dataflow says no more than "Template launch failed. See console logs."
    Source: cloud.google.com/dataflow/docs/guides/troubleshoot-templates
    """
    with tempfile.TemporaryDirectory(prefix="llmbeam-") as directory:
        result = Path(directory, "result.json")
        try:
            status = run_command([*argv, "--submit", f"--result={result}"])
            error = json.loads(result.read_text()).get("error") if result.exists() else None
            text = f"{exceptions.__name__}.{error['type']}: {error['message']}" if error else ""
        except Exception:  # noqa: BLE001 - whatever it is, the task is to show it
            status, text = EXIT_FAILED, traceback.format_exc()
            sys.stderr.write(text)
    if text:
        _write_error(argv, text)
    return status


def _write_error(argv: Sequence[str], text: str) -> None:
    from apache_beam.io.filesystems import FileSystems

    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--spec", required=True)
    spec_uri: str = parser.parse_known_args(argv)[0].spec
    with FileSystems.create(f"{spec_uri.rpartition('/')[0]}/{LAUNCH_ERROR_NAME}", "text/plain") as file:
        file.write(text.encode())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
