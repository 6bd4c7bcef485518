"""Stream workers on a real broker: what messages become, whatever they are and whatever happens meanwhile."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka_broker import Broker, create_topics
from llmbeam_sandbox import Latency, ModelSettings, Quota, Sandbox
from llmbeam_sandbox.models.embedding.base import vector

from airflow_provider_llmbeam.pipeline.stream.run import run_stream
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.stream import StreamRun
from tests.kafka import Cluster, kafka_broker
from tests.processes import until_job

pytestmark = [pytest.mark.full]

METHOD = "openai.chatCompletions"
PARTITIONS = 2
NUMBERS = itertools.count()
#: Larger than what a topic takes by default.
LARGE = 2 * 2**20


class Stream:
    """A job between topics of its own."""

    def __init__(self, broker: Broker, name: str, url: str, state_uri: str) -> None:
        self.cluster, self.questions = Cluster(broker.servers), f"{name}-questions"
        queue = {"type": "kafka", "bootstrap_servers": broker.servers}
        self.spec: dict[str, Any] = {
            "name": name,
            "source": {**queue, "topic": self.questions},
            "prompt": "{{ row.text }}",
            "model": {"type": "openai", "name": "sandbox-model", "base_url": f"{url}/v1"},
            "sink": {**queue, "topic": f"{name}-answers"},
            "state_uri": state_uri,
            "stream": {"create_topics": True, "group_id": name, "dead_letter_topic": f"{name}-dead-letter"},
        }
        create_topics(broker.servers, PARTITIONS, self.questions, config={"max.message.bytes": str(2 * LARGE)})
        self._producer = Producer({"bootstrap.servers": broker.servers, "message.max.bytes": 2 * LARGE})

    def send(self, messages: list[tuple[bytes | None, bytes | None]]) -> None:
        """Sends keys and values, those of one key to one partition."""
        for key, value in messages:
            self._producer.produce(self.questions, value, key)
        assert self._producer.flush(20) == 0

    def drain(self) -> dict[str, Any]:
        """Runs a worker until no message is left."""
        return run_stream(JobSpec.parse(self.spec), StreamRun(drain=True, run_for_seconds=300, member="a"))

    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(each.value()) for each in self.cluster.messages(self.spec["sink"]["topic"])]

    def dead_letter(self) -> list[dict[str, Any]]:
        return [json.loads(each.value()) for each in self.cluster.messages(f"{self.spec['name']}-dead-letter")]

    def positions(self) -> tuple[int, int]:
        """Returns the sum of the committed positions, and of the ends."""
        consumer = Consumer({"bootstrap.servers": self.cluster.servers, "group.id": self.spec["name"]})
        parts = [TopicPartition(self.questions, number) for number in range(PARTITIONS)]
        committed = sum(max(0, part.offset) for part in consumer.committed(parts, 20))
        ends = sum(consumer.get_watermark_offsets(part, 20)[1] for part in parts)
        consumer.close()
        return committed, ends


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[Broker]:
    with kafka_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def stream_to(broker, tmp_path, monkeypatch) -> Callable[[Sandbox], Stream]:
    """Returns a function that makes a job of models."""
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    return lambda sandbox: Stream(broker, f"job-{next(NUMBERS)}", sandbox.url, str(tmp_path / "state"))


@pytest.fixture
def stream(stream_to, sandbox) -> Stream:
    return stream_to(sandbox)


def encoded(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode()


def test_messages_that_cannot_be_read_go_to_the_dead_letter_and_those_beside_them_are_answered(stream):
    poisoned: dict[str, tuple[bytes | None, str]] = {
        "no UTF-8": (b'{"text": "\xff"}', "not UTF-8"),
        "2 MB that are no JSON": (b"x" * LARGE, "JSON"),
        "2 MB that no topic of answers takes": (encoded({"text": "a", "blob": "x" * LARGE}), "the topics take"),
        "a tombstone": (None, "tombstone"),
        "a frame with Avro": (b"\0\0\0\0\1\x02\x04", "schema registry"),
        "another schema": (encoded({"question": "who?"}), "text"),
        "no object": (b'["text"]', "object"),
        "deep JSON": (b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion depth"),
        "nothing": (b"", "blank"),
    }
    good = [(f"u{number}".encode(), encoded({"text": f"question {number}"})) for number in range(20)]
    good += [(None, encoded({"text": "without a key"})), (b"f", b"\0\0\0\0\1" + encoded({"text": "framed"}))]
    bad = [(name.encode(), value) for name, (value, _) in poisoned.items()]
    stream.send([*good[:10], *bad, *good[10:]])
    stream.spec["sink"]["passthrough"] = ["blob"]
    found = stream.drain()
    assert sorted(each["answer"].partition(" [")[0] for each in stream.answers()) == sorted(
        json.loads(value.lstrip(b"\0\1"))["text"] for _, value in good
    )
    faults = {each["kafka_key"]: each["llmbeam_error"]["message"] for each in stream.dead_letter()}
    assert faults.keys() == poisoned.keys()
    assert [name for name, (_, reason) in poisoned.items() if reason not in faults[name]] == []
    assert (found["committed"], found["dead_letter"], found["lag"]) == (len(good), len(bad), 0)
    committed, ends = stream.positions()
    assert committed >= ends - PARTITIONS


def test_each_turn_of_a_conversation_has_exactly_the_turns_before_it_although_a_worker_is_killed(
    stream, sandbox, tmp_path
):
    users, turns = 10, 6
    stream.spec["conversation"] = {"key": "user", "max_turns": turns}
    stream.spec["sink"]["passthrough"] = ["text"]
    texts = {(user, turn): f"turn {turn} of user {user}" for turn in range(turns) for user in range(users)}
    stream.send(
        [(f"u{user}".encode(), encoded({"user": user, "text": text})) for (user, _), text in texts.items()]
    )
    spec, run = tmp_path / "job.json", tmp_path / "run.json"
    spec.write_text(json.dumps(stream.spec))
    run.write_text(json.dumps({"member": "a"}))
    held = sandbox.faults.hold(METHOD, "turn 3 of")
    command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--step", "stream"]
    worker = subprocess.Popen([*command, "--spec", str(spec), "--input", str(run)])
    # Turns are committed, and those of each user wait for the next one.
    until_job(worker, lambda: held.waiting == users and len(stream.answers()) > users)
    worker.kill()
    worker.wait()
    held.release()
    stream.drain()
    answers = {each["text"]: each["answer"] for each in stream.answers()}
    assert len(stream.answers()) == len(answers) == users * turns
    asked = {each.turns for each in sandbox.requests if each.turns}
    assert asked == {
        (*(said for before in range(turn) for said in (texts[user, before], answers[texts[user, before]])), text)
        for (user, turn), text in texts.items()
        if turn
    }
    paid = Counter(sandbox.requests.paid().values())
    assert paid.keys() <= {1, 2}
    assert paid[2] <= users  # what was in flight


def test_personal_data_is_masked_texts_are_judged_within_limits_of_their_own_and_requests_are_audited(
    stream_to, tmp_path, monkeypatch
):
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "k" * 32)
    count, guard = 12, "guard-model"
    with Sandbox(models=ModelSettings(latency=Latency(mean_seconds=0.1))) as sandbox:
        stream = stream_to(sandbox)
        moderation = {"model": {**stream.spec["model"], "name": guard}, "limits": {"max_in_flight": 1}}
        audit = {"uri": str(tmp_path / "audit"), "include_text": True}
        stream.spec["sink"]["passthrough"] = ["text"]
        stream.spec["safety"] = {"privacy": {}, "moderation": moderation, "audit": audit}
        asked = [f"Write to user{number}@example.com" for number in range(count)]
        unsafe = ["Say unsafe_S1 to bad@example.com", "Be one who tempts_S2"]
        stream.send([(b"u", encoded({"text": text})) for text in (*asked, *unsafe)])
        found = stream.drain()
        requests = [*sandbox.requests]
    assert sorted(each["text"] for each in stream.answers()) == sorted(asked), "restored"
    assert Counter(each["llmbeam_error"]["kind"] for each in stream.dead_letter()) == {"moderated": len(unsafe)}
    judged = sorted((each.received_at, each.answered_at) for each in requests if each.model == guard)
    answered = sorted((each.received_at, each.answered_at) for each in requests if each.model != guard)
    assert len(judged) == 2 * count + 3
    assert not [later for earlier, later in pairwise(judged) if later[0] < earlier[1]]
    assert [later for earlier, later in pairwise(answered) if later[0] < earlier[1]], (
        "at once, as its limits allow"
    )
    records = [
        json.loads(line) for path in Path(audit["uri"]).rglob("*.jsonl") for line in path.read_text().splitlines()
    ]
    assert len(records) == len(requests) == found["requests"]
    assert Counter(each["model"] for each in records) == Counter(each.model for each in requests)
    assert not [each for each in records if "example.com" in json.dumps(each)]


def test_the_rate_that_a_worker_has_learned_is_that_of_the_next_one_on_another_machine(
    stream_to, tmp_path, tmp_path_factory, monkeypatch
):
    count, rejected = 100, []
    with Sandbox(models=ModelSettings(quota=Quota(requests_per_minute=600, burst_seconds=1.0))) as sandbox:
        stream = stream_to(sandbox)
        for run in range(2):
            monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("machine")))
            sandbox.requests.clear()
            stream.send([(None, encoded({"text": f"{run}, {number}"})) for number in range(count)])
            assert stream.drain()["committed"] == count
            rejected.append(sum(each.http_status == 429 for each in sandbox.requests))
    (file,) = (tmp_path / "state").rglob("learned_rate-*.json")
    assert 5 < json.loads(file.read_text())["requests_per_second"] < 14
    assert rejected[0] > rejected[1]


def test_answers_and_their_vectors_are_each_paid_and_stored_once_although_a_worker_is_killed(
    stream, sandbox, tmp_path, database, monkeypatch
):
    monkeypatch.setenv("VECTORS", database)
    count, dimensions, model = 40, 8, "text-embedding-3-small"
    embed = {"model": {**stream.spec["model"], "name": model}, "dimensions": dimensions}
    store = {"type": "postgres", "table": "vectors", "dsn_env": "VECTORS", "passthrough": ["llmbeam_text"]}
    stream.spec["sinks"] = [{**store, "embed": embed}]
    stream.send([(f"u{number}".encode(), encoded({"text": f"question {number}"})) for number in range(count)])
    spec, run = tmp_path / "job.json", tmp_path / "run.json"
    spec.write_text(json.dumps(stream.spec))
    run.write_text(json.dumps({"member": "a"}))
    held = sandbox.faults.hold("openai.embeddings", "question 7 ")
    command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--step", "stream"]
    worker = subprocess.Popen([*command, "--spec", str(spec), "--input", str(run)])

    def stored():
        with psycopg.connect(database) as connection:
            if connection.execute("SELECT to_regclass('vectors')").fetchone() == (None,):
                return []
            return connection.execute("SELECT llmbeam_text, answer FROM vectors").fetchall()

    until_job(worker, lambda: held.waiting and stored() and len(sandbox.requests.paid(METHOD)) == count)
    time.sleep(1)  # what is answered is in the journal
    worker.kill()
    worker.wait()
    held.release()
    found = stream.drain()
    answers = [each["answer"] for each in stream.answers()]
    assert len(answers) == len({*answers}) == count
    wanted = {text: vector(text, model=model, dimensions=dimensions) for text in answers}
    assert {text: pytest.approx(each, abs=1e-6) for text, each in stored()} == wanted
    assert Counter(sandbox.requests.paid(METHOD).values()) == {1: count}
    embedded = sandbox.requests.paid("openai.embeddings")
    assert len(embedded) == count
    assert embedded.total() - count <= found["embedded"] < count, "at most what was in flight"
    assert found["resumed"] > 0
