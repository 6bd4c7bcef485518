"""The batches of Pub/Sub's messages of a job, and the file that says which run has them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator

from pydantic import ValidationError

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.queues.deliveries import Deliveries
from airflow_provider_llmbeam.pipeline.queues.position_file import position_uri, run_of
from airflow_provider_llmbeam.spec.job import JobSpec

_ENDING, _ACKNOWLEDGED = ".jsonl", ".acknowledged"


class Batches:
    """The batches of a job, which all its runs share.

    Args:
        spec: The job.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._run = run_of(spec)
        self._uri = position_uri(spec)
        self._directory = f"{self._uri.removesuffix('.json')}/"

    def files(self) -> list[str]:
        """Returns the names of the batches whose files are there."""
        found = storage.match(f"{self._directory}*{_ENDING}")
        return [uri.rpartition("/")[2].removesuffix(_ENDING) for uri in found]

    def state(self) -> Deliveries:
        """Reads which run has which batch.

        Raises:
            JobSpecError: The file is not valid.
        """
        return self._decoded(storage.read_if_exists(self._uri))

    def is_published(self) -> bool:
        """Returns whether the answers of the run are published."""
        return self._run in self.state().published

    def read(self, name: str) -> bytes:
        """Returns the lines of a batch."""
        return storage.read(self._uri_of(name))

    def ids(self, names: Iterable[str]) -> Iterator[str]:
        """Returns the ids of the messages of batches."""
        for name in names:
            for line in self.read(name).splitlines():
                yield json.loads(line)["pubsub_message_id"]

    def write(self, lines: bytes) -> str:
        """Writes a batch, which is complete or not there; returns its name. Names are in the order of time."""
        storage.make_private(self._directory)
        name = f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}"
        storage.replace(self._uri_of(name), lines)
        return name

    def acknowledged(self, name: str) -> None:
        """Records that Pub/Sub has the acknowledgement of a batch."""
        storage.replace(f"{self._directory}{name}{_ACKNOWLEDGED}", b"")

    def begin(self, names: Iterable[str]) -> None:
        """Records the batches of the run."""
        names, files = list(names), self.files()
        storage.change(self._uri, lambda old: self._encoded(self._decoded(old).begun(self._run, names, files)))

    def check(self) -> None:
        """Checks, before the answers are published, that no other run has published their messages.

        Raises:
            JobFailedError: Another run has.
        """
        if self.state().again(self._run, self.files()) is None:
            raise JobFailedError(
                f"Another run of job {self._spec.name!r} has published messages of this one meanwhile, see "
                f"{self._uri!r}. Nothing was published; the answers are in the journal. Let one run at a time "
                "read the subscription, with `max_active_runs=1`."
            )

    def publish(self) -> None:
        """Records that the answers of the run are published, and deletes its batches."""
        taken = self.state().taken.get(self._run, ())
        unknown = [name for name in taken if not storage.exists(f"{self._directory}{name}{_ACKNOWLEDGED}")]
        ids, now, keeps = list(self.ids(unknown)), time.time(), self._spec.airflow_run is not None

        def published(old: bytes | None) -> bytes:
            return self._encoded(self._decoded(old).after_publication(self._run, ids, now, keeps=keeps))

        storage.change(self._uri, published)
        self.delete(taken)

    def delete(self, names: Iterable[str]) -> None:
        """Deletes batches."""
        for name in names:
            storage.delete(storage.match(f"{self._directory}{name}.*"))

    def _uri_of(self, name: str) -> str:
        return f"{self._directory}{name}{_ENDING}"

    def _encoded(self, state: Deliveries) -> bytes:
        return state.model_dump_json().encode()

    def _decoded(self, content: bytes | None) -> Deliveries:
        if content is None:
            return Deliveries()
        try:
            return Deliveries.model_validate_json(content)
        except ValidationError as error:
            raise JobSpecError(
                f"The state of job {self._spec.name!r} in {self._uri!r} is not valid: {error.errors()[0]['msg']}. "
                "Restore the file, or delete it: the batches beside it are then answered again."
            ) from None
