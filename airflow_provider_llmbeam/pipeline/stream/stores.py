"""Sinks outside Kafka: they take the answers of a transaction, by key, before it is committed.

A transaction that is repeated upserts the same answers again, so a reader of the store may see an answer early,
and never two.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from airflow_provider_llmbeam.pipeline import sinks
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow
from airflow_provider_llmbeam.pipeline.records import answer_record, encode_key, encode_record
from airflow_provider_llmbeam.pipeline.sinks import milvus
from airflow_provider_llmbeam.pipeline.stream.outputs import Outputs
from airflow_provider_llmbeam.pipeline.stream.partition import Commit, Result
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.sink import MilvusSink


class Stores:
    """The stores of a job.

    Args:
        jobs: The job with each of its stores as its sink.
        outputs: Makes the records of answers that a store refuses.
    """

    def __init__(self, jobs: Sequence[JobSpec], outputs: Outputs) -> None:
        self._jobs = [(job, OutputColumns.of(job)) for job in jobs]
        self._outputs = outputs

    def put(self, commits: Sequence[Commit]) -> list[Commit]:
        """Stores the answers of a transaction; those that a store refuses are of the dead letter.

        Raises:
            JobFailedError: A store does not take them now.
        """
        for job, columns in self._jobs:
            every = [result for commit in commits for result in commit.results if result.row is not None]
            refused = self._put(job, columns, every)
            commits = [
                replace(commit, results=tuple(refused.get(id(each), each) for each in commit.results))
                for commit in commits
            ]
        return [*commits]

    def _put(self, job: JobSpec, columns: OutputColumns, results: Sequence[Result]) -> dict[int, Result]:
        """Stores answers; returns what becomes of those that are refused, by the identity of the result."""
        latest: dict[bytes, tuple[Result, AnsweredRow]] = {}
        for each in results:
            if each.row is not None:
                latest[encode_key(each.row.row, columns.key)] = each, each.row
        if not latest:
            return {}
        rows, refused = [*latest.values()], dict[int, Result]()

        def refuse(number: int, reason: str) -> None:
            result, row = rows[number]
            refused[id(result)] = self._outputs.refused(result.message, row, reason)

        with tempfile.TemporaryDirectory(prefix="llmbeam-stream-") as directory:
            path = Path(directory) / "answers.jsonl"
            path.write_bytes(b"".join(encode_record(answer_record(row, columns)) for _, row in rows))
            if isinstance(job.sink, MilvusSink):
                # A server makes what it has logged durable by itself, and refuses a flush every second.
                milvus.publish(job.sink, columns, {0: str(path)}, refuse, flushes=False)
            else:
                sinks.publish(job, {0: str(path)}, refuse)
        return refused
