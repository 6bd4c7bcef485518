"""Checks of the emulated Dataflow."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from llmbeam_sandbox.core.checks import is_region
from llmbeam_sandbox.core.rest import RestError
from llmbeam_sandbox.dataflow.responses import not_created, refused
from llmbeam_sandbox.storage.state import ObjectStore

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,1022}[a-z0-9])?")
# Families and shapes. Source: docs.cloud.google.com/compute/docs/machine-resource.
_MACHINE = re.compile(
    r"((n1|n2|n2d|n4|c2|c2d|c3|c3d|c4|c4a|c4d|e2|t2a|t2d|m1|m2|m3)-(standard|highmem|highcpu|ultramem|megamem)-\d{1,3}"
    r"(-lssd)?|(custom|(n1|n2|n2d|n4|e2)-custom)-\d{1,3}-\d{3,6}(-ext)?|(e2)-(micro|small|medium)|(f1-micro|g1-small)"
    r"|g2-standard-(4|8|12|16|24|32|48|96)|g4-standard-(48|96|192|384)|a2-(high|mega|ultra)gpu-\d{1,2}g"
    r"|a3-(high|mega|edge|ultra)gpu-[1248]g|a4-highgpu-8g|ct[56][lep]*-hightpu-[148]t)"
)


def check_project(project: str, projects: Sequence[str] | None, permission: str) -> None:
    """Checks that a project exists; None means that all do.

    Raises:
        RestError: It does not; the service answers as for a project without permission.
    """
    if projects is None or project in projects:
        return
    cause = f"({secrets.token_hex(8)}): Permission '{permission}' denied on project: '{project}'"
    if permission == "dataflow.jobs.create":
        raise refused(
            403,
            f"Could not create workflow; user does not have write access to project: {project} Causes: {cause}",
        )
    raise RestError(403, f"{cause}; user does not have access to project: {project}")


def check_location(location: str) -> None:
    """Checks that a location has the form of a region.

    Raises:
        RestError: It has not.
    """
    if not is_region(location):
        raise refused(
            400,
            "The workflow could not be created, since it was sent to an invalid or unreachable region "
            f"({location}). Please resubmit to a valid Cloud Dataflow region.",
        )


def check_name(name: str) -> None:
    """Checks the name of a job.

    Raises:
        RestError: It is invalid.
    """
    if not _NAME.fullmatch(name):
        raise refused(
            400,
            f"The workflow could not be created. The job name '{name}' is invalid; it must consist of only the "
            "characters [-a-z0-9], starting with a letter and ending with a letter or number.",
        )


def check_machine_type(machine_type: str) -> None:
    """Checks that a machine type is of a known family; "" leaves the choice to the service.

    Raises:
        RestError: It is not.
    """
    if machine_type and not _MACHINE.fullmatch(machine_type):
        raise not_created(f"The machine type '{machine_type}' is invalid or does not exist in this zone.")


def check_bucket(store: ObjectStore, uri: str, what: str) -> None:
    """Checks that the bucket of a gs:// address exists; "" leaves the choice to the service.

    Raises:
        RestError: It does not.
    """
    if not uri:
        return
    bucket = uri.removeprefix("gs://").removeprefix("storage.googleapis.com/").partition("/")[0]
    if bucket not in {one.name for one in store.buckets()}:
        raise not_created(f"The {what} bucket '{bucket}' of '{uri}' does not exist or is not accessible.")
