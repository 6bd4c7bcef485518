"""Entry point of the container of a Flex Template: `--spec gs://….json` and the options that Dataflow adds."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence

from airflow_provider_llmbeam import exceptions
from airflow_provider_llmbeam.pipeline.command import EXIT_FAILED, Command, execute
from airflow_provider_llmbeam.spec.job.paths import LAUNCH_ERROR_NAME


def main(argv: Sequence[str]) -> int:
    """Prepares the job of a spec for Dataflow; writes the error beside the spec if that fails.

    The task reads it there: Dataflow says no more than "Template launch failed. See console logs."
    Source: cloud.google.com/dataflow/docs/guides/troubleshoot-templates
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--spec", required=True)
    options, beam_options = parser.parse_known_args(argv)
    try:
        command = Command(spec=options.spec, step="submit", beam_options=beam_options, is_child=True)
        status, outcome = execute(command)
        error = outcome.get("error")
        text = f"{exceptions.__name__}.{error['type']}: {error['message']}" if error else ""
    except Exception:  # noqa: BLE001 - whatever it is, the task is to show it
        status, text = EXIT_FAILED, traceback.format_exc()
        sys.stderr.write(text)
    if text:
        _write_error(options.spec, text)
    return status


def _write_error(spec_uri: str, text: str) -> None:
    from airflow_provider_llmbeam.pipeline import storage  # with the key of the job, if it was read

    with storage.create(f"{spec_uri.rpartition('/')[0]}/{LAUNCH_ERROR_NAME}", mime_type="text/plain") as file:
        file.write(text.encode())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
