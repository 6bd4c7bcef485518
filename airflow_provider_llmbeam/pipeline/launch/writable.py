"""The probe of the directories that a job writes to, before anything is sent."""

from __future__ import annotations

import uuid
from urllib.parse import urlsplit

from google.api_core.exceptions import GoogleAPICallError, NotFound, from_http_response
from google.auth.exceptions import GoogleAuthError

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety import FilesAudit
from airflow_provider_llmbeam.spec.sink import FilesSink
from airflow_provider_llmbeam.transport.google_auth import is_transient_token_error
from airflow_provider_llmbeam.transport.redirects import RedirectRefusedError

#: Size of the probe. An empty file can be made on a full disk.
_PROBE_BYTES = 64 * 2**10
_FINAL_ERRORS = (PermissionError, NotADirectoryError, FileExistsError, IsADirectoryError, RedirectRefusedError)


def check_writable(spec: JobSpec, *, publishes: bool = True) -> None:
    """Writes and deletes a file in each directory of answers, journal, report and audit; one for each bucket.

    Args:
        spec: The job.
        publishes: Whether the answers are published; an estimate only records them.

    Raises:
        JobSpecError: A directory cannot be written, and a retry would not change that.
        JobFailedError: It cannot be written now, e.g. because its disk is full.
    """
    outputs = (spec.paths.output_uri, spec.paths.staging_uri) if publishes else (spec.paths.output_uri,)
    fields = dict.fromkeys(outputs, "sink.uri" if isinstance(spec.sink, FilesSink) else "state_uri")
    fields[spec.paths.journal_uri] = "sink.uri" if spec.state_uri is None else "state_uri"
    if isinstance(spec.safety.audit, FilesAudit):
        fields[spec.safety.audit.uri] = "safety.audit.uri"
    for uri in {_place(uri): uri for uri in reversed(fields)}.values():
        try:
            _probe(uri)
        except Exception as raised:
            error = service_error(raised)
            kind = JobSpecError if is_final(error) else JobFailedError
            raise kind(
                f"`{fields[uri]}` {uri!r}: a first file could not be written and deleted there: "
                f"{_reason(error, uri).rstrip('.')}. Nothing was sent or billed."
            ) from raised


def make_directories(spec: JobSpec) -> None:
    """Makes the directories of a job that nobody else needs to read.

    Raises:
        JobSpecError: One cannot be made, or leads elsewhere by a link.
    """
    paths = spec.paths
    for uri in {*paths.private_uris, paths.rates_uri} - {paths.audit_uri}:  # which a user names, and never shrinks
        storage.refuse_links(uri)
    for uri in paths.private_uris:
        storage.make_private(uri)


def service_error(error: Exception) -> Exception:
    """Returns the error of the service that an error of Beam, or of an upload, contains."""
    while details := getattr(error, "exception_details", None):
        error = next(iter(details.values()))
    response = getattr(error, "response", None)
    if isinstance(error, RedirectRefusedError) or not hasattr(response, "status_code"):
        return error
    found: Exception = from_http_response(response)  # type: ignore[no-untyped-call]
    return found


def is_final(error: Exception) -> bool:
    """Whether a retry would meet the same error of a service: a 4xx, or a path that cannot be written."""
    if isinstance(error, GoogleAuthError):
        return not is_transient_token_error(error)
    if isinstance(error, _FINAL_ERRORS):
        return True
    code = getattr(error, "code", None)
    return isinstance(code, int) and 400 <= code < 500 and code not in (408, 429)


def _reason(error: Exception, uri: str) -> str:
    if isinstance(error, NotFound):
        return f"there is no bucket {urlsplit(uri).netloc!r}"
    if isinstance(error, GoogleAPICallError):
        return f"HTTP {error.code}: {error.message}"
    return str(error)


def _place(uri: str) -> str:
    """Returns what has access rights of its own: a bucket, or a local directory."""
    parts = urlsplit(uri)
    return parts.netloc or uri


def _probe(directory: str) -> None:
    uri = f"{directory}probe-{uuid.uuid4().hex}"
    with storage.create(uri) as file:
        file.write(bytes(_PROBE_BYTES))
    storage.delete([uri])
