"""The member of a group on a real broker."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka_broker import Broker, create_topics
from waiting import scaled, until

from airflow_provider_llmbeam.exceptions import LLMBeamError
from airflow_provider_llmbeam.pipeline.elements import failed_row
from airflow_provider_llmbeam.pipeline.queues.kafka_client import Client
from airflow_provider_llmbeam.pipeline.stream import member as stream_member
from airflow_provider_llmbeam.pipeline.stream.member import Member, RestartError
from airflow_provider_llmbeam.pipeline.stream.partition import Commit, Message, Partition, Place, Result, Usage
from airflow_provider_llmbeam.pipeline.stream.topics import Topics, check_topics
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.sink import KafkaSink
from airflow_provider_llmbeam.spec.source import KafkaSource
from tests.kafka import kafka_broker

pytestmark = [pytest.mark.full]

QUESTIONS, DEAD_LETTER, COUNT = "questions", "dead-letter", 10


@pytest.fixture
def opened(tmp_path) -> Iterator[Callable[..., tuple[Broker, Member, list[Partition], list[Place]]]]:
    """Returns a function that opens a member at a topic of ten messages: with its broker, and what it was told."""
    with ExitStack() as until_end:

        def open_member(most: int = 10**6, **source: Any) -> tuple[Broker, Member, list[Partition], list[Place]]:
            broker = until_end.enter_context(kafka_broker(tmp_path))
            create_topics(broker.servers, 1, QUESTIONS, DEAD_LETTER, config={"max.message.bytes": str(most)})
            producer = Producer({"bootstrap.servers": broker.servers})
            until(
                lambda: {QUESTIONS, DEAD_LETTER} <= producer.list_topics(timeout=10).topics.keys(),
                "topics are there",
            )
            queue = {"type": "kafka", "bootstrap_servers": broker.servers}
            spec = JobSpec.parse(
                {
                    "name": "member",
                    "source": {**queue, "topic": QUESTIONS, **source},
                    "prompt": {"template": "{{ row.text }}"},
                    "model": {"type": "echo"},
                    "sink": {**queue, "topic": "answers"},
                    "state_uri": str(tmp_path),
                    "stream": {"dead_letter_topic": DEAD_LETTER},
                }
            )
            assert isinstance(spec.source, KafkaSource)
            assert isinstance(spec.sink, KafkaSink)
            client, topics = Client(spec.source, "source"), Topics.of(spec, spec.source, spec.sink)
            max_bytes = check_topics(topics, client, creates=True, ttl_days=0)
            for _ in range(COUNT):
                producer.produce(QUESTIONS, b"{}")
            assert producer.flush(10) == 0
            given, lost = list[Partition](), list[Place]()
            member = Member(
                spec.source, client, topics, max_bytes, "a", {}, {}, None, given.extend, lost.extend, lost.extend
            )
            member.open()
            until_end.callback(member.close)
            return broker, member, given, lost

        yield open_member


def messages(member: Member) -> int:
    return sum(each is not None for _, each in member.poll(100, 0.1))


def read_all(member: Member) -> None:
    found = itertools.accumulate(messages(member) for _ in itertools.count())
    until(lambda: next(found) == COUNT, "all messages are read", pause_seconds=0)


def commit_of(partition: Partition, *values: bytes) -> Commit:
    loop = asyncio.new_event_loop()
    loop.close()
    message = Message(0, b"k", None, 0.0, failed_row({}, "unreadable_row", "bytes"))
    results = tuple(Result(message, DEAD_LETTER, b"k", value, Usage("unreadable_row")) for value in values)
    return Commit(partition, results, 1, {}, 0, asyncio.Future(loop=loop))


def test_partitions_that_were_paused_when_they_were_lost_are_read_when_they_come_back(opened):
    _, member, _, lost = opened()
    read_all(member)
    parts = member._consumer.assignment()
    member.pause(frozenset({(QUESTIONS, 0)}))
    assert messages(member) == 0
    member._lost(member._consumer, parts)
    assert messages(member) == 0
    member._assigned(member._consumer, parts)
    assert lost == [(QUESTIONS, 0)]
    read_all(member)


def test_the_first_position_of_a_source_without_its_past_is_committed_before_any_answer(opened):
    broker, member, given, _ = opened(first_run="latest")
    until(lambda: messages(member) or given, "a partition is assigned")
    assert given[0].order.position == COUNT
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": member._topics.group})
    assert consumer.committed([TopicPartition(QUESTIONS, 0)], 10)[0].offset == COUNT
    consumer.close()


def test_a_member_returns_although_its_broker_does_not_answer(opened, monkeypatch):
    monkeypatch.setattr(stream_member, "_COMMIT_SECONDS", 2.0)
    broker, member, given, _ = opened()
    read_all(member)
    commit = commit_of(given[0], b"{}")
    assert member.commit([commit], 0, None)
    os.kill(broker.process_id, signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(RestartError):
        member.commit([commit], 0, None)
    member.close()
    assert time.monotonic() - begun < scaled(30)  # and not for ever
    os.kill(broker.process_id, signal.SIGCONT)


def test_records_that_a_topic_takes_are_committed_and_a_limit_lowered_meanwhile_ends_the_worker(opened):
    broker, member, given, _ = opened(most=5000)
    read_all(member)
    assert member.commit([commit_of(given[0], *(os.urandom(1000) for _ in range(50)))], 0, None)
    limit = ConfigEntry("max.message.bytes", "500", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, DEAD_LETTER, incremental_configs=[limit])
    admin = AdminClient({"bootstrap.servers": broker.servers})
    admin.incremental_alter_configs([changed])[changed].result()
    with pytest.raises(LLMBeamError, match="committing answers failed: MSG_SIZE_TOO_LARGE"):
        member.commit([commit_of(given[0], os.urandom(1000))], 0, None)


def test_a_member_whose_name_another_process_takes_says_so(opened):
    _, member, given, lost = opened()
    read_all(member)
    is_used = rf"`transactional.id` '{member._name}' is used by another process"
    other = Member(
        member._source, member._client, member._topics, member._max_bytes, "a", {}, {}, None, *[lost.extend] * 3
    )
    other.open()
    with pytest.raises(RestartError, match=is_used):
        member.commit([commit_of(given[0], b"{}")], 0, None)
    until(lambda: messages(other) or lost, "the other process has the partition")
    with pytest.raises(RestartError, match=is_used):
        until(lambda: messages(member), "the group says that the name is taken", pause_seconds=0)
    other.close()
