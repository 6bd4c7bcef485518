"""The files of a job, from Cloud Storage: the pipeline and its artifacts."""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apache_beam.io.filesystems import CompressionTypes, FileSystems
from apache_beam.portability.api import beam_runner_api_pb2

from llmbeam_sandbox.dataflow.job.fork_server import ForkServer, set_path

NOT_OPTIONS = frozenset({"runner", "pipelineUrl", "pipelineProtoHash", "display_data"})
_LISTS = frozenset({"extra_packages.txt", "submission_environment_dependencies.txt"})
"""Lists that the worker's container reads; the sandbox installs nothing."""
_SDISTS = (".tar.gz", ".tgz", ".zip", ".tar")


class StagingError(Exception):
    """The job cannot be started; the text is a message for its log."""


def whole(value: Any) -> Any:
    """Returns options as they were submitted: the job's `Struct` turns every integer into a float."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [whole(one) for one in value]
    return {name: whole(one) for name, one in value.items()} if isinstance(value, dict) else value


def read_pipeline(options: dict[str, Any]) -> Any:
    """Returns the staged pipeline.

    Raises:
        StagingError: It is missing, or is not the submitted one.
    """
    data = _read(str(options.get("pipelineUrl", "")), str(options.get("pipelineProtoHash", "")))
    return beam_runner_api_pb2.Pipeline.FromString(data)


def stage(pipeline: Any, directory: Path, unpacked: Path) -> Path:
    """Copies the artifacts of all environments to `directory`/staged, and unpacks wheels.

    Args:
        pipeline: The pipeline; its lists of artifacts are cleared.
        directory: Directory of the job.
        unpacked: Directory of unpacked wheels. Jobs with the same wheels share them, and compile them once.

    Returns:
        Directory of the unpacked wheels of this job, which belongs in front of every other import path.

    Raises:
        StagingError: An artifact is missing, differs from the submitted one, or is a source distribution.
    """
    staged = directory / "staged"
    staged.mkdir(exist_ok=True)
    wheels: set[Path] = set()
    for environment in pipeline.components.environments.values():
        for dependency in environment.dependencies:
            artifact = beam_runner_api_pb2.ArtifactUrlPayload.FromString(dependency.type_payload)
            role = beam_runner_api_pb2.ArtifactStagingToRolePayload.FromString(dependency.role_payload)
            name = Path(role.staged_name or artifact.url).name
            if name == "requirements.txt" or (name.endswith(_SDISTS) and not _is_wheel(name)):
                raise StagingError(
                    f"The sandbox installs nothing: {name!r} would be built or downloaded by the worker. Stage a "
                    "wheel instead (`--extra_package=….whl`); packages of this interpreter are there already."
                )
            file = staged / name
            file.write_bytes(_read(artifact.url, artifact.sha256))
            if _is_wheel(name):
                wheels.add(file)
        del environment.dependencies[:]
    return _unpack(sorted(wheels), directory / "site", unpacked)


def _unpack(wheels: Sequence[Path], site: Path, unpacked: Path) -> Path:
    """Returns the directory of the unpacked wheels, after it has unpacked them to `site` and renamed that."""
    digest = hashlib.sha256()
    for wheel in wheels:
        digest.update(wheel.read_bytes())
    target = unpacked / digest.hexdigest()
    if not target.exists():
        site.mkdir()
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
        with contextlib.suppress(OSError):  # another job was first
            site.rename(target)
    return target


def prefer(site: Path, forks: ForkServer) -> None:
    """Puts `site` in front of the import path, in this process and in those that it starts."""
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    set_path(path)
    own = __name__.partition(".")[0]
    if (site / own).is_dir():  # with the pipeline's code, in place of the sandbox's own copy
        forks.load([f"{own}.pipeline.build"], path)  # once instead of in each harness


def _is_wheel(name: str) -> bool:
    return name.endswith(".whl")


def _read(url: str, sha256: str) -> bytes:
    try:
        with FileSystems.open(url, compression_type=CompressionTypes.UNCOMPRESSED) as file:
            data: bytes = file.read()
    except Exception as error:
        raise StagingError(f"Staged file {url!r} cannot be read: {error}") from error
    if sha256 and hashlib.sha256(data).hexdigest() != sha256:
        raise StagingError(f"Staged file {url!r} has not the SHA-256 {sha256} that the job names.")
    return data
