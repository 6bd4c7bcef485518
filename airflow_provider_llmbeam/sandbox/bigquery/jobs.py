"""Jobs of BigQuery: queries, loads, extracts and copies, each done once and kept by its id."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_llmbeam.sandbox.bigquery import files as bigquery_files
from airflow_provider_llmbeam.sandbox.bigquery.catalog import Table, TableId
from airflow_provider_llmbeam.sandbox.bigquery.files import Source, UnreadableError
from airflow_provider_llmbeam.sandbox.bigquery.queries import Estimate, Queries, Result, duckdb_error
from airflow_provider_llmbeam.sandbox.bigquery.state import ABORTED, Tables
from airflow_provider_llmbeam.sandbox.core.backend import Backend
from airflow_provider_llmbeam.sandbox.core.rest import RestError
from airflow_provider_llmbeam.sandbox.storage.state import ObjectStore

LOCATION = "US"
KINDS = ("query", "load", "extract", "copy")
USER = "sandbox@llmbeam.iam.gserviceaccount.com"


@dataclass(slots=True, kw_only=True)
class Job:
    """One job.

    Attributes:
        project: It belongs to.
        id: Unique in the project.
        kind: One of `KINDS`.
        configuration: As the client sent it, with what the service filled in.
        created_at: Seconds since the epoch.
        due_at: When it ends, seconds since the epoch.
        media: The bytes of an uploaded file; None when it reads from Cloud Storage.
        is_aborted: Whether a fault ends it half-way.
        is_done: Whether it has ended.
        error: Why it failed; None when it did not.
        statistics: Of its kind.
        result: What a query returned.
        billed_bytes: What a query is billed.
    """

    project: str
    id: str
    kind: str
    configuration: dict[str, Any]
    created_at: float
    due_at: float
    media: bytes | None = None
    is_aborted: bool = False
    is_done: bool = False
    error: RestError | None = None
    statistics: dict[str, Any] = field(default_factory=dict)
    result: Result = field(default_factory=Result)
    billed_bytes: int = 0

    @property
    def options(self) -> dict[str, Any]:
        """The configuration of its kind."""
        found: dict[str, Any] = self.configuration[self.kind]
        return found

    def reference(self) -> dict[str, str]:
        """Return a `JobReference`."""
        return {"projectId": self.project, "jobId": self.id, "location": LOCATION}


class Jobs:
    """All jobs, and what runs them.

    Args:
        tables: What they read and write; its lock is held by the caller.
        store: Where files are.
        backend: Its clock, and where what is billed is counted.
        job_seconds: How long each job takes; what it does happens when it ends.
    """

    def __init__(self, tables: Tables, store: ObjectStore, backend: Backend, job_seconds: float) -> None:
        self._backend = backend
        self._tables = tables
        self._store = store
        self._job_seconds = job_seconds
        self._queries = Queries(tables)
        self._jobs: dict[tuple[str, str], Job] = {}
        self._requests: dict[tuple[str, str], Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def clear(self) -> None:
        """Forget all."""
        self._jobs.clear()
        self._requests.clear()

    def estimate(self, project: str, configuration: Mapping[str, Any]) -> Estimate:
        """Return what a query would do and cost; raises `RestError` when it is not valid."""
        return self._queries.estimate(project, configuration["query"])

    def add_view(self, table: TableId, fields: Mapping[str, Any]) -> Table:
        """Make a view; raises `RestError` when its query is not valid."""
        estimate = self._queries.estimate(table.project, fields["view"])
        return self._tables.add_view(table, fields, estimate.statement.sql)

    def insert(
        self,
        project: str,
        job_id: str | None,
        configuration: Mapping[str, Any],
        *,
        media: bytes | None = None,
        is_aborted: bool = False,
    ) -> Job:
        """Begin a job.

        Raises:
            RestError: The id was used before, or the configuration is none of a job.
        """
        kind = next((one for one in KINDS if configuration.get(one) is not None), None)
        if kind is None:
            raise RestError(
                400, "Job configuration must contain exactly one job-specific configuration object", "invalid"
            )
        name = job_id or f"job_{uuid.uuid4().hex}"
        if (project, name) in self._jobs:
            raise RestError(409, f"Already Exists: Job {project}:{LOCATION}.{name}", "duplicate")
        # A client without the extra must learn it here, not from a failed job.
        _ = self._tables.connection
        now = self._backend.now()
        job = Job(
            project=project,
            id=name,
            kind=kind,
            configuration={**configuration, kind: dict(configuration[kind]), "jobType": kind.upper()},
            created_at=now,
            due_at=now + self._job_seconds,
            media=media,
            is_aborted=is_aborted,
        )
        self._jobs[project, name] = job
        self.settle()
        return job

    def of_request(self, project: str, request_id: str) -> Job | None:
        """Return the job that a `jobs.query` with this `requestId` has begun, if any."""
        return self._requests.get((project, request_id))

    def remember(self, job: Job, request_id: str) -> None:
        """Let a repeated `jobs.query` find its job."""
        self._requests[job.project, request_id] = job

    def get(self, project: str, job_id: str) -> Job:
        """Return a job.

        Raises:
            RestError: There is none.
        """
        self.settle()
        if (project, job_id) not in self._jobs:
            raise RestError(404, f"Not found: Job {project}:{LOCATION}.{job_id}", "notFound")
        return self._jobs[project, job_id]

    def of_project(self, project: str) -> list[Job]:
        """Return the jobs of a project, the latest first."""
        self.settle()
        return [job for (owner, _), job in reversed(self._jobs.items()) if owner == project]

    def cancel(self, project: str, job_id: str) -> Job:
        """End a job that has not ended; what it would have done never happens."""
        job = self.get(project, job_id)
        if not job.is_done:
            job.error = RestError(499, "Job execution was cancelled: User requested cancellation", "stopped")
            job.is_done, job.due_at = True, self._backend.now()
        return job

    def delete(self, project: str, job_id: str) -> None:
        """Forget a job; raises `RestError` when there is none."""
        self.get(project, job_id)
        del self._jobs[project, job_id]

    def settle(self) -> None:
        """Do what the jobs that are due by now do, in the order they were begun."""
        now = self._backend.now()
        for job in self._jobs.values():
            if not job.is_done and job.due_at <= now:
                self._end(job)

    def _end(self, job: Job) -> None:
        work = {"query": self._query, "load": self._load, "extract": self._extract, "copy": self._copy}[job.kind]
        try:
            work(job)
        except RestError as error:
            job.error = error
        except duckdb_error() as error:
            job.error = RestError(400, str(error).split("\n", 1)[0], "invalid")
        job.is_done = True
        job.media = None

    def _query(self, job: Job) -> None:
        estimate = self._queries.estimate(job.project, job.options)
        job.statistics = estimate.statistics() | {"cacheHit": False}
        # A result without a destination is a table of its own.
        result = self._queries.run(estimate.statement, job.project, job.id, job.options, is_aborted=job.is_aborted)
        job.result, job.billed_bytes = result, estimate.billed_bytes
        self._backend.billed_bytes += estimate.billed_bytes
        job.statistics |= {"totalBytesBilled": str(estimate.billed_bytes), "billingTier": 1, "totalSlotMs": "1"}
        if result.destination is not None:
            job.options["destinationTable"] = result.destination.reference()
        if result.dml is not None:
            job.statistics["numDmlAffectedRows"] = str(sum(result.dml.values()))
            job.statistics["dmlStats"] = {name: str(count) for name, count in result.dml.items()}
        if result.operation:
            job.statistics["ddlOperationPerformed"] = result.operation

    def _load(self, job: Job) -> None:
        options = job.options
        destination = TableId.of(options.get("destinationTable") or {}, job.project)
        known = self._tables.find(destination)
        fields = (options.get("schema") or {}).get("fields") or []
        if not fields and known is not None and options.get("writeDisposition") != "WRITE_TRUNCATE":
            fields = known.columns
        files = [("", job.media)] if job.media is not None else self._files(options.get("sourceUris") or [])
        form = str(options.get("sourceFormat") or "CSV").upper()
        rows = bigquery_files.read(Source(format=form, files=files, fields=fields, options=options))
        with self._tables.incoming(rows.table) as source:
            count = self._tables.write(
                destination,
                rows.fields,
                source,
                {"writeDisposition": "WRITE_APPEND", **options},
                is_aborted=job.is_aborted,
            )
        size = sum(len(data) for _, data in files)
        job.statistics = {
            "inputFiles": str(len(files)),
            "inputFileBytes": str(size),
            "outputRows": str(count),
            "outputBytes": str(self._tables.byte_count(destination)),
            "badRecords": str(rows.bad),
        }

    def _files(self, uris: list[str]) -> list[tuple[str, bytes]]:
        files: list[tuple[str, bytes]] = []
        for uri in uris:
            found = self._store.glob(uri)
            if not found:
                raise RestError(404, f"Not found: URI {uri}", "notFound")
            files += [(f"gs://{one.bucket}/{one.name}", one.data) for one in found]
        return files

    def _extract(self, job: Job) -> None:
        options = job.options
        table = TableId.of(options.get("sourceTable") or {}, job.project)
        if self._tables.get(table).is_view:
            message = (
                f"Using table {table} is not allowed for this operation because of its type. Try using a "
                "different table that is of type TABLE."
            )
            raise RestError(400, message, "invalid")
        fields = self._tables.get(table).columns
        uris = options.get("destinationUris") or [options.get("destinationUri") or ""]
        data = bigquery_files.write(self._tables.arrow(f"SELECT * FROM {table.sql}"), fields, options)
        if job.is_aborted:
            raise RestError(503, ABORTED, "backendError")
        bucket, _, name = uris[0].removeprefix("gs://").partition("/")
        # Shards are numbered with twelve digits; the sandbox writes one.
        self._store.put(bucket, name.replace("*", "0" * 12), data, {}, {})
        job.statistics = {
            "destinationUriFileCounts": ["1", *("0" for _ in uris[1:])],
            "inputBytes": str(self._tables.byte_count(table)),
        }

    def _copy(self, job: Job) -> None:
        options = job.options
        destination = TableId.of(options.get("destinationTable") or {}, job.project)
        sources = options.get("sourceTables") or [options.get("sourceTable") or {}]
        tables = [TableId.of(one, job.project) for one in sources]
        fields = self._tables.get(tables[0]).columns
        union = " UNION ALL ".join(f"SELECT * FROM {self._tables.get(table).id.sql}" for table in tables)
        count = self._tables.write(destination, fields, f"({union})", options, is_aborted=job.is_aborted)
        job.statistics = {"copiedRows": str(count)}


def status(job: Job) -> dict[str, Any]:
    """Return the status of a job as the API shows it."""
    if not job.is_done:
        return {"state": "RUNNING"}
    if job.error is None:
        return {"state": "DONE"}
    result = {"reason": job.error.reason, "message": job.error.message}
    errors = job.error.details if isinstance(job.error, UnreadableError) else [result]
    return {"state": "DONE", "errorResult": result, "errors": errors}


def resource(job: Job, *, base_url: str = "") -> dict[str, Any]:
    """Return a job as the API shows it."""
    begun = str(int(job.created_at * 1000))
    statistics: dict[str, Any] = {"creationTime": begun, "startTime": begun, job.kind: job.statistics}
    if job.is_done:
        statistics["endTime"] = str(int(job.due_at * 1000))
    if "totalBytesProcessed" in job.statistics:
        statistics["totalBytesProcessed"] = job.statistics["totalBytesProcessed"]
    return {
        "kind": "bigquery#job",
        "etag": "CAE=",
        "id": f"{job.project}:{LOCATION}.{job.id}",
        "selfLink": f"{base_url}/bigquery/v2/projects/{job.project}/jobs/{job.id}?location={LOCATION}",
        "jobReference": job.reference(),
        "user_email": USER,
        "configuration": job.configuration,
        "status": status(job),
        "statistics": statistics,
    }
