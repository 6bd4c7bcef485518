"""A group on a real broker: shares of a quota, an upgrade while members run, and answers in pieces."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaException, Producer
from kafka_broker import create_topics
from llmbeam_sandbox import Fault
from waiting import until

from airflow_provider_llmbeam import __version__
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.queues.kafka_client import Client
from airflow_provider_llmbeam.pipeline.stream.member import Member
from airflow_provider_llmbeam.pipeline.stream.membership import agreed_of, read_members
from airflow_provider_llmbeam.pipeline.stream.run import run_stream
from airflow_provider_llmbeam.pipeline.stream.topics import Topics, check_topics
from airflow_provider_llmbeam.spec import JobSpec, StreamRun
from airflow_provider_llmbeam.spec.identity import spec_digest
from bench.stream.trial import read_committed
from tests.kafka import kafka_broker

pytestmark = [pytest.mark.full]

PARTITIONS = 4


@pytest.fixture
def servers(tmp_path):
    (folder := tmp_path / "broker").mkdir()
    with kafka_broker(folder) as broker:
        create_topics(broker.servers, PARTITIONS, "questions")
        yield broker.servers


def job(directory, servers, **changes):
    queue = {"type": "kafka", "bootstrap_servers": servers}
    return JobSpec.parse(
        {
            "name": "grouped",
            "source": {**queue, "topic": "questions"},
            "prompt": {"template": "{{ row.text }}"},
            "model": {"type": "echo"},
            "sink": {**queue, "topic": "answers"},
            "state_uri": str(directory / "state"),
            "stream": {"create_topics": True},
            "conversation": {"key": "user"},
            **changes,
        }
    )


def open_member(spec, name):
    """Opens a member that answers nothing."""
    client, topics = Client(spec.source, "source"), Topics.of(spec, spec.source, spec.sink)
    most = check_topics(topics, client, creates=True, ttl_days=1)
    agreed = agreed_of(spec, topics)
    member = Member(spec.source, client, topics, most, name, agreed, {}, None, *[lambda _: None] * 3)
    member.open()
    return member


def send(servers, *texts):
    producer = Producer({"bootstrap.servers": servers})
    for number, text in enumerate(texts):
        producer.produce("questions", json.dumps({"text": text, "user": "u"}), partition=number % PARTITIONS)
    assert producer.flush(10) == 0


def read(servers, topic):
    return [record for _, record in read_committed(servers, topic, threading.Event(), ends=True)]


def test_the_machines_of_a_group_know_their_shares_of_a_quota(tmp_path, servers, monkeypatch):
    spec = job(tmp_path, servers)
    members = {"a": open_member(spec, "a"), "b": open_member(spec, "b")}
    monkeypatch.setattr(socket, "gethostname", lambda: "another-machine")
    members["c"] = open_member(spec, "c")

    def shares():
        for member in members.values():
            [*member.poll(10, 0.1)]
        return {name: member.machines() for name, member in members.items()}

    until(lambda: sorted(filter(None, {*shares().values()})) in ([4 / 3, 4.0], [2.0]), shares, 60)
    found = shares()
    assert found["a"] == found["b"], "they are on one machine"
    assert 1 / found["a"] + 1 / found["c"] == 1
    members.pop("c").close()
    until(lambda: {*shares().values()} == {1.0}, shares, 60)
    for member in members.values():
        member.close()


def test_members_that_begin_at_once_may_all_create_the_topics(tmp_path, servers):
    spec = job(tmp_path, servers, name="at-once")
    client, topics = Client(spec.source, "source"), Topics.of(spec, spec.source, spec.sink)
    with ThreadPoolExecutor(8) as pool:
        sizes = [*pool.map(lambda _: check_topics(topics, client, creates=True, ttl_days=1), range(8))]
    assert len({*sizes}) == 1


def test_records_name_the_versions_that_answered_them_and_the_positions_go_on(tmp_path, servers):
    old = job(tmp_path, servers)
    new = job(tmp_path, servers, prompt={"template": "Now: {{ row.text }}"})
    digests = [spec_digest(spec) for spec in (old, new)]
    for spec in (old, new):
        send(servers, *"abcdef")
        assert run_stream(spec, StreamRun(drain=True))["committed"] == 6
    headers = [dict(record.headers()) for record in read(servers, "answers")]
    assert {header["llmbeam-version"].decode() for header in headers} == {__version__}
    assert sorted(header["llmbeam-job"].decode() for header in headers) == sorted(6 * digests)


def test_a_member_whose_state_does_not_fit_is_refused_while_others_run(tmp_path, servers, caplog):
    old, new = job(tmp_path, servers), job(tmp_path, servers, conversation={"key": ["user", "text"]})
    send(servers, "a")
    run_stream(old, StreamRun(drain=True, member="a"))
    running = open_member(old, "b")
    until(lambda: [*running.poll(10, 0.1)], "it has partitions", 60)
    with pytest.raises(JobSpecError, match=r"does not fit the \d running members .*`conversation.key` is"):
        run_stream(new, StreamRun(drain=True, member="c"))
    running.close()
    until(lambda: is_alone(new), "the sessions of both have ended", 60)
    send(servers, "b")
    with caplog.at_level(logging.WARNING, "llmbeam"):
        assert run_stream(new, StreamRun(drain=True, member="c"))["committed"] == 1
    assert "goes on with another state" in caplog.text


def is_alone(spec):
    topics = Topics.of(spec, spec.source, spec.sink)
    try:
        return not read_members(Client(spec.source, "source"), topics.group)
    except KafkaException:  # the cluster may not know yet who coordinates the group
        return False


def test_the_last_pieces_of_each_message_are_the_text_of_its_record(tmp_path, servers, sandbox, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    sandbox.faults.queue("openai.chatCompletions", *[Fault(kind=kind) for kind in ("drop", "stream-error")])
    model = {"type": "openai", "name": "m", "base_url": sandbox.openai_url}
    stream = {"create_topics": True, "stream_output": True, "piece_topic": "pieces"}
    spec = job(tmp_path, servers, model=model, stream=stream, conversation=None)
    send(servers, *[f"message {number}, to be answered at length" for number in range(8)])
    assert run_stream(spec, StreamRun(drain=True))["committed"] == 8
    shown, ended, again = defaultdict(str), set(), 0
    for record in read(servers, "pieces"):
        piece = json.loads(record.value())
        message = piece["kafka_partition"], piece["kafka_offset"]
        again += piece["sequence"] == 0 and message in shown
        shown[message] = piece["text"] if piece["sequence"] == 0 else shown[message] + piece["text"]
        ended |= {message} if piece["last"] else set()
    answers = [json.loads(record.value())["answer"] for record in read(servers, "answers")]
    assert sorted(shown.values()) == sorted(answers)
    assert len(ended) == 8
    assert again > 0, "an attempt that breaks off begins again"
