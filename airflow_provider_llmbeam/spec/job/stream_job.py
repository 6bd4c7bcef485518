"""The rules that a job must satisfy to be a stream."""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator

from airflow_provider_llmbeam.spec.base import NOT_SHOWN, FieldFaultError
from airflow_provider_llmbeam.spec.job.job import JobSpec
from airflow_provider_llmbeam.spec.safety import FilesAudit
from airflow_provider_llmbeam.spec.source import KafkaSource, PubSubSource

#: Options that name what a stream has in Kafka alone.
_OF_KAFKA = ("group_id", "journal_topic", "history_topic", "metrics_topic", "piece_topic")
_SCHEDULED = "a job on a schedule may have it (docs/queues.md)"


class StreamJob(JobSpec):
    """A job that `llmbeam stream` can run."""

    @model_validator(mode="after")
    def _can_be_a_stream(self) -> Self:
        if (fault := _stream_fault(self)) is not None:
            raise fault
        return self


def _stream_fault(spec: JobSpec) -> FieldFaultError | None:
    """Returns why a job cannot be a stream, or `None`."""
    source, privacy, audit = spec.source, spec.safety.privacy, spec.safety.audit
    sinks = spec.sinks_by_field.values()
    types = [sink.type for sink in sinks]
    moderation = spec.safety.moderation
    judges_output = moderation is not None and "output" in moderation.on
    is_kafka, topic = isinstance(source, KafkaSource), spec.stream.dead_letter_topic
    embed = next(filter(None, (getattr(sink, "embed", None) for sink in sinks)), None)
    of_kafka = (
        ("conversation", spec.conversation and NOT_SHOWN),
        ("stream.stream_output", spec.stream.stream_output or None),
        *((f"stream.{name}", getattr(spec.stream, name)) for name in _OF_KAFKA),
    )
    dlp, order_by = privacy and privacy.dlp, spec.conversation and spec.conversation.order_by
    faults: tuple[tuple[bool, str, str, Any], ...] = (
        (
            not isinstance(source, KafkaSource | PubSubSource) or getattr(source, "window", None) is not None,
            "source",
            "must be of type 'kafka' in a stream, without a time range, or 'pubsub'",
            NOT_SHOWN,
        ),
        (
            not {*types} <= {"kafka", "milvus", "postgres", "pubsub"} or types.count("kafka") > is_kafka,
            "sinks",
            "must be of types 'milvus', 'postgres' and 'pubsub' in a stream, with `sink`; from Kafka, at most one "
            "may be of type 'kafka', whose transaction has the positions of the source, too",
            types,
        ),
        (
            embed is not None and spec.embedding is not None,
            "sink.embed",
            "must be left out with `task` 'embed', whose answers are vectors",
            NOT_SHOWN,
        ),
        (
            topic is not None and topic.startswith("projects/") == is_kafka,
            "stream.dead_letter_topic",
            f"must be a topic of {'Kafka' if is_kafka else 'Pub/Sub'}, as the source is",
            topic,
        ),
        *(
            (value is not None and not is_kafka, field, "must be left out with a source of type 'pubsub'", value)
            for field, value in of_kafka
        ),
        (
            spec.inference.mode != "online",
            "inference.mode",
            f"must be 'online' in a stream; {_SCHEDULED}",
            spec.inference.mode,
        ),
        (spec.cascade is not None, "cascade", f"must be left out of a stream; {_SCHEDULED}", NOT_SHOWN),
        (
            order_by is not None,
            "conversation.order_by",
            "must be left out of a stream: the order of the topic counts",
            order_by,
        ),
        (bool(spec.prompt.media), "prompt.media", f"must be left out of a stream; {_SCHEDULED}", NOT_SHOWN),
        (
            dlp is not None,
            "safety.privacy.detectors",
            "must have none of type 'dlp' in a stream, where each message would wait for that service: name "
            f"others, or {_SCHEDULED}",
            NOT_SHOWN,
        ),
        (
            spec.stream.stream_output and (privacy is not None or judges_output),
            "stream.stream_output",
            "must be left out with `safety.privacy` and with moderation of the output: pieces are read before the "
            "answer is restored and judged",
            NOT_SHOWN,
        ),
        (
            audit is not None and not (isinstance(audit, FilesAudit) and _is_local(audit.uri)),
            "safety.audit",
            "must be a directory of a disk in a stream, which stores each record before its answer: copy the "
            "files from there, e.g. each day",
            NOT_SHOWN,
        ),
    )
    return next((FieldFaultError(field, want, got) for is_so, field, want, got in faults if is_so), None)


def _is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith("file://")
