"""Jobs of BigQuery: queries, loads, extracts and copies, each run once and kept by its id."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmbeam_sandbox.bigquery import files as bigquery_files
from llmbeam_sandbox.bigquery.catalog import Table, TableId
from llmbeam_sandbox.bigquery.files import Source
from llmbeam_sandbox.bigquery.queries import Estimate, Queries, Result, duckdb_error
from llmbeam_sandbox.bigquery.state import ABORTED, Tables
from llmbeam_sandbox.core.checks import check_kms_key
from llmbeam_sandbox.core.clock import Clock
from llmbeam_sandbox.core.rest import RestError
from llmbeam_sandbox.storage.state import ObjectStore

LOCATION = "US"
KINDS = ("query", "load", "extract", "copy")
USER = "sandbox@llmbeam.iam.gserviceaccount.com"


@dataclass(slots=True, kw_only=True)
class Job:
    """One job.

    Attributes:
        project: Project that owns the job.
        id: Id, unique in the project.
        kind: Kind of the job, one of `KINDS`.
        configuration: Configuration of the client, with the fields that the service adds.
        created_at: Time of creation, in seconds since the epoch.
        due_at: Time of its end, in seconds since the epoch.
        media: Content of an uploaded file; None when it reads from Cloud Storage.
        is_aborted: Whether a fault interrupts it half-way.
        is_done: Whether it has ended.
        error: Error after a failure, else None.
        statistics: Statistics of its kind.
        result: Result of a query.
        billed_bytes: Bytes that a query is billed.
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
        """Configuration of its kind."""
        found: dict[str, Any] = self.configuration[self.kind]
        return found

    def reference(self) -> dict[str, str]:
        """Returns a `JobReference`."""
        return {"projectId": self.project, "jobId": self.id, "location": LOCATION}


class Jobs:
    """All jobs, and how they run.

    Args:
        tables: Tables that jobs read and write; the caller holds their lock.
        store: Files of loads and extracts.
        clock: Returns seconds since the epoch.
        job_seconds: Duration of each job, in seconds; its effects happen at its end.
    """

    def __init__(self, tables: Tables, store: ObjectStore, clock: Clock, job_seconds: float) -> None:
        self.billed_bytes = 0
        self._clock = clock
        self._tables = tables
        self._store = store
        self._job_seconds = job_seconds
        self._queries = Queries(tables)
        self._jobs: dict[tuple[str, str], Job] = {}
        self._requests: dict[tuple[str, str], Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def clear(self) -> None:
        """Removes all jobs."""
        self.billed_bytes = 0
        self._jobs.clear()
        self._requests.clear()

    def estimate(self, project: str, configuration: Mapping[str, Any]) -> Estimate:
        """Returns the effects and cost of a query; raises `RestError` if it is invalid."""
        return self._queries.estimate(project, configuration["query"])

    def add_view(self, table: TableId, fields: Mapping[str, Any]) -> Table:
        """Creates a view; raises `RestError` if its query is invalid."""
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
        """Starts a job.

        Raises:
            RestError: The id was used before, or the configuration is not that of a job.
        """
        kind = next((one for one in KINDS if configuration.get(one) is not None), None)
        if kind is None:
            raise RestError(
                400, "Job configuration must contain exactly one job-specific configuration object", "invalid"
            )
        name = job_id or f"job_{uuid.uuid4().hex}"
        if (project, name) in self._jobs:
            raise RestError(409, f"Already Exists: Job {project}:{LOCATION}.{name}", "duplicate")
        check_kms_key((configuration[kind].get("destinationEncryptionConfiguration") or {}).get("kmsKeyName"))
        # A client without the extra gets the error here, not from a failed job.
        _ = self._tables.connection
        now = self._clock()
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
        """Returns the job that a `jobs.query` with this `requestId` has started, if any."""
        return self._requests.get((project, request_id))

    def remember(self, job: Job, request_id: str) -> None:
        """Keeps the job of a `requestId` for repeated calls of `jobs.query`."""
        self._requests[job.project, request_id] = job

    def get(self, project: str, job_id: str) -> Job:
        """Returns a job.

        Raises:
            RestError: There is none of that id.
        """
        self.settle()
        if (project, job_id) not in self._jobs:
            raise RestError(404, f"Not found: Job {project}:{LOCATION}.{job_id}", "notFound")
        return self._jobs[project, job_id]

    def of_project(self, project: str) -> list[Job]:
        """Returns the jobs of a project, the latest first."""
        self.settle()
        return [job for (owner, _), job in reversed(self._jobs.items()) if owner == project]

    def cancel(self, project: str, job_id: str) -> Job:
        """Cancels a job that has not ended; it has no effects."""
        job = self.get(project, job_id)
        if not job.is_done:
            job.error = RestError(499, "Job execution was cancelled: User requested cancellation", "stopped")
            job.is_done, job.due_at = True, self._clock()
        return job

    def delete(self, project: str, job_id: str) -> None:
        """Removes a job; raises `RestError` if there is none of that id."""
        self.get(project, job_id)
        del self._jobs[project, job_id]

    def settle(self) -> None:
        """Runs the jobs that are due, in the order of their creation."""
        now = self._clock()
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
        self.billed_bytes += estimate.billed_bytes
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
        found = self._tables.get(table)
        if found.is_view:
            message = (
                f"Using table {table} is not allowed for this operation because of its type. Try using a "
                "different table that is of type TABLE."
            )
            raise RestError(400, message, "invalid")
        uris = options.get("destinationUris") or [options.get("destinationUri") or ""]
        # Rows are read in the order in which they were written.
        stored = max(0, self._tables.row_count(table) - found.streamed_rows)
        rows = self._tables.arrow(f"SELECT * FROM {table.sql} LIMIT {stored}")
        data = bigquery_files.write(rows, found.columns, options)
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
