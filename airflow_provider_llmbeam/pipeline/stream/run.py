"""The step `stream`: checks a job, and runs its resident worker in this process."""

from __future__ import annotations

import fcntl
import logging
import re
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_llmbeam import __version__
from airflow_provider_llmbeam.engine.engine import Engine
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline import sinks
from airflow_provider_llmbeam.pipeline.columns import OutputColumns
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.engine_thread import EngineThread
from airflow_provider_llmbeam.pipeline.features import features_of
from airflow_provider_llmbeam.pipeline.job_handler import JobHandler
from airflow_provider_llmbeam.pipeline.launch.interruption import stopped_at_signal
from airflow_provider_llmbeam.pipeline.moderation.guard import guard_job
from airflow_provider_llmbeam.pipeline.queues.kafka_client import Client
from airflow_provider_llmbeam.pipeline.queues.pubsub_publisher import Publisher
from airflow_provider_llmbeam.pipeline.shared_budget import check_budget, name_window
from airflow_provider_llmbeam.pipeline.stream.answers import Answers
from airflow_provider_llmbeam.pipeline.stream.histories import Histories
from airflow_provider_llmbeam.pipeline.stream.http import served
from airflow_provider_llmbeam.pipeline.stream.journal_writer import JournalWriter
from airflow_provider_llmbeam.pipeline.stream.member import Member
from airflow_provider_llmbeam.pipeline.stream.membership import agreed_of
from airflow_provider_llmbeam.pipeline.stream.metrics import Metrics
from airflow_provider_llmbeam.pipeline.stream.outputs import Outputs
from airflow_provider_llmbeam.pipeline.stream.pubsub_member import open_pubsub
from airflow_provider_llmbeam.pipeline.stream.queue import KEPT, Queue
from airflow_provider_llmbeam.pipeline.stream.state import StreamState
from airflow_provider_llmbeam.pipeline.stream.stores import Stores
from airflow_provider_llmbeam.pipeline.stream.topics import Topics, check_topics
from airflow_provider_llmbeam.pipeline.stream.vectors import AnswerEmbedder, embedding_of, vector_job
from airflow_provider_llmbeam.pipeline.stream.worker import StreamWorker
from airflow_provider_llmbeam.spec.identity import spec_digest
from airflow_provider_llmbeam.spec.job import JobSpec, StreamJob
from airflow_provider_llmbeam.spec.sink import KafkaSink, PubSubSink
from airflow_provider_llmbeam.spec.source import KafkaSource, PubSubSource
from airflow_provider_llmbeam.spec.stream import StreamRun

_log = logging.getLogger("llmbeam")

_POLL_SECONDS = 0.5
#: Time beyond `stream.drain_seconds` in which the last transaction is committed and the group is told.
_END_SECONDS = 30.0
#: Number of processes of a host that can be members of one group.
_SLOTS = 1000


def run_stream(
    spec: JobSpec, run: StreamRun, alerts_path: Path | None = None, page_path: Path | None = None
) -> dict[str, Any]:
    """Answers messages until a signal, the end of its time, or of what there is to drain.

    Args:
        spec: The job.
        run: The process.
        alerts_path: File to which a line is added for each alert; `None` for none.
        page_path: File to which the page of the group is written; `None` for none.

    Returns:
        The counts.

    Raises:
        JobSpecError: The job cannot be a stream, or a topic is missing; nothing was sent.
        LLMBeamError: Nothing can be answered any more. What was answered is committed.
    """
    spec = _streamed(spec)
    source, jobs = check_stream(spec)
    sink = next((job.sink for job in jobs if isinstance(job.sink, KafkaSink)), None)
    stores = [job for job in jobs if job.sink != sink]
    for job in stores:
        sinks.check_here(job)
    for feature in features_of(spec):
        feature.check_keys()
    check_budget(name_window(spec, time.time()))
    state, context = StreamState(), RunContext(started_at=time.time())
    with ExitStack() as until_end:
        publisher = None
        if isinstance(source, PubSubSource) or any(isinstance(job.sink, PubSubSink) for job in stores):
            publisher = Publisher()
            until_end.callback(publisher.close)
        if isinstance(source, PubSubSource):
            assert publisher is not None
            queue = open_pubsub(spec, source, publisher)
        else:
            queue = _open_kafka(spec, source, sink, until_end)
        topics, histories = queue.topics, queue.histories
        name = run.member or until_end.enter_context(_slot(topics.group))
        _log.info("Job %r: member %r of group %r, journal %r.", spec.name, name, topics.group, topics.journal)
        metrics = Metrics(spec, name, state, alerts_path, page_path)
        moderation = spec.safety.moderation
        engine_thread = _open_engine(spec, context, until_end)  # first, as its budget is that of the vectors, too
        guard = None
        if moderation is not None:  # whose budget is its own, beside that of an hour or day
            of_guard = replace(context, run=f"{context.run}-guard")
            guard = _open_engine(guard_job(spec, moderation), of_guard, until_end)
        vectors = []
        for number, job in enumerate(job for job in stores if embedding_of(job.sink) is not None):
            of_vectors = replace(context, run=f"{context.run}-vectors-{number}", budget_run=context.run)
            embedder = _open_engine(job, of_vectors, until_end)
            vectors.append(AnswerEmbedder(job, embedder, spec.stream.batch_wait_ms / 1000))

        async def work(engine: Engine) -> None:
            ask_guard = None if guard is None else guard.submit
            answers = Answers(
                spec, engine, queue.journal, state.counts, histories, ask_guard, vectors, queue.write_piece
            )
            columns = OutputColumns.of(next((job for job in jobs if job.sink == sink), spec))
            key = None if sink is None else sink.key
            outputs = Outputs(columns, key, queue.topics, queue.max_bytes, has_stores=bool(stores))
            into = Stores(stores, outputs, publisher)
            member = partial(queue.open_member, name)
            share_quota = engine.share_quota if _shares_quota(spec) else None
            worker = StreamWorker(
                spec, source, run, member, answers, histories, outputs, into, state, metrics, share_quota
            )
            try:
                async with metrics.keep_files(), served(spec, state, run.http):
                    await worker.run()
            finally:
                await queue.journal.close()

        def stop() -> None:
            state.is_stopping = True

        with stopped_at_signal(stop, spec.stream.drain_seconds + _END_SECONDS):
            ended = engine_thread.start(work)
            while not wait([ended], timeout=_POLL_SECONDS).done:
                pass
        ended.result()
    return state.plain()


