"""Inspects texts with Sensitive Data Protection: many in one request, within its limits and its quota."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn

from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.engine.length_buckets import LengthBuckets
from airflow_provider_llmbeam.engine.outcome import Failure, Outcome
from airflow_provider_llmbeam.engine.output import OutputParser
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RetryPolicy
from airflow_provider_llmbeam.exceptions import JobRefusedError, JobSpecError, ModelUnavailableError
from airflow_provider_llmbeam.pipeline.pacing.machine_governor import governor_of, shared
from airflow_provider_llmbeam.pipeline.privacy.dlp.store import FindingStore, store_of
from airflow_provider_llmbeam.pipeline.privacy.dlp.table import (
    MAX_BYTES,
    SERVICE,
    Table,
    config_of,
    findings_in,
    is_truncated,
    pack,
)
from airflow_provider_llmbeam.pipeline.privacy.finding import Cell, Finding, Inspected
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.model import GeminiModel, VertexEndpointModel
from airflow_provider_llmbeam.spec.runner import DataflowRunner, limits_of_a_worker
from airflow_provider_llmbeam.spec.safety.privacy import DlpDetector

if TYPE_CHECKING:
    from airflow_provider_llmbeam.pipeline.privacy.dlp.backend import InspectBackend

#: Timeout of one request, in seconds, and the maximum number of its attempts. Half a megabyte takes a few seconds.
TIMEOUT_SECONDS, MAX_ATTEMPTS = 60.0, 5

#: What every request of the job would meet, so that the job ends.
_OF_THE_JOB = frozenset({"unauthorized", "not_found", "bad_request"})
_FIELD = "`safety.privacy.detectors`"
_UNSENT = "No prompt of these rows was sent or billed."


@dataclass
class Inspection:
    """What was found in texts, and what that took.

    Attributes:
        found: The findings in each text, or why it could not be inspected.
        requests: Number of requests that were answered.
        text_bytes: Size of their texts in bytes, which is billed.
        throttled_seconds: Time that requests have waited for the quota, in seconds.
    """

    found: dict[Cell, Inspected] = field(default_factory=dict)
    requests: int = 0
    text_bytes: int = 0
    throttled_seconds: float = 0.0


class Inspector:
    """Inspects texts. One for each process, shared by its threads.

    Args:
        detector: The detector.
        project: Project that is billed.
        limits: Quota and number of concurrent requests.

    Raises:
        JobSpecError: There are no Google credentials.
    """

    def __init__(self, detector: DlpDetector, project: str, limits: Limits) -> None:
        self._detector = detector
        self._project = project
        self._limits = limits
        self._config = config_of(detector)
        #: One inspection at a time: the limits are those of the process.
        self._lock = threading.Lock()
        quota = (limits.requests_per_minute, limits.expected_workers)
        identity = repr((SERVICE, project, detector.location, detector.base_url, quota))
        self._governor = shared(governor_of(limits), hashlib.sha256(identity.encode()).hexdigest()[:16])
        self._open_backend()  # a missing credential is an error before a row is read

    def inspect(self, cells: Collection[Cell]) -> Inspection:
        """Inspects texts; each one that differs is in one request, unless that has too many findings.

        Raises:
            JobRefusedError: The service rejects every request: no permission, or an unknown infoType or location.
            ModelUnavailableError: The service cannot be reached.
        """
        tables, too_long = pack(dict.fromkeys(cells), self._config)
        done = Inspection()
        for cell in too_long:
            done.found[cell] = f"it does not fit into a request to {SERVICE} of {MAX_BYTES:,} bytes"
        # A thread of its own: that of the caller may run an event loop, as a notebook does.
        with self._lock, ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, self._inspect(tables, done)).result()
        return done

    async def _inspect(self, tables: list[Table], done: Inspection) -> None:
        engine = self._open_engine()
        try:
            while tables:
                prompts = [Prompt(table.encode_body(self._config)) for table in tables]
                answered = zip(tables, await engine.answer(prompts), strict=True)
                tables = [rest for table, outcome in answered for rest in self._take(table, outcome, done)]
        except ModelUnavailableError as error:
            raise ModelUnavailableError(
                f"{_FIELD}: {SERVICE} cannot be reached: correct `base_url` or the network. {_UNSENT}"
            ) from error
        finally:
            done.throttled_seconds = engine.throttled_seconds
            await engine.aclose()

    def _take(self, table: Table, outcome: Outcome, done: Inspection) -> tuple[Table, ...]:
        """Adds what was found in a table; returns tables that are to be sent."""
        if isinstance(outcome, Failure):
            if outcome.kind in _OF_THE_JOB:
                self._refuse(outcome)
            done.found |= dict.fromkeys(table.cells, f"{SERVICE} did not inspect it ({outcome.kind})")
            return ()
        done.requests += 1
        done.text_bytes += table.text_bytes
        reply = json.loads(outcome.text)
        if is_truncated(reply):
            if len(table.cells) > 1:
                return table.halves()
            done.found[table.cells[0]] = f"{SERVICE} has found more values in it than it returns"
            return ()
        try:
            done.found |= findings_in(reply, table)
        except (TypeError, ValueError):
            done.found |= dict.fromkeys(table.cells, f"the reply of {SERVICE} cannot be read")
        return ()

    def _open_backend(self) -> InspectBackend:
        # Other jobs need no HTTP client before their own, which takes 0.1 s to import.
        from airflow_provider_llmbeam.pipeline.privacy.dlp.backend import InspectBackend

        return InspectBackend(self._detector, self._project)

    def _open_engine(self) -> Engine:
        return Engine(
            self._open_backend(),
            governor=self._governor,
            buckets=LengthBuckets((), 0),
            parser=OutputParser(None),
            policy=RetryPolicy(MAX_ATTEMPTS, self._limits.max_throttled_seconds),
            max_in_flight=self._limits.max_in_flight,
            request_timeout_seconds=TIMEOUT_SECONDS,
        )

    def _refuse(self, failure: Failure) -> NoReturn:
        if failure.kind == "unauthorized":
            want = (
                f"The account of the workers needs the role roles/dlp.user on project {self._project!r}, where "
                "dlp.googleapis.com must be enabled."
            )
        else:
            want = (
                f"Expected infoTypes and a location of {SERVICE}; got location {self._detector.location!r} and "
                f"{', '.join(self._detector.info_types)}."
            )
        status = "" if failure.http_status is None else f" (HTTP {failure.http_status})"
        raise JobRefusedError(f"{_FIELD}: {SERVICE} refused a request{status}: {failure.message} {want} {_UNSENT}")


def project_of(spec: JobSpec, detector: DlpDetector) -> str:
    """Returns the project that is billed for the inspection.

    Raises:
        JobSpecError: Nothing names one.
    """
    if detector.project is not None:
        return detector.project
    match spec.model:
        case GeminiModel(project=str() as project):
            return project
        case VertexEndpointModel():
            return spec.model.endpoint.split("/")[1]
    if isinstance(spec.runner, DataflowRunner) and spec.runner.project:
        return spec.runner.project
    raise JobSpecError(
        f"{_FIELD}: a detector of type 'dlp' needs the Google Cloud project that is billed, and neither the model "
        "nor the runner has one. Set its `project`."
    )


def inspector_of(spec: JobSpec) -> Inspector:
    """Returns the inspector of a job with a detector of type `dlp`, which all its steps in this process share.

    Raises:
        JobSpecError: There is no project, or no Google credentials.
    """
    detector = None if spec.safety.privacy is None else spec.safety.privacy.dlp
    assert detector is not None
    limits = Limits(requests_per_minute=detector.requests_per_minute, max_in_flight=detector.max_in_flight)
    return _inspector(detector, project_of(spec, detector), limits_of_a_worker(spec.runner, limits))


_inspector = lru_cache(8)(Inspector)


class Inspections:
    """Asks the service about texts that nothing is known of, and keeps what it finds.

    Args:
        inspector: Sends texts to the service.
        store: Findings of earlier runs.
    """

    def __init__(self, inspector: Inspector, store: FindingStore) -> None:
        self._inspector = inspector
        self._store = store
        self._stored: dict[str, tuple[Finding, ...]] | None = None
        self._last: Mapping[Cell, Inspected] = {}
        #: Size in bytes of the texts that were asked for, each once for those that follow each other.
        self.text_bytes = 0

    def of(self, cells: Collection[Cell]) -> Mapping[Cell, Inspected]:
        """Returns what was found in texts.

        Raises:
            JobRefusedError: The service rejects every request.
            ModelUnavailableError: The service cannot be reached.
        """
        new = [cell for cell in cells if cell not in self._last]
        if not new:
            return self._last
        self.text_bytes += Table(tuple(new)).text_bytes
        if self._stored is None:
            self._stored = self._store.read()
        found = {cell: self._last[cell] for cell in cells if cell in self._last}
        names = {cell: self._store.name_of(cell) for cell in new}
        found |= {cell: self._stored[name] for cell, name in names.items() if name in self._stored}
        if unknown := [cell for cell in new if cell not in found]:
            inspected = self._inspector.inspect(unknown).found
            self._store.write(inspected)
            found |= inspected
        self._last = found
        return found


def inspections_of(spec: JobSpec) -> Inspections | None:
    """Returns what asks the service for a job; `None` without a detector of type `dlp`.

    Raises:
        JobSpecError: There is no secret, no project, or no Google credentials.
    """
    privacy = spec.safety.privacy
    if privacy is None or privacy.dlp is None:
        return None
    return Inspections(inspector_of(spec), store_of(spec))
