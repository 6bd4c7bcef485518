"""Sinks outside the transaction: they take its answers before it is committed.

A transaction that is repeated puts the same answers again: stores upsert them by key, so a reader may see an
answer early, and never two; a topic of Pub/Sub gets them again, with the same id.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from airflow_provider_llmbeam.pipeline import sinks
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow
from airflow_provider_llmbeam.pipeline.queues.pubsub_publisher import MAX_BYTES, Outgoing, Publisher
from airflow_provider_llmbeam.pipeline.records import answer_record, encode_key, encode_record
from airflow_provider_llmbeam.pipeline.sinks import milvus
from airflow_provider_llmbeam.pipeline.sinks.pubsub import message_of_answer
from airflow_provider_llmbeam.pipeline.stream.outputs import Outputs
from airflow_provider_llmbeam.pipeline.stream.partition import Commit, Result, Vector
from airflow_provider_llmbeam.pipeline.stream.queue import MESSAGE_ID
from airflow_provider_llmbeam.pipeline.stream.vectors import TEXT, embedding_of, text_to_embed
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.sink import MilvusSink, PubSubSink

#: Position of an answer among those of a transaction, and why it is refused.
_Refuse = Callable[[int, str], None]


class Stores:
    """The sinks of a job outside the transaction.

    Args:
        jobs: The job with each of them as its sink.
        outputs: Makes the records of answers that one refuses.
        publisher: Sends to topics of Pub/Sub; `None` if there is none.
    """

    def __init__(self, jobs: Sequence[JobSpec], outputs: Outputs, publisher: Publisher | None = None) -> None:
        self._jobs = [(job, OutputColumns.of(job)) for job in jobs]
        self._outputs, self._publisher = outputs, publisher

    def put(self, commits: Sequence[Commit]) -> list[Commit]:
        """Stores the answers of a transaction; those that a store refuses are of the dead letter.

        Raises:
            JobFailedError: A store does not take them now.
        """
        vectors = 0  # stores before, which have vectors
        for job, columns in self._jobs:
            every = [(each, each.row) for commit in commits for each in commit.results if each.row is not None]
            if (embed := embedding_of(job.sink)) is not None:
                every = [
                    (each, _with_vector(row, each.message.vectors[vectors], embed.field)) for each, row in every
                ]
                vectors += 1
            refused = self._put(job, columns, every)
            commits = [
                replace(commit, results=tuple(refused.get(id(each), each) for each in commit.results))
                for commit in commits
            ]
        return [*commits]

    def _put(
        self, job: JobSpec, columns: OutputColumns, rows: Sequence[tuple[Result, AnsweredRow]]
    ) -> dict[int, Result]:
        """Stores answers; returns what becomes of those that are refused, by the identity of the result."""
        if not isinstance(job.sink, PubSubSink):  # the last one of a key counts
            rows = [*{encode_key(row.row, columns.key): (result, row) for result, row in rows}.values()]
        refused = dict[int, Result]()

        def refuse(number: int, reason: str) -> None:
            result, _ = rows[number]
            assert result.row is not None
            refused[id(result)] = self._outputs.refused(result.message, result.row, reason)

        if rows and isinstance(job.sink, PubSubSink):
            self._publish(job.sink, columns, rows, refuse)
        elif rows:
            _store(job, columns, [row for _, row in rows], refuse)
        return refused

    def _publish(
        self, sink: PubSubSink, columns: OutputColumns, rows: Sequence[tuple[Result, AnsweredRow]], refuse: _Refuse
    ) -> None:
        assert self._publisher is not None
        numbers, messages = list[int](), list[Outgoing]()
        for number, (result, row) in enumerate(rows):
            message = message_of_answer(sink, columns.key, answer_record(row, columns))
            if len(message["data"]) > MAX_BYTES:
                refuse(number, f"the answer is a message of {len(message['data']):,} bytes: {MAX_BYTES:,} at most")
                continue
            attributes = {**message["attributes"], MESSAGE_ID: result.message.id}
            numbers.append(number)
            messages.append(Outgoing(message["data"], attributes, message.get("ordering_key", "")))
        for position, reason in self._publisher.send(sink.topic, messages).items():
            refuse(numbers[position], f"`sink.topic` {reason}")


def _with_vector(answered: AnsweredRow, vector: Vector, field: str) -> AnsweredRow:
    """Returns an answer with a vector in its place, and the text that it is of as a column."""
    return replace(
        answered,
        row={**answered.row, TEXT: text_to_embed(answered, field)},
        fingerprint=vector.fingerprint,
        completion=vector.completion,
        origin=vector.origin,
    )


def _store(job: JobSpec, columns: OutputColumns, rows: Sequence[AnsweredRow], refuse: _Refuse) -> None:
    with tempfile.TemporaryDirectory(prefix="llmbeam-stream-") as directory:
        path = Path(directory) / "answers.jsonl"
        path.write_bytes(b"".join(encode_record(answer_record(row, columns)) for row in rows))
        if isinstance(job.sink, MilvusSink):
            # A server makes what it has logged durable by itself, and refuses a flush every second.
            milvus.publish(job.sink, columns, {0: str(path)}, refuse, flushes=False)
        else:
            sinks.publish(job, {0: str(path)}, refuse)
