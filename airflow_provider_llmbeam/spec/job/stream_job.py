"""The rules that a job must satisfy to be a stream."""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator

from airflow_provider_llmbeam.spec.base import NOT_SHOWN, FieldFaultError
from airflow_provider_llmbeam.spec.job.job import JobSpec
from airflow_provider_llmbeam.spec.safety import FilesAudit
from airflow_provider_llmbeam.spec.source import KafkaSource

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
    types = [sink.type for sink in (spec.sink, *spec.sinks)]
    moderation = spec.safety.moderation
    judges_output = moderation is not None and "output" in moderation.on
    dlp, order_by = privacy and privacy.dlp, spec.conversation and spec.conversation.order_by
    faults: tuple[tuple[bool, str, str, Any], ...] = (
        (
            not isinstance(source, KafkaSource) or source.window is not None,
            "source",
            "must be of type 'kafka' in a stream, without a time range",
            NOT_SHOWN,
        ),
        (
            not {*types} <= {"kafka", "milvus", "postgres"} or types.count("kafka") > 1,
            "sinks",
            "must be of types 'kafka', at most one, 'milvus' and 'postgres' in a stream, with `sink`",
            types,
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
            "must be a directory of a disk in a stream, which stores each record before its answer: copy the files "
            "from there, e.g. each day",
            NOT_SHOWN,
        ),
    )
    return next((FieldFaultError(field, want, got) for is_so, field, want, got in faults if is_so), None)


def _is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith("file://")
