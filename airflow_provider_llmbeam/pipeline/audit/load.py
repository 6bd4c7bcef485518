"""The audit in BigQuery: appends the records of a job to a table, each once."""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from google.api_core.exceptions import GoogleAPIError, NotFound
from google.auth.exceptions import GoogleAuthError
from google.cloud import bigquery
from google.cloud.bigquery import SchemaField

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.bigquery_jobs import (
    before_the_model,
    check_bucket,
    check_table_key,
    connect,
    encrypted,
    message_of,
    read_json,
    reference_of,
    run_once,
    run_with_recorded_id,
)
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.safety import BigQueryAudit

_log = logging.getLogger("llmbeam")

#: Source: cloud.google.com/bigquery/quotas, "Maximum number of source URIs per job configuration".
_MAX_FILES = 10_000
_TEXTS = ("deployment", "dag_id", "task_id", "run_id", "account", "model_type", "requested_model", "fingerprint")
_MORE_TEXTS = ("origin", "outcome", "category", "model", "service_tier", "system", "prompt", "answer")
_NUMBERS = ("map_index", "http_status", "input_tokens", "cached_tokens", "output_tokens", "attempts", "rejections")
SCHEMA = (
    SchemaField("schema_version", "INTEGER"),
    SchemaField("record_id", "STRING"),
    SchemaField("at", "TIMESTAMP"),
    SchemaField("job", "STRING"),
    SchemaField("row_key_hashes", "STRING", "REPEATED"),
    *(SchemaField(name, "STRING") for name in (*_TEXTS, *_MORE_TEXTS)),
    *(SchemaField(name, "INTEGER") for name in _NUMBERS),
    SchemaField("cost_usd", "FLOAT"),
    SchemaField(
        "masked", "RECORD", "REPEATED", fields=(SchemaField("kind", "STRING"), SchemaField("count", "INTEGER"))
    ),
)


def check_audit(spec: JobSpec) -> None:
    """Checks, before anything is sent, that the dataset of the table exists.

    Raises:
        JobSpecError: It does not exist, or the bucket of `state_uri` is elsewhere.
        JobFailedError: BigQuery does not answer now.
    """
    audit = spec.safety.audit
    if not isinstance(audit, BigQueryAudit):
        return
    target = reference_of(audit.table)
    subject = f"`safety.audit.table` {audit.table!r}"
    with before_the_model(subject), connect(audit.project or target.project) as client:
        dataset = client.get_dataset(bigquery.DatasetReference(target.project, target.dataset_id))
        check_bucket(str(spec.paths.audit_uri), "state_uri", client, dataset.location)
        with suppress(NotFound):
            check_table_key(client.get_table(target), spec.kms_key_name)


@contextmanager
def load_audit_around(spec: JobSpec) -> Iterator[None]:
    """Loads the records that an earlier run has left, and after the body those of this one, however it ends.

    Raises:
        JobFailedError: BigQuery does not load them.
    """
    load_audit(spec)
    try:
        yield
    except BaseException:
        try:
            load_audit(spec)
        except Exception as error:  # noqa: BLE001 - the error of the body is that of the job
            _log.error("%s", error)
        raise
    load_audit(spec)


def load_audit(spec: JobSpec) -> None:
    """Appends the records that are stored below the state of a job to the table of its audit, and deletes them.

    Raises:
        JobFailedError: BigQuery does not load them; they stay where they are.
    """
    audit, directory = spec.safety.audit, spec.paths.audit_uri
    if not isinstance(audit, BigQueryAudit) or directory is None:
        return
    record = f"{directory}load.json"
    # What an earlier attempt has begun, perhaps loaded, and not deleted, comes first, and alone.
    begun = read_json(record)
    groups = [] if begun is None else [[str(uri) for uri in begun["of"]["files"]]]
    known = {uri for group in groups for uri in group}
    stored = storage.sizes(f"{directory}*.jsonl")
    # A batch whose prompts were all in the journal leaves a file without records.
    found = sorted(uri for uri, size in stored.items() if size and uri not in known)
    groups += [found[start : start + _MAX_FILES] for start in range(0, len(found), _MAX_FILES)]
    try:
        for group in groups:
            # An attempt that was killed may have deleted some or all of them: they were loaded.
            if left := [uri for uri in group if uri in stored]:
                of = {"table": audit.table, "files": group}
                with connect(audit.project or reference_of(audit.table).project) as client:
                    work = partial(_append, client, audit.table, left, spec.kms_key_name)
                    run_with_recorded_id(record, of, work, stale_seconds=math.inf)
                storage.delete(left)
            storage.delete([record])
    except (GoogleAPIError, GoogleAuthError) as error:
        message = message_of(error) if isinstance(error, GoogleAPIError) else f"{error}."
        raise JobFailedError(
            f"`safety.audit.table` {audit.table!r}: {message} The audit records are in {directory!r}, and the "
            "answers in the journal: a retry loads the records, and sends nothing to the model that was answered."
        ) from None


def _append(
    client: bigquery.Client, table: str, files: Sequence[str], kms_key_name: str | None, work_id: str
) -> None:
    target = reference_of(table)
    location = client.get_dataset(bigquery.DatasetReference(target.project, target.dataset_id)).location
    job_id = f"llmbeam-audit-{work_id}"
    options: dict[str, Any] = {
        "job_id": job_id,
        "location": location,
        "job_config": encrypted(
            bigquery.LoadJobConfig(
                source_format="NEWLINE_DELIMITED_JSON",
                schema=SCHEMA,
                write_disposition="WRITE_APPEND",
                schema_update_options=["ALLOW_FIELD_ADDITION"],
                time_partitioning=bigquery.TimePartitioning(field="at"),
            ),
            kms_key_name,
        ),
    }

    if files[0].startswith("gs://"):
        start = partial(client.load_table_from_uri, list(files), target, **options)
        run_once(client, job_id, location, start, "Loading audit records")
        return
    with tempfile.TemporaryFile() as joined:
        joined.writelines(_complete_lines(files))
        if joined.tell():
            start = partial(client.load_table_from_file, joined, target, rewind=True, **options)
            run_once(client, job_id, location, start, "Loading audit records")


def _complete_lines(files: Iterable[str]) -> Iterator[bytes]:
    """Yields the records of local files, of which a full disk or a kill may have cut the last one."""
    cut: list[str] = []
    for uri in files:
        if not storage.exists(uri):
            continue
        with storage.open_buffered(uri) as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line
                else:
                    cut.append(uri)
    if cut:
        _log.warning(
            "Audit records that a full disk or a kill has cut off, and that are not loaded: %d, the first in %r. "
            "Each is complete in another file, or its request may be billed and has no answer in the journal.",
            len(cut),
            cut[0],
        )
