"""Prism as the runner of a job: its binary, and a server that ends with the job."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from typing import Any

import grpc
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.job_server import StopOnExitJobServer
from apache_beam.runners.portability.prism_runner import PrismJobServer
from apache_beam.runners.portability.prism_runner import PrismRunner as BeamPrismRunner

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.launch.parent import PR_SET_PDEATHSIG
from airflow_provider_llmbeam.spec.runner import BINARY_VARIABLE, PrismRunner

#: Starts a program that the kernel of Linux ends with this process, also after a kill -9. The setting is lost at a
#: fork and kept by exec (prctl(2), PR_SET_PDEATHSIG).
_START = f"""
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, signal.SIGKILL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def prism_options(runner: PrismRunner) -> dict[str, Any]:
    """Returns the runner of a spec as options of Beam.

    Raises:
        JobSpecError: There is no binary.
    """
    return {
        "runner": f"{LocalPrism.__module__}.{LocalPrism.__name__}",
        "prism_location": binary_of(runner),
        "prism_log_kind": "text",
        "experiments": ["disable_logging_submission_environment"],
        "no_save_main_session": True,
    }


def binary_of(runner: PrismRunner) -> str:
    """Returns the path of the binary.

    Raises:
        JobSpecError: No path is set, or there is no program.
    """
    field = "`runner.binary_path`" if runner.binary_path else f"`{BINARY_VARIABLE}` in the environment"
    path = runner.binary_path or os.environ.get(BINARY_VARIABLE)
    if not path:
        raise JobSpecError(
            f"`runner.binary_path`: this field, or the environment variable `{BINARY_VARIABLE}`, is needed: the "
            "path of the binary of Prism on the worker, which `scripts/build-prism` builds."
        )
    found = shutil.which(path)
    if found is None:
        raise JobSpecError(f"{field}: there is no program at {path!r}.")
    return found


class LocalPrism(BeamPrismRunner):
    """Beam's runner for Prism, with a server of this process alone, which ends with it."""

    def default_job_server(self, options: PipelineOptions) -> StopOnExitJobServer:
        """Returns a server for one pipeline."""
        threading.excepthook = _without_closed_channels
        return StopOnExitJobServer(_Server(options))


def _without_closed_channels(arguments: threading.ExceptHookArgs) -> None:
    """Reports no error of a thread of Beam that reads from a server which has ended."""
    if not isinstance(arguments.exc_value, grpc.RpcError):
        threading.__excepthook__(arguments)


class _Server(PrismJobServer):
    def subprocess_cmd_and_endpoint(self) -> tuple[list[Any], str]:
        """Returns the command of the server, and its address."""
        command, endpoint = super().subprocess_cmd_and_endpoint()
        return [sys.executable, "-c", _START, *command], endpoint
