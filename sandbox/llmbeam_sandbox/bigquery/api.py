"""BigQuery's REST API v2, as google-cloud-bigquery and Beam call it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from aiohttp import web

from llmbeam_sandbox.bigquery.catalog import Table, TableId
from llmbeam_sandbox.bigquery.checks import check_dataset_id
from llmbeam_sandbox.bigquery.columns import TimestampFormat, parsed_row
from llmbeam_sandbox.bigquery.jobs import LOCATION, Job, Jobs
from llmbeam_sandbox.bigquery.responses import (
    HTTP_STATUS_OF,
    WORDING,
    dataset_resource,
    dry_run_resource,
    flat_options,
    insert_error,
    job_resource,
    job_status,
    listed,
    processed_bytes,
    results_resource,
    streaming_buffer,
    table_outline,
    timestamp_format,
)
from llmbeam_sandbox.bigquery.state import Tables
from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.clock import Clock
from llmbeam_sandbox.core.methods import Method, Methods
from llmbeam_sandbox.core.responses import Reply, json_reply
from llmbeam_sandbox.core.rest import RestCall, RestError, Route, Service, no_content, page
from llmbeam_sandbox.core.uploads import Sessions, parts
from llmbeam_sandbox.storage.state import ObjectStore

PREFIXES = ("/bigquery/v2", "/upload/bigquery/v2", "/resumable/upload/bigquery/v2")
_RESOURCE_VERBS = ("delete", "get", "insert", "list", "patch")
_JOB_VERBS = ("cancel", "delete", "get", "getQueryResults", "insert", "list", "query")
METHODS = Methods(
    names=(
        *(f"bigquery.datasets.{verb}" for verb in _RESOURCE_VERBS),
        *(f"bigquery.jobs.{verb}" for verb in _JOB_VERBS),
        *("bigquery.tabledata.insertAll", "bigquery.tabledata.list"),
        *(f"bigquery.tables.{verb}" for verb in _RESOURCE_VERBS),
        "bigquery.uploads.start",
    ),
    abortable=frozenset({"bigquery.jobs.insert", "bigquery.jobs.query"}),
)
DEFAULT_PAGE = 10_000
WAIT_SECONDS = 10.0
"""Default time that `jobs.query` and `jobs.getQueryResults` wait for a job, in seconds.

