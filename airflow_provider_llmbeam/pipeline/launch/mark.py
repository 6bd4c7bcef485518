"""A file by which the workers of a job see that they have the disk of the process that launched it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Self

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import DataflowRunner, workers_have_keys


@dataclass(frozen=True, slots=True)
class LaunchMark:
    """The file.

    Attributes:
        uri: Address of the file.
        text: What the first launch of the job has written there.
    """

    uri: str
    text: str

    @classmethod
    def of(cls, spec: JobSpec) -> Self | None:
        """Writes the file unless an earlier launch has, whose job may run; `None` if the workers need none.

        Raises:
            OSError: The file cannot be read or written.
        """
        is_on_dataflow = isinstance(spec.runner, DataflowRunner)
        if is_on_dataflow or not workers_have_keys(spec.runner) or not storage.is_local(spec.paths.launch_uri):
            return None
        if storage.exists(spec.paths.launch_uri):
            return cls(spec.paths.launch_uri, storage.read(spec.paths.launch_uri).decode())
        mark = cls(spec.paths.launch_uri, uuid.uuid4().hex)
        storage.replace(mark.uri, mark.text.encode())
        return mark

    def check(self) -> None:
        """Checks on a worker that it has the disk of the launch.

        Raises:
            JobSpecError: The file of this launch is not there.
        """
        if not storage.exists(self.uri) or storage.read(self.uri).decode() != self.text:
            raise JobSpecError(
                f"`state_uri`: a worker does not see {self.uri!r}, which the launch of the job has written. Use "
                "an address that all workers reach, such as gs://…, or a disk that they mount."
            )
