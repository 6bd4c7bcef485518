"""BigQuery as a job meets it: a client, its words for a refusal, and work that is done once."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import google.auth
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from google.api_core.exceptions import (
    Conflict,
    Forbidden,
    GoogleAPICallError,
    GoogleAPIError,
    NotFound,
    from_http_response,
)
from google.auth.exceptions import GoogleAuthError
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]
from google.cloud.storage.exceptions import InvalidResponse  # type: ignore[import-untyped]

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError

_log = logging.getLogger("llmbeam")

NOTHING_SENT = "Nothing was sent or billed."
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
#: A piece of work that was begun longer ago is begun anew: a result without a table of its own lives for a day.
_STALE_SECONDS = 12 * 3600
#: The wait between two looks at a job grows from the first to the second.
_POLL_SECONDS = (0.1, 3.0)
_LOG_SECONDS = 30.0
#: Of an error that a retry meets again; a full quota is 403 too, but `rateLimitExceeded`.
_FINAL_HTTP_STATUS = frozenset({400, 401, 403, 404, 405, 409, 412})

Result = TypeVar("Result")
Job = bigquery.QueryJob | bigquery.ExtractJob | bigquery.LoadJob


def connect(project: str | None, location: str | None = None) -> bigquery.Client:
    """Opens a client with the application default credentials.

    Args:
        project: That runs the jobs; left out, that of the credentials.
        location: Of the jobs; left out, BigQuery finds it by their tables.

    Raises:
        JobSpecError: No project is known.
        GoogleAuthError: There are no credentials.
    """
    credentials, own_project = google.auth.default(scopes=[_SCOPE])
    if not (project := project or own_project):
        raise JobSpecError(f"`source.project`: the credentials name none, so it is needed. {NOTHING_SENT}")
    return bigquery.Client(project, credentials, location=location)


def reference_of(table: str) -> bigquery.TableReference:
    """Splits `project.dataset.table`."""
    project, dataset, name = table.rsplit(".", 2)
    return bigquery.DatasetReference(project, dataset).table(name)


def words(error: GoogleAPIError) -> str:
    """Returns what the service itself says, without the address that was asked."""
    told = getattr(error, "errors", None) or [{}]
    text = told[0].get("message") if isinstance(told[0], Mapping) else None
    text = str(text or getattr(error, "message", None) or error).strip()
    return text if text.endswith((".", "!")) else f"{text}."


@contextmanager
def before_the_model(subject: str) -> Iterator[None]:
    """Puts a refusal before anything was asked of the model into one sentence.

    Args:
        subject: What it is about, e.g. "`source.table` 'p.d.t'".

    Raises:
        JobSpecError: BigQuery, or Cloud Storage, refuses, and would do so again.
        JobFailedError: It fails in a way that may pass.
    """
    try:
        yield
    except GoogleAuthError as error:
        raise JobSpecError(f"{subject} needs Google credentials: {error} {NOTHING_SENT}") from error
    except GoogleAPIError as error:
        if _is_final(error):
            raise JobSpecError(f"{subject}: {words(error)} Nothing was sent to the model.") from error
        raise JobFailedError(
            f"{subject}: {words(error)} Nothing was sent to the model; a retry may help."
        ) from error


def _is_final(error: GoogleAPIError) -> bool:
    if not isinstance(error, GoogleAPICallError) or error.code not in _FINAL_HTTP_STATUS:
        return False
    return not any("ratelimitexceeded" in str(told).lower() for told in error.errors)


def check_bucket(uri: str, field: str, client: bigquery.Client, location: str | None) -> None:
    """Makes sure that BigQuery can move files from or to a directory.

    Args:
        uri: The directory; only one on Cloud Storage is looked at.
        field: Of the spec, for the error.
        client: Whose credentials are asked with.
        location: Of the tables.

    Raises:
        JobSpecError: There is no such bucket, or it is in another part of the world.
    """
    if not uri.startswith("gs://"):
        return
    name = uri.removeprefix("gs://").partition("/")[0]
    with StorageClient(client.project, client._credentials) as buckets:
        try:
            bucket = buckets.get_bucket(name)
        except NotFound:
            raise JobSpecError(f"`{field}` {uri!r}: there is no bucket {name!r}. {NOTHING_SENT}") from None
        except Forbidden:
            return  # To look at a bucket takes a right that to write objects does not.
    if location and is_elsewhere(location, bucket.location or "", bucket.location_type or ""):
        raise JobSpecError(
            f"`{field}` {uri!r}: bucket {name!r} is in {bucket.location}, the BigQuery tables are in {location}, "
            f"and files move only within one location. Take a bucket in {location}. {NOTHING_SENT}"
        )


def is_elsewhere(tables: str, bucket: str, bucket_type: str) -> bool:
    """Returns whether two locations are surely apart; what is not sure is left to BigQuery.

    Source: cloud.google.com/bigquery/docs/loading-data-cloud-storage-parquet, "Limitations": tables in `US` take
    files from everywhere, others from their own region or from within their multi-region.
    """
    tables, bucket = tables.upper(), bucket.upper()
    if tables in ("US", bucket) or bucket_type.lower() != "region":
        return False
    return not (tables == "EU" and bucket.startswith("EUROPE-"))


def begun_once(uri: str, of: Mapping[str, Any], work: Callable[[str], Result]) -> Result:
    """Does a piece of work under an id that a repeat after a crash finds again.

    What was begun under an id runs on while nobody waits for it. The id is written down before the work begins, so
    that a repeat takes up what runs instead of beginning, and paying, twice.

    Args:
        uri: Where the id is kept while the work is not finished; the caller deletes it.
        of: What the work is; other work gets an id of its own.
        work: Gets the id, and does nothing twice under it.
    """
    begun = read_json(uri)
    if begun is not None and begun.get("of") == dict(of) and time.time() - begun["begun_at"] < _STALE_SECONDS:
        try:
            return work(str(begun["id"]))
        except GoogleAPICallError as error:
            _log.info(
                "What a former try had begun (%s) has failed and is begun anew: %s", begun["id"], words(error)
            )
    work_id = uuid.uuid4().hex
    write_json(uri, {"of": dict(of), "id": work_id, "begun_at": time.time()})
    return work(work_id)


def run_once(
    client: bigquery.Client, job_id: str, location: str | None, begin: Callable[[], Job], what: str
) -> Any:
    """Waits for the job of this id, and begins it if there is none.

    Returns:
        The job.

    Raises:
        GoogleAPICallError: It failed, now or when it ran.
    """
    try:
        # Looked for first: what is uploaded would be refused only at its end.
        job: Any = client.get_job(job_id, location=location)
        _log.info("BigQuery job %s was begun by a former try", job_id)
    except NotFound:
        try:
            job = begin()
        except Conflict:
            # The client's own retry, after an answer that was lost.
            job = client.get_job(job_id, location=location)
    began_at, told_at, pause = time.monotonic(), time.monotonic(), _POLL_SECONDS[0]
    while not job.done():
        time.sleep(pause)
        pause = min(2 * pause, _POLL_SECONDS[1])
        if time.monotonic() - told_at > _LOG_SECONDS:
            told_at = time.monotonic()
            _log.info("%s: %.0f s, job %s is %s", what, told_at - began_at, job_id, job.state)
    if error := job.exception():
        raise error
    return job


def read_json(uri: str) -> dict[str, Any] | None:
    """Returns what a small file holds; `None` when it is not there, or was cut while it was written."""
    if not FileSystems.exists(uri):
        return None
    with FileSystems.open(uri, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        text = file.read()
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def write_json(uri: str, value: Mapping[str, Any]) -> None:
    """Writes a small file anew.

    Raises:
        GoogleAPICallError: Cloud Storage refuses.
    """
    try:
        with FileSystems.create(uri, compression_type=CompressionTypes.UNCOMPRESSED) as file:
            file.write(json.dumps(value).encode())
    except InvalidResponse as error:  # Of uploads alone.
        raise from_http_response(error.response) from error  # type: ignore[no-untyped-call]


def size_text(count: int | None) -> str:
    """Returns bytes as people write them, e.g. "1.2 GB"."""
    size = float(count or 0)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
