"""Runs the job in DIRECTORY/job.json: `python -m llmbeam_sandbox.dataflow.job DIRECTORY`.

Standard input is its lifeline and has commands, standard output has `events`, standard error is a log.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmbeam_sandbox.dataflow.job import lifeline
from llmbeam_sandbox.dataflow.job.events import Events
from llmbeam_sandbox.dataflow.job.fork_server import ForkServer

KILL_HARNESS = "kill-harness"
NEEDS_BEAM = (
    "The sandbox runs Dataflow jobs with Apache Beam, which is not installed here: `pip install "
    "'apache-beam[gcp]'`. Missing: {module}."
)
_MAX_TEXT = 30_000


def run(directory: Path, forks: ForkServer, events: Events, commands: dict[str, Callable[[], None]]) -> None:
    """Runs the job; returns after a success.

    Args:
        directory: Directory of the job.
        forks: Starts the harnesses.
        events: Writer of events.
        commands: Gets the commands that the running job accepts.
    """
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability.api import beam_provision_api_pb2
    from apache_beam.runners.portability.fn_api_runner import fn_runner

    from llmbeam_sandbox.dataflow.job import bundles, distribution, harnesses, progress, staging

    description = json.loads((directory / "job.json").read_text())
    fields: dict[str, Any] = staging.whole(description["options"])
    known = {name: value for name, value in fields.items() if name not in staging.NOT_OPTIONS}
    options = PipelineOptions.from_dictionary(known)
    FileSystems.set_options(options)
    pipeline = staging.read_pipeline(fields)
    staging.prefer(staging.stage(pipeline, directory, Path(description["unpacked"])), forks)

    file = directory / "options.json"
    file.write_text(json.dumps({"options": known}))
    # As a file: as a `Struct` the harness would get every integer as a float, and refuse it.
    os.environ |= {"PIPELINE_OPTIONS_FILE": str(file), "SEMI_PERSISTENT_DIRECTORY": str(directory)}
    harnesses.replace_environments(pipeline)
    harnesses.POOL.forks = forks
    commands[KILL_HARNESS] = harnesses.POOL.kill_one
    harnesses.POOL.on_exit = lambda cause: events.message("WARNING", cause)
    names = {key: found.unique_name for key, found in pipeline.components.pcollections.items()}
    counted = progress.Progress(names, events.metrics)
    counted.install()
    distributed = distribution.Distribution(description["workers"])
    distributed.install()
    retries = bundles.Retries(
        description["repeats"],
        description["shuffles"],
        lambda text: events.message("ERROR", text[:_MAX_TEXT]),
        counted.end,
        distributed,
    )
    retries.install()

    provision = fn_runner.ExtendedProvisionInfo(
        beam_provision_api_pb2.ProvisionInfo(retrieval_token="sandbox"), job_name=description["name"]
    )
    runner = fn_runner.FnApiRunner(provision_info=provision, progress_request_frequency=progress.REQUEST_SECONDS)
    runner._num_workers = description["workers"]
    events.state("RUNNING")
    events.message("BASIC", f"Starting {description['workers']} workers in {description['location']}...")
    runner.run_via_runner_api(pipeline, options)
    events.message("BASIC", "Worker pool stopped.")


def explained(error: Exception) -> str:
    """Returns the message of an error for the log of the job; called in its handler."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in ("apache_beam", "grpc"):
        return NEEDS_BEAM.format(module=error.name)
    # By name: the module may have been loaded a second time, out of a staged wheel.
    if type(error).__name__ in ("BundleFailedError", "StagingError"):
        return str(error)
    return f"Workflow failed. Causes: {traceback.format_exc()}"


def main(directory: Path) -> int:
    """Runs the job, writes its final state, and returns the exit status."""
    forks = ForkServer.fork()  # before the first thread
    events = Events()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)

    commands: dict[str, Callable[[], None]] = {}

    def execute(command: str) -> None:
        if command in commands:
            commands[command]()

    # The sandbox removes the files itself, unless it is killed.
    lifeline.hold(execute, lambda: shutil.rmtree(directory.parent, ignore_errors=True))
    try:
        run(directory, forks, events, commands)
    except Exception as error:  # noqa: BLE001 - every error belongs in the job's log
        traceback.print_exc()
        text = explained(error)
        events.message("ERROR", text[-_MAX_TEXT:])
        events.state("FAILED")
        return 1
    events.state("DONE")
    return 0


if __name__ == "__main__":
    # Threads of Beam and gRPC may still wait for a harness.
    status = main(Path(sys.argv[1]))
    sys.stderr.flush()
    os._exit(status)
