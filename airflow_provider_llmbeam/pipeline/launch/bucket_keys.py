"""The check of buckets to which a service writes that takes no key of Cloud KMS for its files."""

from __future__ import annotations

from typing import Any

from google.api_core.exceptions import Forbidden, NotFound

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.launch.failure import preparation
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import DataflowRunner
from airflow_provider_llmbeam.spec.source import BigQuerySource


def check_bucket_keys(spec: JobSpec) -> None:
    """Checks that the key of a job is the default key of the buckets to which services write for it.

    Neither the extract of BigQuery nor Beam's upload for Dataflow has a field for a key, and that of a
    batch-inference job is documented for its resources, not for its files (Discovery documents, November 2026).

    Raises:
        JobSpecError: It is not, or cannot be read; nothing was sent.
    """
    if spec.kms_key_name is None:
        return
    writers: dict[str, str] = {}
    if isinstance(spec.source, BigQuerySource):
        writers[spec.paths.export_uri] = "the exports of BigQuery"
    if isinstance(spec.runner, DataflowRunner):
        writers[spec.paths.temp_uri] = "what Dataflow stages"
    if spec.inference.mode != "online":
        writers[spec.paths.batch_uri] = "the results of batch inference"
    with preparation(spec):
        for uri, what in writers.items():
            if (found := storage.cloud_object(uri)) is not None:
                _check(found[0], what, spec.kms_key_name)


def _check(bucket: Any, what: str, kms_key_name: str) -> None:
    uri = f"gs://{bucket.name}"
    reason = f"`kms_key_name` {kms_key_name!r}: {what} in {uri!r} have the default key of the bucket"
    try:
        bucket.reload()
    except NotFound:
        raise JobSpecError(f"{reason}, and there is no such bucket.") from None
    except Forbidden:
        raise JobSpecError(
            f"{reason}, which this account cannot read: it needs the permission `storage.buckets.get`."
        ) from None
    if bucket.default_kms_key_name != kms_key_name:
        raise JobSpecError(
            f"{reason}, which is {bucket.default_kms_key_name or 'one of Google'!r}. Set it, `gcloud storage "
            f"buckets update {uri} --default-encryption-key={kms_key_name}`."
        )
