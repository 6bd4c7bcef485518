"""Sinks of answers, one module per type. Each publishes complete staged files atomically."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from airflow_provider_llmbeam.exceptions import JobSpecError, require_extra
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.sinks import bigquery, files, kafka, merge_files, milvus, pubsub
from airflow_provider_llmbeam.pipeline.sinks.ownership import (
    files_to_replace,
    find_foreign_file,
    names_of,
    record_published,
)
from airflow_provider_llmbeam.pipeline.sinks.refused import Refuse
from airflow_provider_llmbeam.spec.identity import job_identity
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.runner import sink_needs_worker_secrets
from airflow_provider_llmbeam.spec.sink import (
    BigQuerySink,
    FilesSink,
    KafkaSink,
    MilvusSink,
    PostgresSink,
    PubSubSink,
    Sink,
)


def staged_as(sink: Sink) -> tuple[str, int]:
    """Returns the format and the number of the staged files of a sink."""
    match sink:
        case FilesSink():
            return sink.format, sink.shards
        case BigQuerySink():
            return "parquet", 1
        case PostgresSink() | MilvusSink() | KafkaSink() | PubSubSink():
            return "jsonl", 1


def check(spec: JobSpec) -> None:
    """Checks, before anything is billed, that the sink can store the answers.

    If only the workers have its key, they check it with `check_here`.

    Raises:
        JobSpecError: The sink cannot store the answers.
        JobFailedError: The sink does not answer.
    """
    if not sink_needs_worker_secrets(spec.runner, spec.sink):
        check_here(spec)


def check_here(spec: JobSpec) -> None:
    """Checks from this machine, with the keys of this process, that the sink can store the answers.

    Raises:
        JobSpecError: The sink cannot store the answers.
        JobFailedError: The sink does not answer.
    """
    match spec.sink:
        case BigQuerySink():
            bigquery.check(spec.sink, OutputColumns.of(spec), spec.paths.staging_uri, spec.kms_key_name)
        case PostgresSink():
            _postgres().check(spec.sink, OutputColumns.of(spec))
        case FilesSink():
            if (fault := find_foreign_file(spec)) is not None:
                raise JobSpecError(fault)
            if spec.sink.on_existing == "merge":
                merge_files.check(spec.sink, OutputColumns.of(spec))
        case MilvusSink():
            milvus.check(spec.sink, OutputColumns.of(spec))
        case KafkaSink():
            kafka.check(spec.sink, job_identity(spec))
        case PubSubSink():
            pubsub.check(spec.sink)
        case _:
            pass


def publish(spec: JobSpec, staged: Mapping[int, str], refuse: Refuse) -> list[str]:
    """Publishes the staged answers; doing it again changes nothing.

    A job that writes files holds their lease, see `lease.hold_sink`.

    Args:
        spec: The job.
        staged: Address of the file of each shard.
        refuse: Takes each answer that the sink refuses, all others are published.

    Returns:
        The addresses of the answers, for the report.
    """
    match spec.sink:
        case FilesSink():
            return _publish_files(spec, spec.sink, staged)
        case BigQuerySink():
            return bigquery.publish(spec.sink, spec.source.key, spec.name, staged, refuse, spec.kms_key_name)
        case PostgresSink():
            addresses: list[str] = _postgres().publish(spec.sink, OutputColumns.of(spec), staged, refuse)
            return addresses
        case MilvusSink():
            return milvus.publish(spec.sink, OutputColumns.of(spec), staged, refuse)
        case KafkaSink():
            sent_uri = spec.paths.sent_uri
            return kafka.publish(spec.sink, spec.source.key, job_identity(spec), staged, sent_uri, refuse)
        case PubSubSink():
            return pubsub.publish(spec.sink, spec.source.key, staged, spec.paths.sent_uri, refuse)


def _publish_files(spec: JobSpec, sink: FilesSink, staged: Mapping[int, str]) -> list[str]:
    earlier, names = files_to_replace(spec), names_of(spec)
    # Until the last file is in its place, those of the earlier run are also files of jobs.
    record_published(spec, {*names, *(uri.rpartition("/")[2] for uri in earlier)})
    if sink.on_existing == "merge":
        answers = merge_files.publish(sink, OutputColumns.of(spec), staged, spec.paths.staging_uri)
    else:
        answers = files.publish(sink, staged, earlier)
    record_published(spec, names)
    return answers


def _postgres() -> ModuleType:
    """Returns the module of the PostgreSQL sink, whose driver is an extra."""
    with require_extra("A sink of type 'postgres'", "postgres"):
        from airflow_provider_llmbeam.pipeline.sinks import postgres
    return postgres
