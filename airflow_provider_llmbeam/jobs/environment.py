"""Environment of a job's process: an allow-list, as the worker's own holds the secrets of Airflow."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.hooks.configuration import configured_lists
from airflow_provider_llmbeam.redaction import is_secret_name
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import BINARY_VARIABLE, PrismRunner
from airflow_provider_llmbeam.spec.sink import PostgresSink

#: Variables of every job, by name or pattern. Those of a pattern whose names say that they are secret, such as
#: `GOOGLE_API_KEY`, are left out.
_ALWAYS = (
    # the process
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "NO_COLOR", "LANG", "LANGUAGE", "LC_*", "TZ", "XDG_*"),
    *("TMPDIR", "TEMP", "TMP", "PYTHON*", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_*", "MALLOC_*"),
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_*"),
    # certificates and proxies; a proxy's password is within its URL
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTPLIB2_CA_CERTS", "GRPC_*"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("grpc_proxy", "no_grpc_proxy"),
    # Google's clients: credentials file, project, metadata server, emulators
    *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_*", "GCLOUD_PROJECT", "CLOUDSDK_*", "GCE_METADATA_*"),
    *("NO_GCE_CHECK", "METADATA_SERVER_DETECTION_TIMEOUT", "STORAGE_EMULATOR_HOST", "BIGQUERY_EMULATOR_HOST"),
    "DISABLE_GCS_PYTHON_CLIENT_*",
    "*_BASE_URL",  # `ModelApi.base_url_variable`
    "LLMBEAM_SANDBOX_URL",  # answers of the sandbox are kept apart from those of Google, see `spec.model.server`
)
#: Further variables of jobs with files on these filesystems, whose clients read their keys from them.
_OF_SCHEMES = {"s3": ("AWS_*", "BOTO_CONFIG"), "azfs": ("AZURE_*",)}
#: Parameters of libpq that a connection string may lack, such as `PGSSLROOTCERT`.
_OF_POSTGRES = ("PG*",)

_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")


def job_environment(
    spec: JobSpec,
    given: Mapping[str, str],
    worker: Mapping[str, str],
    configured: Collection[str] = (),
) -> dict[str, str]:
    """Returns the environment of a job's process, without the configuration of Airflow, which has its keys.

    Args:
        spec: The job.
        given: Variables for this job, e.g. a key of a connection. They replace those of the worker.
        worker: Environment of the worker.
        configured: Names and patterns of further variables; see `configured_variables`.
    """
    wanted = (*spec.secret_variables, *configured, *_patterns_of(spec))
    passed = {
        name: value
        for name, value in worker.items()
        if _matches(name, wanted) or (_matches(name, _ALWAYS) and (name in _ALWAYS or not is_secret_name(name)))
    }
    return {name: value for name, value in (passed | dict(given)).items() if not name.startswith("AIRFLOW__")}


def configured_variables() -> tuple[str, ...]:
    """Returns the option `[llmbeam] job_environment` of Airflow: names and patterns `PREFIX_*` of variables.

    Raises:
        JobSpecError: One of them is no name, e.g. has a value, which the message does not repeat.
    """
    patterns = configured_lists()["job_environment"]
    if wrong := [number for number, part in enumerate(patterns, 1) if not _PATTERN.fullmatch(part)]:
        raise JobSpecError(
            f"`[llmbeam] job_environment` in the configuration of Airflow: item {wrong[0]} is not the name of an "
            "environment variable. Expected names and prefixes without values, e.g. 'AWS_*, KRB5CCNAME'."
        )
    return patterns


def _patterns_of(spec: JobSpec) -> tuple[str, ...]:
    sinks = spec.sinks_by_field.values()
    places = (*(getattr(part, "uri", None) for part in (spec.source, *sinks)), spec.state_uri)
    prism = (BINARY_VARIABLE,) if isinstance(spec.runner, PrismRunner) else ()
    schemes = {place.partition("://")[0] for place in places if place}
    found = [pattern for scheme in sorted(schemes) for pattern in _OF_SCHEMES.get(scheme, ())]
    return (*prism, *found, *(_OF_POSTGRES if any(isinstance(sink, PostgresSink) for sink in sinks) else ()))


def _matches(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