Source: docs.cloud.google.com/bigquery/docs/reference/rest/v2/jobs/getQueryResults, `timeoutMs`.
"""
_POLL_SECONDS = 0.02
_PROJECT = r"/projects/(?P<project>[^/]+)"
_DATASET = rf"{_PROJECT}/datasets/(?P<dataset>[^/]+)"
_TABLE = rf"{_DATASET}/tables/(?P<table>[^/]+)"
_JOB = rf"{_PROJECT}/jobs/(?P<job>[^/]+)"


class BigQuery:
    """The methods of BigQuery.

    Args:
        clock: Returns seconds since the epoch.
        store: Files of loads and extracts.
        job_seconds: Duration of each job, in seconds.

    Raises:
        ValueError: `job_seconds` is negative.
    """

    def __init__(self, clock: Clock, store: ObjectStore, *, job_seconds: float) -> None:
        if not job_seconds >= 0:
            raise ValueError(f"`bigquery_job_seconds` must be >= 0; got {job_seconds!r}.")
        self._tables = Tables(clock)
        self._jobs = Jobs(self._tables, store, clock, job_seconds)
        self._sessions = Sessions()
        self._inserted: set[tuple[TableId, str]] = set()

    @property
    def billed_bytes(self) -> int:
        """Bytes that all queries were billed."""
        return self._jobs.billed_bytes

    def routes(self) -> list[Route]:
        """Returns the methods and their paths."""
        return [
            self._route("POST", f"{_PROJECT}/datasets", "bigquery.datasets.insert", self._insert_dataset),
            self._route("GET", f"{_PROJECT}/datasets", "bigquery.datasets.list", self._list_datasets),
            self._route("GET", _DATASET, "bigquery.datasets.get", self._get_dataset),
            self._route("PATCH", _DATASET, "bigquery.datasets.patch", self._patch_dataset),
            self._route("PUT", _DATASET, "bigquery.datasets.patch", self._patch_dataset),
            self._route("DELETE", _DATASET, "bigquery.datasets.delete", self._delete_dataset),
            self._route("POST", f"{_DATASET}/tables", "bigquery.tables.insert", self._insert_table),
            self._route("GET", f"{_DATASET}/tables", "bigquery.tables.list", self._list_tables),
            self._route("GET", _TABLE, "bigquery.tables.get", self._get_table),
            self._route("PATCH", _TABLE, "bigquery.tables.patch", self._patch_table),
            self._route("PUT", _TABLE, "bigquery.tables.patch", self._patch_table),
            self._route("DELETE", _TABLE, "bigquery.tables.delete", self._delete_table),
            self._route("GET", f"{_TABLE}/data", "bigquery.tabledata.list", self._list_rows),
            self._route("POST", f"{_TABLE}/insertAll", "bigquery.tabledata.insertAll", self._insert_all),
            self._route("POST", f"{_PROJECT}/jobs", "bigquery.jobs.insert", self._insert_job),
            self._route("GET", f"{_PROJECT}/jobs", "bigquery.jobs.list", self._list_jobs),
            self._route("GET", _JOB, "bigquery.jobs.get", self._get_job),
            self._route("POST", f"{_JOB}/cancel", "bigquery.jobs.cancel", self._cancel_job),
            self._route("DELETE", f"{_JOB}/delete", "bigquery.jobs.delete", self._delete_job),
            self._waiting("POST", f"{_PROJECT}/queries", "bigquery.jobs.query", self._query),
            self._waiting(
                "GET", rf"{_PROJECT}/queries/(?P<job>[^/]+)", "bigquery.jobs.getQueryResults", self._get_results
            ),
            self._upload("POST", "bigquery.jobs.insert", self._load_multipart, "multipart"),
            self._upload("POST", "bigquery.uploads.start", self._begin_upload, "resumable"),
            self._upload("PUT", "bigquery.jobs.insert", self._load_chunk, "resumable"),
        ]

    def clear(self) -> None:
        """Removes all tables and jobs."""
        with self._tables.lock:
            self._tables.clear()
            self._jobs.clear()
            self._sessions.clear()
            self._inserted.clear()

    def _waiting(self, verb: str, path: str, method: Method, work: Callable[[RestCall], Reply]) -> Route:
        """Returns a route whose handler releases the lock while it waits."""
        pattern = re.compile(f"/bigquery/v2{path}")
        return Route(verb=verb, pattern=pattern, method=method, work=work, label=_label)

    def _route(self, verb: str, path: str, method: Method, work: Callable[[RestCall], Reply]) -> Route:
        return self._waiting(verb, path, method, self._locked(work))

    def _upload(self, verb: str, method: Method, work: Callable[[RestCall], Reply], upload_type: str) -> Route:
        pattern = re.compile(f"(?:/resumable)?/upload/bigquery/v2{_PROJECT}/jobs")
        return Route(verb=verb, pattern=pattern, method=method, work=self._locked(work), upload_type=upload_type)

    def _locked(self, work: Callable[[RestCall], Reply]) -> Callable[[RestCall], Reply]:
        def locked(call: RestCall) -> Reply:
            with self._tables.lock:
                self._jobs.settle()
                return work(call)

        return locked

    # Datasets

    def _insert_dataset(self, call: RestCall) -> Reply:
        fields = call.fields()
        name = (fields.get("datasetReference") or {}).get("datasetId") or ""
        check_dataset_id(name)
        return json_reply(dataset_resource(self._tables.add_dataset(call.names["project"], name, fields)))

    def _list_datasets(self, call: RestCall) -> Reply:
        chosen, token = page(call, self._tables.datasets(call.names["project"]), default=1000)
        body = {
            "kind": "bigquery#datasetList",
            "etag": "CAE=",
            "datasets": [listed("dataset", dataset_resource(one)) for one in chosen],
        }
        return json_reply(body | token)

    def _get_dataset(self, call: RestCall) -> Reply:
        return json_reply(dataset_resource(self._tables.dataset(call.names["project"], call.names["dataset"])))

    def _patch_dataset(self, call: RestCall) -> Reply:
        dataset = self._tables.dataset(call.names["project"], call.names["dataset"])
        merged = dataset.fields | call.fields()
        dataset.fields = {name: value for name, value in merged.items() if value is not None}
        return json_reply(dataset_resource(dataset))

    def _delete_dataset(self, call: RestCall) -> Reply:
        with_tables = call.query.get("deleteContents", "").lower() == "true"
        self._tables.drop_dataset(call.names["project"], call.names["dataset"], with_tables=with_tables)
        return no_content()

    # Tables

    def _insert_table(self, call: RestCall) -> Reply:
        fields = call.fields()
        if fields.get("materializedView") or fields.get("externalDataConfiguration"):
            raise RestError(400, "The sandbox has neither materialized views nor external tables.", "invalid")
        name = TableId.of(fields.get("tableReference") or {}, call.names["project"])
        if fields.get("view"):
            return json_reply(self._table(self._jobs.add_view(name, fields)))
        return json_reply(self._table(self._tables.add(name, fields)))

    def _list_tables(self, call: RestCall) -> Reply:
        dataset = self._tables.dataset(call.names["project"], call.names["dataset"])
        found = [dataset.tables[name] for name in sorted(dataset.tables)]
        chosen, token = page(call, found, default=1000)
        body = {"kind": "bigquery#tableList", "tables": [listed("table", table_outline(one)) for one in chosen]}
        return json_reply(body | {"totalItems": len(found)} | token)

    def _get_table(self, call: RestCall) -> Reply:
        return json_reply(self._table(self._tables.get(_table_id(call))))

    def _patch_table(self, call: RestCall) -> Reply:
        return json_reply(self._table(self._tables.patch(_table_id(call), call.fields())))

    def _delete_table(self, call: RestCall) -> Reply:
        self._tables.drop(_table_id(call))
        return no_content()

    def _table(self, table: Table) -> dict[str, Any]:
        if table.is_view:
            return table_outline(table)
        sizes = {"numRows": self._tables.row_count(table.id), "numBytes": self._tables.byte_count(table.id)}
        sizes["lastModifiedTime"] = int(table.modified_at * 1000)
        return table_outline(table) | streaming_buffer(table) | {name: str(size) for name, size in sizes.items()}

    def _list_rows(self, call: RestCall) -> Reply:
        table = _table_id(call)
        total = self._tables.row_count(table)
        rows = self._rows(call, table, total, timestamp_format(call.query))
        return json_reply({"kind": "bigquery#tableDataList", "etag": "CAE=", "totalRows": str(total)} | rows)

    def _rows(
        self, call: RestCall, table: TableId, total: int, timestamps: TimestampFormat, *, size: int | None = None
    ) -> dict[str, Any]:
        start = call.number("pageToken", call.number("startIndex", 0))
        size = call.number("maxResults", DEFAULT_PAGE) if size is None else size
        rows = self._tables.rows(table, start=start, size=size, timestamps=timestamps)
        end = start + len(rows)
        # A client that requests no rows (`maxResults=0`) only checks whether the job is done.
        token = {"pageToken": str(end)} if end < total and size else {}
        return ({"rows": rows} if rows else {}) | token

    def _insert_all(self, call: RestCall) -> Reply:
        table, fields = _table_id(call), call.fields()
        columns = self._tables.get(table).columns
        good, ids, errors = [], [], []
        for index, row in enumerate(fields.get("rows") or []):
            key = (table, str(row.get("insertId")))
            if row.get("insertId") and key in self._inserted:
                continue
            try:
                unknown = bool(fields.get("ignoreUnknownValues"))
                good.append(parsed_row(row["json"], columns, ignores_unknown=unknown))
                ids.append(key)
            except ValueError as error:
                errors.append(insert_error(index, str(error)))
        if errors and not fields.get("skipInvalidRows"):
            good, ids = [], []
        if good:
            self._tables.append(table, good)
            self._inserted.update(ids)
        body: dict[str, Any] = {"kind": "bigquery#tableDataInsertAllResponse"}
        return json_reply(body | ({"insertErrors": errors} if errors else {}))

    # Jobs

    def _insert_job(self, call: RestCall) -> Reply:
        return self._inserted_job(call, call.fields())

    def _inserted_job(self, call: RestCall, fields: Mapping[str, Any], media: bytes | None = None) -> Reply:
        project = call.names["project"]
        configuration = fields.get("configuration") or {}
        job_id = (fields.get("jobReference") or {}).get("jobId")
        if configuration.get("dryRun"):
            return json_reply(self._dry_run(project, job_id or "", configuration))
        job = self._jobs.insert(project, job_id, configuration, media=media, is_aborted=call.is_aborted)
        return json_reply(job_resource(job, base_url=call.base_url))

    def _dry_run(self, project: str, job_id: str, configuration: Mapping[str, Any]) -> dict[str, Any]:
        if "query" not in configuration:
            raise RestError(400, "The sandbox estimates queries only.", "invalid")
        return dry_run_resource(project, job_id, configuration, self._jobs.estimate(project, configuration))

    def _list_jobs(self, call: RestCall) -> Reply:
        states = call.query.get("stateFilter", "").upper()
        found = [
            job
            for job in self._jobs.of_project(call.names["project"])
            if (not states or job_status(job)["state"] == states)
            and call.number("minCreationTime", 0) <= job.created_at * 1000
            and job.created_at * 1000 <= call.number("maxCreationTime", 1 << 62)
        ]
        chosen, token = page(call, found, default=1000)
        resources = [resource | {"state": resource["status"]["state"]} for resource in map(job_resource, chosen)]
        jobs = [listed("job", resource) for resource in resources]
        return json_reply({"kind": "bigquery#jobList", "etag": "CAE=", "jobs": jobs} | token)

    def _get_job(self, call: RestCall) -> Reply:
        return json_reply(job_resource(self._job(call), base_url=call.base_url))

    def _cancel_job(self, call: RestCall) -> Reply:
        job = self._jobs.cancel(call.names["project"], call.names["job"])
        return json_reply({"kind": "bigquery#jobCancelResponse", "job": job_resource(job)})

    def _delete_job(self, call: RestCall) -> Reply:
        self._jobs.delete(call.names["project"], call.names["job"])
        return no_content()

    def _job(self, call: RestCall) -> Job:
        return self._jobs.get(call.names["project"], call.names["job"])

    def _query(self, call: RestCall) -> Reply:
        fields, project = call.fields(), call.names["project"]
        if fields.get("dryRun"):
            with self._tables.lock:
                statistics = self._dry_run(project, "", {"query": fields})["statistics"]["query"]
            body = {"jobComplete": True, "schema": statistics.get("schema", {"fields": []}), "cacheHit": False}
            return json_reply({"kind": "bigquery#queryResponse"} | body | processed_bytes(statistics))
        with self._tables.lock:
            job = self._query_job(call, fields)
        self._wait(job, fields.get("timeoutMs"))
        size = int(fields.get("maxResults") or DEFAULT_PAGE)
        with self._tables.lock:
            body = self._results(
                call, job, timestamp_format(flat_options(fields.get("formatOptions") or {})), size
            )
        return json_reply({"kind": "bigquery#queryResponse", "location": LOCATION} | body)

    def _query_job(self, call: RestCall, fields: Mapping[str, Any]) -> Job:
        """Starts the job of a `jobs.query`, or returns the one of the same `requestId`."""
        project, request_id = call.names["project"], fields.get("requestId") or ""
        job = self._jobs.of_request(project, request_id) if request_id else None
        if job is None:
            options = {name: fields[name] for name in _QUERY_OPTIONS & fields.keys()}
            configuration = {"query": options, "labels": fields.get("labels") or {}}
            job = self._jobs.insert(project, None, configuration, is_aborted=call.is_aborted)
            self._jobs.remember(job, request_id)
        return job

    def _get_results(self, call: RestCall) -> Reply:
        with self._tables.lock:
            job = self._job(call)
        self._wait(job, call.query.get("timeoutMs"))
        with self._tables.lock:
            body = self._results(call, job, timestamp_format(call.query), call.number("maxResults", DEFAULT_PAGE))
        for name in ("dmlStats", "totalBytesBilled"):  # which only the reply of jobs.query has
            body.pop(name, None)
        return json_reply({"kind": "bigquery#getQueryResultsResponse", "etag": "CAE="} | body)

    def _wait(self, job: Job, milliseconds: Any) -> None:
        deadline = time.monotonic() + (WAIT_SECONDS if milliseconds is None else int(milliseconds) / 1000)
        while not job.is_done and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            with self._tables.lock:
                self._jobs.settle()

    def _results(self, call: RestCall, job: Job, timestamps: TimestampFormat, size: int) -> dict[str, Any]:
        if job.kind != "query":
            raise RestError(400, "Cannot retrieve query results from a job that is not a query.", "invalid")
        if not job.is_done:
            return {"jobReference": job.reference(), "jobComplete": False}
        if job.error is not None:
            status = HTTP_STATUS_OF.get(job.error.reason, 400)
            raise RestError(status, job.error.message, job.error.reason)
        destination = job.result.destination
        total = 0 if destination is None else self._tables.row_count(destination)
        rows = self._rows(call, destination, total, timestamps, size=size) if destination else {}
        return results_resource(job, total) | rows

    # Uploads

    def _load_multipart(self, call: RestCall) -> Reply:
        found = parts(call.headers.get("content-type", ""), call.body)
        if len(found) != 2:
            raise RestError(400, "Multipart body must have exactly two parts.", "badContent")
        metadata = RestCall(names={}, query={}, headers={}, body=found[0].body).fields()
        return self._inserted_job(call, metadata, found[1].body)

    def _begin_upload(self, call: RestCall) -> Reply:
        path = f"/upload/bigquery/v2/projects/{quote(call.names['project'])}/jobs"
        return self._sessions.begin(call, path)

    def _load_chunk(self, call: RestCall) -> Reply:
        session = self._sessions.of(call)
        if session.reply is None and not session.add(call):
            return session.incomplete()
        if session.reply is None:
            session.reply = self._inserted_job(session.start, session.metadata, bytes(session.data))
        return session.reply


_QUERY_OPTIONS = frozenset(
    {"query", "defaultDataset", "queryParameters", "parameterMode", "useLegacySql", "maximumBytesBilled"}
    | {"createDisposition", "destinationTable", "writeDisposition", "schemaUpdateOptions", "useQueryCache"}
    | {"destinationEncryptionConfiguration"}
)


def routes(backend: Backend, bigquery: BigQuery) -> list[web.RouteDef]:
    """Returns the routes of BigQuery."""
    service = Service(backend, WORDING, bigquery.routes(), is_slow=True)
    return [web.route("*", f"{prefix}/{{tail:.*}}", service.serve) for prefix in PREFIXES]


def _label(call: RestCall) -> str:
    """Returns the name of the resource: for a new job the id, which is in the body."""
    match = re.search(rb'"jobId"\s*:\s*"([^"]*)"', call.body)
    return "/".join((*call.names.values(), *([match[1].decode()] if match else ())))


def _table_id(call: RestCall) -> TableId:
    names = {"datasetId": call.names["dataset"], "tableId": call.names["table"]}
    return TableId.of(names, call.names["project"])
