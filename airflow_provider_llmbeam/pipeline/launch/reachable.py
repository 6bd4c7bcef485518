"""Whether the places of a job can be reached at all, which is asked once, before anything else of a job.

Without a network, the clients of Google look for credentials and repeat each request for two minutes: a job with a
source on gs:// took 151 s to say so.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from urllib.parse import urlsplit

import requests

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.storage import check_scheme
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety import FilesAudit
from airflow_provider_llmbeam.spec.sink import FilesSink
from airflow_provider_llmbeam.spec.source import FilesSource

#: Timeout of each of the two requests, in seconds: to connect, and to answer.
_TIMEOUT_SECONDS = (4.0, 10.0)
_ATTEMPTS = 2
#: The package that Beam needs for a filesystem, and the extra of `apache-beam` that has it (Beam 2.77).
_PACKAGES = {"s3": ("boto3", "aws"), "azfs": ("azure.storage.blob", "azure"), "hdfs": ("hdfs", "hadoop")}
_AZURE = frozenset({"abfs", "abfss", "wasb", "wasbs", "az"})


def check_reachable(spec: JobSpec) -> None:
    """Sends one small request to Cloud Storage if the job reads or writes there.

    Raises:
        JobFailedError: There is no answer.
        JobSpecError: A place is on a filesystem that Beam does not have, or whose package is not installed.
    """
    audit = spec.safety.audit
    fields = {
        "source.uri": spec.source.uri if isinstance(spec.source, FilesSource) else "",
        "sink.uri": spec.sink.uri if isinstance(spec.sink, FilesSink) else "",
        "state_uri": spec.state_uri or "",
        "prompt.media": next((media.uri for media in spec.prompt.media if media.uri.startswith("gs://")), ""),
    }
    for field, uri in (fields | {"safety.audit.uri": audit.uri if isinstance(audit, FilesAudit) else ""}).items():
        _check_installed(field, uri)
    for field, uri in fields.items():
        if uri.startswith("gs://"):
            check_uri_reachable(field, uri)
            return


def _check_installed(field: str, uri: str) -> None:
    scheme, separator, _ = uri.partition("://")
    if not separator or scheme == "gs":
        return
    if scheme in _AZURE:
        raise JobSpecError(
            f"`{field}` {uri!r}: Beam reads no {scheme}://. Expected azfs://account/container/…, with "
            "`pip install 'apache-beam[azure]'`."
        )
    if scheme not in _PACKAGES:
        check_scheme(field, uri)  # a filesystem that the user has added
        return
    package, extra = _PACKAGES[scheme]
    try:
        is_installed = find_spec(package) is not None
    except ModuleNotFoundError:  # of the package that contains it
        is_installed = False
    if not is_installed:
        raise JobSpecError(
            f"`{field}` {uri!r}: {scheme}:// needs the package {package!r}, which is not installed here. Install "
            f"it with `pip install 'apache-beam[{extra}]'`."
        )


def check_uri_reachable(field: str, uri: str) -> None:
    """Sends one small request to Cloud Storage if an address is there.

    Any answer will do: who may read what is the business of the clients, whose messages name it.

    Args:
        field: Field of the address, for the message.
        uri: The address.

    Raises:
        JobFailedError: There is no answer.
    """
    if not uri.startswith("gs://"):
        return
    # The variables of google-cloud-storage (`_helpers.py`).
    server = os.environ.get("STORAGE_EMULATOR_HOST") or os.environ.get("API_ENDPOINT_OVERRIDE")
    server = server or "https://storage.googleapis.com"
    for attempt in range(_ATTEMPTS):
        try:
            requests.head(server, timeout=_TIMEOUT_SECONDS, allow_redirects=False)
        except requests.RequestException as error:
            if attempt + 1 < _ATTEMPTS:
                continue
            parts = urlsplit(server)
            raise JobFailedError(
                f"`{field}` {uri!r}: Cloud Storage ({parts.scheme}://{parts.hostname}) cannot be reached: "
                f"{_reason(error)}. Nothing was sent or billed. Check the network and HTTPS_PROXY."
            ) from error
        return


def _reason(error: requests.RequestException) -> str:
    """Returns the error of the operating system behind an error of requests, which names itself three times."""
    way = "through the proxy, " if isinstance(error, requests.exceptions.ProxyError) else ""
    if isinstance(error, requests.Timeout):
        return f"{way}no answer within {_TIMEOUT_SECONDS[0]:g} s"
    found: BaseException = error
    while (earlier := found.__cause__ or found.__context__) is not None:
        found = earlier
    reason = found.strerror if isinstance(found, OSError) and found.strerror else str(found)
    return f"{way}{reason.rstrip('.')}"
