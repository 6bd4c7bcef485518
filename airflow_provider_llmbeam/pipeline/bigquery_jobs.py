"""Helpers for BigQuery: client, error messages, and jobs that run once."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import google.auth
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
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.transport.redirects import RedirectRefusedError, direct

_log = logging.getLogger("llmbeam")

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
#: Age after which started work is started again: a result without a destination table is kept for a day.
_STALE_SECONDS = 12 * 3600
#: Minimum and maximum interval between polls of a job.
_POLL_SECONDS = (0.1, 3.0)
_LOG_SECONDS = 30.0
#: HTTP statuses that a retry repeats; an exceeded quota is a 403, too, but with `rateLimitExceeded`.
_FINAL_HTTP_STATUS = frozenset({400, 401, 403, 404, 405, 409, 412})

Result = TypeVar("Result")
Job = bigquery.QueryJob | bigquery.ExtractJob | bigquery.LoadJob


def connect(project: str | None, location: str | None = None) -> bigquery.Client:
    """Opens a client with the application default credentials.

    Args:
        project: Project that runs the jobs. `None`: that of the credentials.
        location: Location of the jobs. `None`: determined by BigQuery from their tables.

    Raises:
        JobSpecError: The project is not known.
        GoogleAuthError: There are no credentials.
    """
    credentials, own_project = google.auth.default(scopes=[_SCOPE])
    if not (project := project or own_project):
        raise JobSpecError("`source.project`: the credentials have no project, so it is needed.")
    return direct(bigquery.Client(project, credentials, location=location))


def reference_of(table: str) -> bigquery.TableReference:
    """Splits `project.dataset.table`."""
    project, dataset, name = table.rsplit(".", 2)
    return bigquery.DatasetReference(project, dataset).table(name)


def message_of(error: GoogleAPIError) -> str:
    """Returns the message of the service, without the address of the request."""
    details = getattr(error, "errors", None) or [{}]
    text = details[0].get("message") if isinstance(details[0], Mapping) else None
    text = str(text or getattr(error, "message", None) or error).strip()
    return text if text.endswith((".", "!")) else f"{text}."


@contextmanager
def before_the_model(subject: str) -> Iterator[None]:
    """Converts errors of BigQuery or Cloud Storage that occur before a request to the model.

    Args:
        subject: Subject of the message, e.g. "`source.table` 'p.d.t'".

    Raises:
        JobSpecError: The service rejected the request, and a retry would repeat that.
        JobFailedError: The failure may be temporary.
    """
    try:
        yield
    except GoogleAuthError as error:
        raise JobSpecError(f"{subject} needs Google credentials: {error}") from error
    except RedirectRefusedError as error:
        raise JobSpecError(f"{subject}: {error}.") from error
    except GoogleAPIError as error:
        if _is_final(error):
            raise JobSpecError(f"{subject}: {message_of(error)}") from error
        raise JobFailedError(
            f"{subject}: {message_of(error)} Nothing was sent or billed; a retry may help."
        ) from error


def _is_final(error: GoogleAPIError) -> bool:
    if not isinstance(error, GoogleAPICallError) or error.code not in _FINAL_HTTP_STATUS:
        return False
    return not any("ratelimitexceeded" in str(detail).lower() for detail in error.errors)


def encryption_of(kms_key_name: str | None) -> bigquery.EncryptionConfiguration | None:
    """Returns the encryption of a table that is made with a key of Cloud KMS; `None` for the default."""
    if kms_key_name is None:
        return None
    return bigquery.EncryptionConfiguration(kms_key_name)


JobConfig = TypeVar("JobConfig", bigquery.QueryJobConfig, bigquery.LoadJobConfig)


def encrypted(config: JobConfig, kms_key_name: str | None) -> JobConfig:
    """Returns the configuration of a SELECT or a load, whose table is encrypted with a key of Cloud KMS.

    A MERGE has no destination table, and its table keeps the key that it was made with.

    Args:
        config: The configuration.
        kms_key_name: The key; `None` changes nothing.
    """
    if kms_key_name is not None:
        config.destination_encryption_configuration = encryption_of(kms_key_name)
    return config


def check_table_key(table: bigquery.Table, kms_key_name: str | None) -> None:
    """Checks that a table that exists is encrypted with the key of the job, if that has one.

    Raises:
        JobSpecError: It is not.
    """
    encryption = table.encryption_configuration
    found = encryption and encryption.kms_key_name
    if kms_key_name not in (None, found):
        raise JobSpecError(
            f"`kms_key_name` {kms_key_name!r}: table {str(table.reference)!r} is encrypted with "
            f"{repr(found) if found else 'a key of Google'}. Copy it with the key, "
            f"`bq cp -f --destination_kms_key={kms_key_name}`, or name a new table."
        )


def check_bucket(uri: str, field: str, client: bigquery.Client, location: str | None) -> None:
    """Checks that BigQuery can read and write files in a directory.

    Args:
        uri: The directory; only one on Cloud Storage is checked.
        field: Field of the spec, for the error.
        client: Client whose credentials are used.
        location: Location of the tables.

    Raises:
        JobSpecError: The bucket does not exist, or is in another location.
    """
    if not uri.startswith("gs://"):
        return
    name = uri.removeprefix("gs://").partition("/")[0]
    with direct(StorageClient(client.project, client._credentials)) as buckets:
        try:
            bucket = buckets.get_bucket(name)
        except NotFound:
            raise JobSpecError(f"`{field}` {uri!r}: there is no bucket {name!r}.") from None
        except Forbidden:
            return  # Reading a bucket needs a permission that writing objects does not.
    if location and is_elsewhere(location, bucket.location or "", bucket.location_type or ""):
        raise JobSpecError(
            f"`{field}` {uri!r}: bucket {name!r} is in {bucket.location}, the BigQuery tables are in {location}, "
            f"and files can only be moved within one location. Use a bucket in {location}."
        )


def is_elsewhere(tables: str, bucket: str, bucket_type: str) -> bool:
    """Returns whether two locations certainly differ; other cases are left to BigQuery.

    Source: cloud.google.com/bigquery/docs/loading-data-cloud-storage-parquet, "Limitations": tables in `US` accept
    files from everywhere, others from their own region or from within their multi-region.
    """
    tables, bucket = tables.upper(), bucket.upper()
    if tables in ("US", bucket) or bucket_type.lower() != "region":
        return False
    return not (tables == "EU" and bucket.startswith("EUROPE-"))


def run_with_recorded_id(
    uri: str, of: Mapping[str, Any], work: Callable[[str], Result], *, stale_seconds: float = _STALE_SECONDS
) -> Result:
    """Runs work under an id that a repeat after a crash finds again.

    The id is recorded before the work starts, so that a repeat waits for the running work instead of starting, and
    paying for, it twice.

    Args:
        uri: File of the id while the work is not finished; the caller deletes it.
        of: Description of the work; different work gets another id.
        work: The work, idempotent for an id.
        stale_seconds: Age after which started work is started again, in seconds.
    """
    begun = read_json(uri)
    if begun is not None and begun.get("of") == dict(of) and time.time() - begun["begun_at"] < stale_seconds:
        try:
            return work(str(begun["id"]))
        except GoogleAPICallError as error:
            _log.info(
                "The work of an earlier attempt (%s) has failed and is started again: %s",
                begun["id"],
                message_of(error),
            )
    work_id = uuid.uuid4().hex
    write_json(uri, {"of": dict(of), "id": work_id, "begun_at": time.time()})
    return work(work_id)


def run_once(
    client: bigquery.Client, job_id: str, location: str | None, start: Callable[[], Job], what: str
) -> Any:
    """Waits for the job of this id, and starts it if it does not exist.

    Returns:
        The job.

    Raises:
        GoogleAPICallError: The job could not be started, or failed.
    """
    try:
        # Looked up first: a duplicate upload would be rejected only at its end.
        job: Any = client.get_job(job_id, location=location)
        _log.info("BigQuery job %s was started by an earlier attempt", job_id)
    except NotFound:
        try:
            job = start()
        except Conflict:
            # A retry of the client itself, after a lost response.
            job = client.get_job(job_id, location=location)
    started_at, logged_at, pause = time.monotonic(), time.monotonic(), _POLL_SECONDS[0]
    while not job.done():
        time.sleep(pause)
        pause = min(2 * pause, _POLL_SECONDS[1])
        if time.monotonic() - logged_at > _LOG_SECONDS:
            logged_at = time.monotonic()
            _log.info("%s: %.0f s, job %s is %s", what, logged_at - started_at, job_id, job.state)
    if error := job.exception():
        raise error
    return job


def read_json(uri: str) -> dict[str, Any] | None:
    """Returns the value of a JSON file; `None` if it does not exist or is incomplete."""
    if not storage.exists(uri):
        return None
    text = storage.read(uri)
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def write_json(uri: str, value: Mapping[str, Any]) -> None:
    """Writes a JSON file, replacing an existing one.

    Raises:
        GoogleAPICallError: Cloud Storage rejected the request.
    """
    try:
        with storage.create(uri) as file:
            file.write(json.dumps(value).encode())
    except InvalidResponse as error:  # Only for uploads.
        raise from_http_response(error.response) from error  # type: ignore[no-untyped-call]


def size_text(count: int | None) -> str:
    """Returns a size for messages, e.g. "1.2 GB"."""
    size = float(count or 0)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
