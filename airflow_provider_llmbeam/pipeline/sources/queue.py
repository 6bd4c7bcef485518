"""What the publication of a job does to the queue that it reads; nothing for other sources."""

from __future__ import annotations

from airflow_provider_llmbeam.pipeline.queues import position_file
from airflow_provider_llmbeam.pipeline.queues.deliveries_file import Batches
from airflow_provider_llmbeam.pipeline.sources.messages import discard
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.source import KafkaSource, PubSubSource


def before_publication(spec: JobSpec) -> None:
    """Checks that no other run has published the messages of this one.

    Raises:
        JobFailedError: Another run has; nothing was published.
    """
    match spec.source:
        case KafkaSource():
            position_file.check_next(spec)
        case PubSubSource():
            Batches(spec).check()


def was_published(spec: JobSpec) -> bool:
    """Returns whether the messages of the run are published, and cannot be read again, as those of Pub/Sub."""
    return isinstance(spec.source, PubSubSource) and Batches(spec).is_published()


def messages_left(spec: JobSpec) -> int | None:
    """Returns the number of messages that the run has left to the next one; `None` if it is not known."""
    return position_file.messages_left(spec) if isinstance(spec.source, KafkaSource) else None


def after_publication(spec: JobSpec) -> None:
    """Records that the messages of the run are published, and deletes its copies."""
    match spec.source:
        case KafkaSource():
            position_file.advance(spec)
        case PubSubSource():
            Batches(spec).publish()
        case _:
            return
    discard(spec)