def _streamed(spec: JobSpec) -> JobSpec:
    """Returns the job with streamed answers, if pieces of them are written."""
    if not spec.stream.stream_output or spec.generation.stream:
        return spec
    fields = spec.model_dump(mode="json")
    return JobSpec.parse({**fields, "generation": {**fields["generation"], "stream": True}})


def _shares_quota(spec: JobSpec) -> bool:
    """Whether the machines of the group share a quota that is stated, and their number is not."""
    limits = spec.limits
    quotas = (limits.requests_per_minute, limits.tokens_per_minute, limits.usage_tier)
    return limits.expected_workers is None and quotas != (None, None, None)


def _open_kafka(spec: JobSpec, source: KafkaSource, sink: KafkaSink | None, until_end: ExitStack) -> Queue:
    client = Client(source, "source")
    if sink is not None and not _is_same_cluster(client, Client(sink, "sink")):
        raise JobSpecError(
            "`sink.bootstrap_servers`: a stream has source and sink in one cluster, as one transaction has both; "
            f"got {source.shown_servers} and {sink.shown_servers}. Copy the answers to the other cluster, e.g. "
            "with MirrorMaker."
        )
    topics = Topics.of(spec, source, sink)
    ttl_days = 0.0 if spec.conversation is None else spec.conversation.ttl_days
    max_bytes = check_topics(topics, client, creates=spec.stream.create_topics, ttl_days=ttl_days)
    client.remains = KEPT
    histories = None
    if spec.conversation is not None:
        histories = Histories(spec.conversation, spec.fingerprinter(), max_bytes)
        until_end.callback(histories.close)
    journal = JournalWriter(client, topics.journal, max_bytes)
    write_piece = None if topics.pieces is None else partial(journal.write_piece, topics.pieces)
    agreed = agreed_of(spec, topics)
    versions = {"llmbeam-version": __version__, "llmbeam-job": spec_digest(spec)}

    def open_member(name: str, *callbacks: Any) -> Member:
        return Member(source, client, topics, max_bytes, name, agreed, versions, histories, *callbacks)

    return Queue(
        topics=topics,
        max_bytes=max_bytes,
        journal=journal,
        open_member=open_member,
        write_piece=write_piece,
        histories=histories,
    )


def _is_same_cluster(source: Client, sink: Client) -> bool:
    servers = "bootstrap.servers"
    return bool(source.settings()[servers] == sink.settings()[servers])


def check_stream(spec: JobSpec) -> tuple[KafkaSource | PubSubSource, list[JobSpec]]:
    """Returns the source of a job that can be a stream, and the job with each of its sinks.

    Raises:
        JobSpecError: It cannot.
    """
    fields = spec.model_dump(mode="json")
    source = StreamJob.parse(fields).source
    assert isinstance(source, KafkaSource | PubSubSource)
    jobs = []
    for sink in spec.sinks_by_field.values():  # each has rules on other parts of the job
        embed = embedding_of(sink)
        if embed is None:
            jobs.append(JobSpec.parse({**fields, "sink": sink.model_dump(mode="json"), "sinks": []}))
        else:
            jobs.append(vector_job(spec, sink, embed))
    return source, jobs


def _open_engine(spec: JobSpec, context: RunContext, until_end: ExitStack) -> EngineThread:
    handler: JobHandler[Any] = JobHandler(spec, context)
    handler.journal_uri = None  # `queue.journal` has what is paid
    handler.is_resident = True
    engine_thread = handler.load_model()
    until_end.callback(engine_thread.end)
    return engine_thread


@contextmanager
def _slot(group: str) -> Iterator[str]:
    """Provides a name that no other process of this host has, the same one for the next process."""
    host, stem = (re.sub(r"[^A-Za-z0-9._-]", "-", name) for name in (socket.gethostname()[:80], group))
    folder = Path(tempfile.gettempdir())
    for number in range(_SLOTS):
        try:
            file = (folder / f"{stem}-{number}.lock").open("w")
        except PermissionError:  # that of another user
            continue
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield f"{host}-{number}"
            return
    raise JobSpecError(
        f"No name is left in group {group!r}: the {_SLOTS} files {folder / stem}-….lock are held, or those of "
        "another user. Give this process one, `--member`."
    )
