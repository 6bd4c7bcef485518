"""How a resident worker answers the messages of a queue: `llmbeam stream`."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.fields.names import KafkaTopic, QueueTopic

#: What names a member in ids of Kafka.
_MEMBER = r"[A-Za-z0-9._-]{1,100}"


class StreamOptions(SpecModel):
    """Latency, limits and topics of a resident worker. A job that is run in the ordinary way ignores them.

    Answers and positions are committed in one transaction of Kafka. An answer joins one when every earlier message
    of its partition is answered, or is in the dead letter; until then it is held.

    Attributes:
        commit_interval_ms: Time between two transactions, in milliseconds.
        max_answers: Maximum number of answers of a transaction.
        batch_wait_ms: Longest time for which a message waits for others, in milliseconds, if the server takes
            several prompts per request.
        latency_budget_ms: Time from the message to its committed answer that is aimed at, in milliseconds: the
            transaction is committed before the interval is over, and later answers are counted. `None`: none.
        max_age_seconds: Age at which a message that was not sent yet goes to the dead letter, in seconds after its
            timestamp. `None`: it is sent whatever its age.
        max_held_answers: Number of held answers at which the worker reads no more messages.
        max_held_bytes: Size of held answers at which the worker reads no more messages, in bytes.
        drain_seconds: Longest time for which requests in flight are awaited, and aborted transactions repeated,
            when the worker ends, or gives partitions away, in seconds.
        create_topics: Whether missing topics are created, with as many partitions as the source. Those of the
            journal and of conversations are compacted, and need at least as many.
        group_id: Consumer group. `None`: named after the job.
        journal_topic: Topic of the answers that are paid for and not committed yet. `None`: named after the job.
        history_topic: Topic of the turns of conversations, of each the last ones that fit into one record. `None`:
            named after the job.
        dead_letter_topic: Topic of the messages without an answer. `None`: named after the job.
        stream_output: Whether answers are also written in pieces, while the model generates them, to `piece_topic`
            and outside the transactions. A piece has `kafka_topic`, `kafka_partition` and `kafka_offset` of its
            message, `sequence`, `text` and `last`.
        piece_topic: Topic of these pieces. `None`: named after the job.
        report_seconds: Interval between two lines of counts, in seconds.
        window_seconds: Length of a window of the metrics, in seconds; it divides an hour.
        metrics_topic: Topic to which each transaction writes its increment of a window. `None`: none.
    """

    commit_interval_ms: Annotated[int, Field(ge=1, le=60_000)] = 200
    max_answers: Annotated[int, Field(ge=1, le=10_000)] = 500
    batch_wait_ms: Annotated[int, Field(ge=0, le=60_000)] = 20
    latency_budget_ms: Annotated[int, Field(ge=1)] | None = None
    max_age_seconds: Annotated[float, Field(gt=0)] | None = None
    max_held_answers: Annotated[int, Field(ge=1)] = 10_000
    max_held_bytes: Annotated[int, Field(ge=1)] = 64 * 2**20
    drain_seconds: Annotated[float, Field(ge=0, le=240)] = 25.0
    create_topics: bool = False
    group_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    journal_topic: KafkaTopic | None = None
    history_topic: KafkaTopic | None = None
    dead_letter_topic: QueueTopic | None = None
    stream_output: bool = False
    piece_topic: KafkaTopic | None = None
    report_seconds: Annotated[float, Field(gt=0)] = 10.0
    window_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    metrics_topic: KafkaTopic | None = None

    @field_validator("window_seconds")
    @classmethod
    def _divides_an_hour(cls, seconds: int) -> int:
        if 3600 % seconds:
            raise ValueError("must divide an hour, e.g. 60")
        return seconds


class StreamRun(SpecModel):
    """One process of a resident worker.

    Attributes:
        run_for_seconds: Time after which it drains and ends, in seconds. `None`: it runs until it is ended.
        drain: Whether it ends as soon as no message of its partitions is left.
        http: Address of `/healthz`, `/readyz` and `/metrics`, e.g. `0.0.0.0:8080`. `None`: none.
        member: Name of the process among the members of the group, the same after its restart. `None`: host and
            the lowest number that no other process of the host uses, so that a pod of a StatefulSet keeps its own.
    """

    run_for_seconds: Annotated[float, Field(gt=0)] | None = None
    drain: bool = False
    http: Annotated[str, Field(pattern=r"^[^\s:]*:[0-9]{1,5}$")] | None = None
    member: str | None = None

    @field_validator("member")
    @classmethod
    def _in_an_id(cls, member: str | None) -> str | None:
        if member is not None and not re.fullmatch(_MEMBER, member):
            raise ValueError("must have letters, digits and . _ - alone, at most 100")
        return member
