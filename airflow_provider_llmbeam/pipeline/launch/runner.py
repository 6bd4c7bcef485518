"""The Beam runner of a job, and its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.launch.flink import flink_options
from airflow_provider_llmbeam.pipeline.launch.portable import portable_options
from airflow_provider_llmbeam.pipeline.launch.prism import prism_options
from airflow_provider_llmbeam.spec.identity import dataflow_name, labels
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import (
    DataflowRunner,
    DirectRunner,
    FlinkRunner,
    PortableRunner,
    PrismRunner,
    first_workers,
    max_workers,
)

#: Number of concurrent bundles per worker: while the last requests of one finish, the next ones keep the window of
#: requests full. Waiting for a server takes no CPU, but each bundle holds a batch of rows in memory.
HARNESS_THREADS = 4


EXPERIMENTS = (
    # One process per worker, independent of its cores: the number of workers is computed for that.
    "no_use_multiple_sdk_containers",
    # Beam would run `pip freeze` for its log, which takes a second or more with 300 packages.
    "disable_logging_submission_environment",
)


def runner_of(
    spec: JobSpec, beam_options: Sequence[str], worker_package: Path | None = None
) -> tuple[FnApiRunner | None, PipelineOptions]:
    """Returns the runner of the spec, or of `beam_options`; a local one is always `FnApiRunner`.

    `DirectRunner`, the default of Beam, may use Prism instead, a binary that it downloads at run time.

    Args:
        spec: The job.
        beam_options: Options of the command line, which override those of the spec.
        worker_package: Package that the workers of Dataflow install.

    Returns:
        The runner, or `None` if the options determine it, and the options.

    Raises:
        JobSpecError: The runner is local, and Beam has no such option: it would ignore `--dry`, and send the rows.
    """
    key = beam_arguments({"dataflow_kms_key": spec.kms_key_name})  # each runner hands it to its workers
    options = PipelineOptions([*_options_of_spec(spec, worker_package), *key, *beam_options])
    named = options.view_as(StandardOptions).runner or "direct"
    short = named.rpartition(".")[2].lower().removesuffix("runner")  # Beam accepts each of these spellings
    if short not in ("direct", "fnapi"):  # another one may have options that Beam does not know
        return None, options
    given = PipelineOptions([*beam_options])
    if unknown := given.get_all_options(retain_unknown_options=True).keys() - given.get_all_options().keys():
        listed = ", ".join(f"`--{name}`" for name in sorted(unknown))
        raise JobSpecError(
            f"{listed}: neither this command nor Beam has this option. Expected options of Beam, e.g. `--runner`; "
            "`llmbeam COMMAND --help` lists those of each command."
        )
    return FnApiRunner(), options


def _options_of_spec(spec: JobSpec, worker_package: Path | None) -> list[str]:
    match spec.runner:
        case DirectRunner():
            return []
        case PrismRunner():
            return beam_arguments(prism_options(spec.runner))
        case PortableRunner():
            return beam_arguments(portable_options(spec, spec.runner))
        case FlinkRunner():
            return beam_arguments(flink_options(spec, spec.runner))
        case DataflowRunner():
            return dataflow_options(spec, worker_package)


def workers_are_elsewhere(spec: JobSpec, runner: FnApiRunner | None, options: PipelineOptions) -> bool:
    """Returns whether the workers may be other processes whose counts nobody sees but by their progress objects.

    On Dataflow whoever waits for the job reads its counters.

    Args:
        spec: The job.
        runner: The runner of `runner_of`.
        options: The options of `runner_of`.
    """
    if isinstance(spec.runner, DataflowRunner):
        return False
    return runner is None or options.view_as(DirectOptions).direct_running_mode == "multi_processing"


def dataflow_options(spec: JobSpec, worker_package: Path | None) -> list[str]:
    """Returns the runner of the spec as Beam arguments.

    Raises:
        JobSpecError: The spec has no project.
    """
    runner = spec.runner
    assert isinstance(runner, DataflowRunner)
    if runner.project is None:
        raise JobSpecError("`runner.project`: this field is needed.")
    service_options = []
    if runner.max_runtime_seconds is not None:
        # Source: cloud.google.com/dataflow/docs/reference/service-options
        service_options.append(f"max_workflow_runtime_walltime_seconds={runner.max_runtime_seconds}")
    options = beam_arguments(
        {
            "runner": "DataflowRunner",
            "project": runner.project,
            "region": runner.location,
            "job_name": dataflow_name(spec),
            "labels": [f"{key}={value}" for key, value in labels(spec).items()],
            "temp_location": spec.paths.temp_uri,
            "staging_location": f"{spec.paths.temp_uri}staging",
            "machine_type": runner.machine_type,
            "num_workers": first_workers(runner, spec.limits),
            "max_num_workers": max_workers(runner, spec.limits),
            "number_of_worker_harness_threads": HARNESS_THREADS,
            "experiments": EXPERIMENTS,
            "dataflow_service_options": service_options,
            "service_account_email": runner.service_account,
            "network": runner.network,
            "subnetwork": runner.subnetwork,
            "no_use_public_ips": not runner.use_public_ips,
            "flexrs_goal": runner.flexrs and runner.flexrs.upper(),
            "sdk_container_image": runner.container_image,
            "extra_package": worker_package and str(worker_package),
            # Nothing that is pickled is defined in `__main__`.
            "no_save_main_session": True,
        }
    )
    return [*options, *beam_arguments(runner.options)]


def beam_arguments(options: Mapping[str, Any]) -> list[str]:
    """Returns options as arguments that Beam's command line takes.

    Args:
        options: Values by option. `True` becomes a flag, each item of a list or tuple an argument of its own; an
            option that is `False` or `None` is left out.
    """
    arguments: list[str] = []
    for name, value in options.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            if item is True:
                arguments.append(f"--{name}")
            elif item is not False and item is not None:
                arguments.append(f"--{name}={item}")
    return arguments
