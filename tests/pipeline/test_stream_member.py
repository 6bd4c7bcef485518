"""The member of a group on a real broker."""

from __future__ import annotations

import itertools

import pytest
from confluent_kafka import Producer
from kafka_broker import create_topics
from waiting import until

from airflow_provider_llmbeam.pipeline.queues.kafka_client import Client
from airflow_provider_llmbeam.pipeline.stream.member import Member
from airflow_provider_llmbeam.pipeline.stream.topics import Topics, check_topics
from airflow_provider_llmbeam.spec import JobSpec
from tests.kafka import kafka_broker

pytestmark = [pytest.mark.full]


def test_partitions_that_were_paused_when_they_were_lost_are_read_when_they_come_back(tmp_path):
    with kafka_broker(tmp_path) as broker:
        create_topics(broker.servers, 1, "questions")
        queue = {"type": "kafka", "bootstrap_servers": broker.servers}
        spec = JobSpec.parse(
            {
                "name": "paused",
                "source": {**queue, "topic": "questions"},
                "prompt": {"template": "{{ row.text }}"},
                "model": {"type": "echo"},
                "sink": {**queue, "topic": "answers"},
                "state_uri": str(tmp_path),
            }
        )
        client, topics = Client(spec.source, "source"), Topics.of(spec, spec.source, spec.sink)
        check_topics(topics, client, creates=True, ttl_days=0)
        producer = Producer({"bootstrap.servers": broker.servers})
        for _ in range(10):
            producer.produce("questions", b"{}")
        assert producer.flush(10) == 0
        places, lost = [], []
        member = Member(spec.source, client, topics, "a", {}, {}, None, places.extend, lost.extend, lost.extend)
        member.open()

        def messages():
            return sum(each.error() is None for each in member.poll(100, 0.1))

        def read_all():
            found = itertools.accumulate(messages() for _ in itertools.count())
            until(lambda: next(found) == 10, "all messages are read", pause_seconds=0)

        read_all()
        parts = member._consumer.assignment()
        member.pause(frozenset({("questions", 0)}))
        assert messages() == 0
        member._lost(member._consumer, parts)
        assert messages() == 0
        member._assigned(member._consumer, parts)
        assert lost == [("questions", 0)]
        read_all()
        member.close()
