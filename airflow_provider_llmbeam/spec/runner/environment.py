"""Where the workers of a portable runner come from."""

from __future__ import annotations

import json
from typing import Literal, Self

from pydantic import model_validator

from airflow_provider_llmbeam.spec.base import FieldFaultError, SpecModel
from airflow_provider_llmbeam.spec.fields.names import HostAndPort

#: The field that each type needs; one model instead of four, as each takes time when a Dag is parsed.
_FIELDS = {"EXTERNAL": "address", "PROCESS": "command", "DOCKER": "image"}


class WorkerEnvironment(SpecModel):
    """Origin of the workers, in the terms of Beam.

    Attributes:
        type: `EXTERNAL`: processes of a worker pool that runs already, such as a sidecar of each task manager.
            `PROCESS`: processes that the runner starts on its machines. `DOCKER`: containers that it starts.
            `LOOPBACK`: threads of the process that submits the job, for a runner with one worker on the same
            machine.
        address: Address of the pool as the runner reaches it, for `EXTERNAL`, e.g. `localhost:50000`.
        command: Path of Beam's boot program on the machines of the runner, for `PROCESS`.
        image: Image with Beam's boot program and this package, for `DOCKER`.
    """

    type: Literal["EXTERNAL", "PROCESS", "DOCKER", "LOOPBACK"]
    address: HostAndPort | None = None
    command: str | None = None
    image: str | None = None

    @model_validator(mode="after")
    def _the_field_of_the_type(self) -> Self:
        needed = _FIELDS.get(self.type)
        for field in _FIELDS.values():
            value = getattr(self, field)
            if field == needed and not value:
                raise FieldFaultError(field, f"this field is needed with type {self.type!r}", value)
            if field != needed and value is not None:
                raise FieldFaultError(field, f"must be left out with type {self.type!r}", value)
        return self

    @property
    def options(self) -> dict[str, str]:
        """Options of Beam, without the dashes."""
        config = self.address or self.image
        if self.command is not None:
            config = json.dumps({"command": self.command})
        # Not `environment_options`: with them Beam 2.77 fails for EXTERNAL (`ExternalEnvironment.from_options`).
        return {"environment_type": self.type} | ({} if config is None else {"environment_config": config})
