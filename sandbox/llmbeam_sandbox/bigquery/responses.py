"""Datasets, tables, jobs, results and errors in the format of BigQuery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmbeam_sandbox.bigquery.catalog import Dataset, Table
from llmbeam_sandbox.bigquery.columns import TimestampFormat
from llmbeam_sandbox.bigquery.jobs import LOCATION, USER, Job
from llmbeam_sandbox.bigquery.queries import Estimate
from llmbeam_sandbox.bigquery.state import ABORTED
from llmbeam_sandbox.core.rest import RestError, Wording

WORDING = Wording(
    reasons={
        400: "invalid",
        401: "authError",
        403: "accessDenied",
        404: "notFound",
        409: "duplicate",
        412: "conditionNotMet",
        429: "rateLimitExceeded",
        500: "internalError",
        501: "notImplemented",
        502: "badGateway",
        503: "backendError",
    },
    messages={
        403: "Access Denied: User does not have permission to do this, or perhaps the resource does not exist.",
        500: "An internal error occurred and the request could not be completed.",
        503: ABORTED,
    },
    rate_limit=RestError(
        403,
        "Exceeded rate limits: too many api requests per user per method for this user_method. For more "
        "information, see https://cloud.google.com/bigquery/docs/troubleshoot-quotas",
        "rateLimitExceeded",
    ),
)
# Source: docs.cloud.google.com/bigquery/docs/error-messages.
HTTP_STATUS_OF = {
    "accessDenied": 403,
    "backendError": 503,
    "bytesBilledLimitExceeded": 400,
    "duplicate": 409,
    "internalError": 500,
    "notFound": 404,
    "notImplemented": 501,
    "rateLimitExceeded": 403,
    "stopped": 499,
}


def dataset_resource(dataset: Dataset) -> dict[str, Any]:
    """Returns a dataset as the API returns it."""
    created = str(int(dataset.created_at * 1000))
    return {
        "location": LOCATION,
        **dataset.fields,
        "kind": "bigquery#dataset",
        "etag": "CAE=",
        "id": f"{dataset.project}:{dataset.name}",
        "datasetReference": {"projectId": dataset.project, "datasetId": dataset.name},
        "creationTime": created,
        "lastModifiedTime": created,
    }


_LISTED = {
    "dataset": ("kind", "id", "datasetReference", "labels", "friendlyName", "location", "type"),
    "table": (
        *("kind", "id", "tableReference", "friendlyName", "type", "labels", "creationTime", "expirationTime"),
        *("timePartitioning", "rangePartitioning", "clustering", "requirePartitionFilter", "view"),
    ),
    "job": (
        "kind",
        "id",
        "jobReference",
        "state",
        "errorResult",
        "statistics",
        "configuration",
        "status",
        "user_email",
    ),
}


def listed(kind: str, resource: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those fields of a dataset, table or job that a list has.

    Source: DatasetList, TableList and JobList of the Discovery document bigquery.v2.
    """
    return {name: resource[name] for name in _LISTED[kind] if name in resource}


def table_outline(table: Table) -> dict[str, Any]:
    """Returns a table without the size and the rows that are being streamed."""
    return {
        **table.fields,
        "kind": "bigquery#table",
        "etag": "CAE=",
        "id": str(table.id),
        "tableReference": table.id.reference(),
        "type": "VIEW" if table.is_view else "TABLE",
        "location": LOCATION,
        "creationTime": str(int(table.created_at * 1000)),
    }


def streaming_buffer(table: Table) -> dict[str, Any]:
    """Returns the field of a table that says how many of its rows are in the streaming buffer, if any are."""
    if not table.streamed_rows:
        return {}
    at = str(int(table.modified_at * 1000))
    return {"streamingBuffer": {"estimatedRows": str(table.streamed_rows), "oldestEntryTime": at}}


def flat_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Returns the `formatOptions` of a body by their names in a query string."""
    return {f"formatOptions.{name}": str(value) for name, value in options.items()}


def timestamp_format(query: Mapping[str, str]) -> TimestampFormat:
    """Returns the timestamp format that a request selects."""
    if query.get("formatOptions.timestampOutputFormat") == "ISO8601_STRING":
        return "iso"
    is_integer = query.get("formatOptions.useInt64Timestamp", "").lower() == "true"
    return "microseconds" if is_integer else "seconds"


def processed_bytes(statistics: Mapping[str, Any]) -> dict[str, str]:
    """Returns the bytes that a query read, as results have them."""
    return {"totalBytesProcessed": str(statistics.get("totalBytesProcessed", 0))}


def job_status(job: Job) -> dict[str, Any]:
    """Returns the status of a job as the API returns it."""
    if not job.is_done:
        return {"state": "RUNNING"}
    if job.error is None:
        return {"state": "DONE"}
    result = {"reason": job.error.reason, "message": job.error.message}
    errors = list(job.error.details) or [result]
    return {"state": "DONE", "errorResult": result, "errors": errors}


def job_resource(job: Job, *, base_url: str = "") -> dict[str, Any]:
    """Returns a job as the API returns it."""
    created = str(int(job.created_at * 1000))
    statistics: dict[str, Any] = {"creationTime": created, "startTime": created, job.kind: job.statistics}
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
        "status": job_status(job),
        "statistics": statistics,
    }


def dry_run_resource(
    project: str, job_id: str, configuration: Mapping[str, Any], estimate: Estimate
) -> dict[str, Any]:
    """Returns the job of a dry run as the API returns it."""
    total = str(estimate.processed_bytes)
    return {
        "kind": "bigquery#job",
        "jobReference": {"projectId": project, "jobId": job_id, "location": LOCATION},
        "configuration": {**configuration, "jobType": "QUERY"},
        "status": {"state": "DONE"},
        "statistics": {"totalBytesProcessed": total, "query": estimate.statistics() | {"cacheHit": False}},
    }


def results_resource(job: Job, total_rows: int) -> dict[str, Any]:
    """Returns the results of a query as the API returns them, without rows."""
    optional = ("numDmlAffectedRows", "dmlStats", "totalBytesBilled")
    return {
        "jobReference": job.reference(),
        "jobComplete": True,
        "cacheHit": False,
        "schema": {"fields": job.result.columns},
        "totalRows": str(total_rows),
        **processed_bytes(job.statistics),
        **{name: job.statistics[name] for name in optional if name in job.statistics},
    }


def insert_error(index: int, message: str) -> dict[str, Any]:
    """Returns the error of a row of `insertAll` as the API returns it."""
    item = {"reason": "invalid", "location": "", "debugInfo": "", "message": message.lower()}
    return {"index": index, "errors": [item]}
